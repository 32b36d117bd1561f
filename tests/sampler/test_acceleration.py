"""The faster way through the transformer gives what diffusers' own forward gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import MiniMaxH3Scheduler

from services.common.checkpoint.components import ModelSettings, load
from services.sampler.fused import modulation
from services.sampler.fused.acceleration import Accelerated
from services.sampler.loop.conditioning import Conditioning, Reference
from services.sampler.loop.denoise import evaluate_by
from services.sampler.loop.rows import draw_rows
from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence, Shape

TEXT, EVALUATIONS = 5, 5
# Matrix products of other sizes add in another order: of the output's magnitude.
BOUND = 1e-5


def drawn(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size)))


CONDITIONINGS = {
    "t2va": Conditioning("t2va", drawn(1, TEXT, 64), torch.ones(TEXT, dtype=torch.long)),
    "ref2va": Conditioning(
        "ref2va",
        drawn(1, TEXT, 64),
        torch.tensor([1, 0, 0, 1, 1]),
        (),
        [Reference("image", False), Reference("video", True)],
        [drawn(1, 24, 1, 6, 4), drawn(1, 24, 12, 4, 4)],
        [drawn(40, 32)],
    ),
}


@pytest.fixture(scope="module")
def transformer(tiny_checkpoint: Path) -> Any:
    """The tiny checkpoint's transformer."""
    settings = ModelSettings(str(tiny_checkpoint), device="cpu", threads=2)
    return load(settings, ["transformer"])["transformer"]


@pytest.mark.parametrize("mode", CONDITIONINGS)
def test_velocities_are_diffusers(
    transformer: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """At every evaluation, in any order, over windows of tables, the velocities are the same."""
    monkeypatch.setattr(modulation, "_WINDOW", 2)
    conditioning = CONDITIONINGS[mode]
    shape = Shape.of(64, 64, 22, transformer.config)
    sequence = Sequence.of(conditioning, shape)
    rows = draw_rows(shape, conditioning, 3)
    video = torch.cat([rows.condition, rows.video])
    audio = torch.cat([rows.audio_condition, rows.audio])
    scheduler: Any = MiniMaxH3Scheduler
    schedulers = scheduler(shift=12.0), scheduler(shift=3.0)
    schedule = Schedule.of(schedulers, EVALUATIONS)
    order = (0, 1, 2, 4, 3)
    with torch.no_grad():
        plain = evaluate_by(transformer, sequence, schedule, conditioning.prompt_embeds)
        expected = [plain(index, video, audio) for index in order]
        accelerated = Accelerated(transformer, "native")
        fast = accelerated.begin(sequence, schedule, conditioning.prompt_embeds)
        for index, velocities in zip(order, expected, strict=True):
            for ours, theirs in zip(fast(index, video, audio), velocities, strict=True):
                assert ours.shape == theirs.shape
                error = float((ours - theirs).abs().max() / theirs.abs().max())
                assert error < BOUND, (index, error)
