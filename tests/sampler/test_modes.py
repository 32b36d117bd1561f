"""The three modes: each gives what diffusers' whole pipeline gives, and takes just its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.minimax_h3.references import (
    MiniMaxH3AudioReference,
    MiniMaxH3ImageReference,
    MiniMaxH3VideoReference,
)
from PIL import Image
from safetensors.torch import load_file, save_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import EngineError, NonFinite, Watch
from services.sampler.engine import SamplerEngine
from services.sampler.order import SampleOrder
from services.sampler.recipe import Recipe
from tests.reference import Latents

THREADS = 2
SIZE = {"height": 64, "width": 96, "frames": 124}
EVALUATIONS = 2
Tensors = dict[str, torch.Tensor]


def picture(seed: int, height: int = 96, width: int = 128) -> Image.Image:
    """A picture that is like no other."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def sound(seed: int, samples: int = 32_000) -> torch.Tensor:
    """A second of noise (2, samples)."""
    return 0.1 * torch.randn(2, samples, generator=torch.Generator().manual_seed(seed))


def clip(seed: int, audio: torch.Tensor | None = None) -> MiniMaxH3VideoReference:
    """39 frames, with or without a soundtrack."""
    frames = np.stack([np.asarray(picture(seed + index)) for index in range(39)])
    return MiniMaxH3VideoReference(frames=frames, fps=24.0, audio=audio)


REQUESTS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "t2va": ("t2va", dict),
    "first": ("fl2va", lambda: {"image": picture(1)}),
    "last": ("fl2va", lambda: {"last_image": picture(2)}),
    "both": ("fl2va", lambda: {"image": picture(1), "last_image": picture(2, 128, 96)}),
    "images": (
        "ref2va",
        lambda: {"references": [MiniMaxH3ImageReference(picture(seed)) for seed in (3, 4)]},
    ),
    "everything": (
        "ref2va",
        lambda: {
            "references": [
                MiniMaxH3AudioReference(sound(5)),
                MiniMaxH3ImageReference(picture(3)),
                clip(10, sound(6)),
                clip(60),
            ]
        },
    ),
}


@dataclass(frozen=True)
class Made:
    """What diffusers made of a request: its latents, and the conditioning on the way."""

    mode: str
    latents: Tensors
    conditioning: Tensors


@pytest.fixture(scope="module")
def whole(tiny_checkpoint: Path) -> dict[str, Made]:
    """diffusers' whole pipeline on every request."""
    pipeline = Latents(tiny_checkpoint)
    return {
        name: Made(
            mode, *pipeline.make(SIZE, 7, EVALUATIONS, THREADS, prompt="a red ball", **inputs())
        )
        for name, (mode, inputs) in REQUESTS.items()
    }


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> SamplerEngine:
    """An engine with both partitions."""
    settings = ModelSettings(str(tiny_checkpoint), device="cpu", threads=THREADS)
    made = SamplerEngine(settings, Recipe(partitions=("transformer", "transformer_ref")))
    made.load()
    return made


def sample(engine: SamplerEngine, mode: str, tensors: Tensors, folder: Path) -> Tensors:
    """The engine's latents under a conditioning."""
    save_file(tensors, folder / "conditioning")
    order = SampleOrder(mode, 64, 96, 124, 7, EVALUATIONS)
    engine.sample(order, folder / "conditioning", folder / "latents", Watch())
    return load_file(folder / "latents")


@pytest.mark.parametrize("name", REQUESTS)
def test_latents_are_diffusers(
    engine: SamplerEngine, whole: dict[str, Made], tmp_path: Path, name: str
) -> None:
    """The same conditioning and seed give the whole pipeline's latents, bit by bit."""
    ours = sample(engine, whole[name].mode, whole[name].conditioning, tmp_path)
    assert ours.keys() == whole[name].latents.keys()
    for tensor, theirs in whole[name].latents.items():
        assert torch.equal(ours[tensor], theirs), tensor


@pytest.mark.parametrize("name", ["both", "everything"])
def test_conditions_change_the_latents(
    engine: SamplerEngine, whole: dict[str, Made], tmp_path: Path, name: str
) -> None:
    """Every single picture and sound of the conditioning shows in the video and in the sound."""
    made = whole[name]
    before = sample(engine, made.mode, made.conditioning, tmp_path)
    conditions = [one for one in made.conditioning if "condition_latents." in one]
    assert len(conditions) == {"both": 2, "everything": 5}[name]
    for condition in conditions:
        changed = {**made.conditioning, condition: -made.conditioning[condition]}
        after = sample(engine, made.mode, changed, tmp_path)
        for tensor in before:
            assert float((before[tensor] - after[tensor]).abs().max()) > 1e-4, condition


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def replaced(name: str, value: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: value}


KEYFRAME = torch.zeros(1, 24, 1, 4, 6)
NOUGHTS = torch.zeros(10, dtype=torch.long)


def ten_pictures(tensors: Tensors) -> Tensors:
    return {**tensors, "reference_kinds": NOUGHTS, "reference_has_audio": NOUGHTS.clone()}


# What is wrong: a request, what is done to its tensors, and the tensor that the refusal names.
WRONG: dict[str, tuple[str, Callable[[Tensors], Tensors], str]] = {
    name: (request, change, named)
    for name, request, named, change in (
        ("surplus", "t2va", "condition_latents.0", replaced("condition_latents.0", KEYFRAME)),
        ("one too many", "both", "condition_latents.2", replaced("condition_latents.2", KEYFRAME)),
        ("missing", "both", "condition_latents.1", without("condition_latents.1")),
        ("no anchors", "both", "keyframe_anchors", without("keyframe_anchors")),
        ("twice", "both", "keyframe_anchors", replaced("keyframe_anchors", torch.tensor([1, 1]))),
        ("unknown", "both", "keyframe_anchors", replaced("keyframe_anchors", torch.tensor([0, 2]))),
        (
            "another canvas",
            "both",
            "condition_latents.0",
            replaced("condition_latents.0", torch.zeros(1, 24, 1, 6, 4)),
        ),
        (
            "two frames",
            "both",
            "condition_latents.0",
            replaced("condition_latents.0", torch.zeros(1, 24, 2, 4, 6)),
        ),
        ("half", "both", "condition_latents.0", replaced("condition_latents.0", KEYFRAME.half())),
        ("no kinds", "everything", "reference_kinds", without("reference_kinds")),
        ("no word", "everything", "reference_has_audio", without("reference_has_audio")),
        (
            "sounds alone",
            "everything",
            "reference_kinds",
            replaced("reference_kinds", torch.tensor([2, 2, 2, 2])),
        ),
        (
            "sounding picture",
            "everything",
            "reference_has_audio",
            replaced("reference_has_audio", torch.tensor([1, 1, 1, 0])),
        ),
        ("ten pictures", "images", "reference_kinds", ten_pictures),
        (
            "no sound",
            "everything",
            "audio_condition_latents.1",
            without("audio_condition_latents.1"),
        ),
        (
            "odd sound",
            "everything",
            "audio_condition_latents.0",
            replaced("audio_condition_latents.0", torch.zeros(3, 32)),
        ),
        (
            "half a patch",
            "images",
            "condition_latents.0",
            replaced("condition_latents.0", torch.zeros(1, 24, 1, 5, 4)),
        ),
    )
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tensors_are_refused_by_name(
    engine: SamplerEngine, whole: dict[str, Made], tmp_path: Path, case: str
) -> None:
    """A tensor that is missing, surplus or of another form is BAD_CONDITIONING and named."""
    name, change, named = WRONG[case]
    with pytest.raises(EngineError) as caught:
        sample(engine, whole[name].mode, change(dict(whole[name].conditioning)), tmp_path)
    assert caught.value.reason == "BAD_CONDITIONING"
    assert named in caught.value.message
    assert not (tmp_path / "latents").exists()


@pytest.mark.parametrize("name", ["condition_latents.0", "audio_condition_latents.1"])
def test_nonfinite_conditions_are_named(
    engine: SamplerEngine, whole: dict[str, Made], tmp_path: Path, name: str
) -> None:
    """NaN in a condition is found before the first evaluation."""
    broken = whole["everything"].conditioning[name].clone()
    broken.view(-1)[3] = float("nan")
    with pytest.raises(NonFinite, match=name):
        sample(engine, "ref2va", {**whole["everything"].conditioning, name: broken}, tmp_path)


@pytest.mark.parametrize(
    ("partition", "modes"),
    [("transformer", {"t2va", "fl2va"}), ("transformer_ref", {"ref2va"})],
)
def test_one_partition_does_its_own_modes(
    tiny_checkpoint: Path, tmp_path: Path, partition: str, modes: set[str]
) -> None:
    """An engine with one partition of the weights refuses the modes of the other."""
    recipe = Recipe(partitions=(partition,))
    engine = SamplerEngine(ModelSettings(str(tiny_checkpoint), "cpu", threads=THREADS), recipe)
    engine.load()
    assert set(recipe.modes) == modes
    save_file({"prompt_embeds": torch.zeros(1, 1, 64)}, tmp_path / "conditioning")
    for mode in ("t2va", "fl2va", "ref2va"):
        order = SampleOrder(mode, 64, 96, 124, 7, EVALUATIONS)
        with pytest.raises(EngineError) as caught:
            engine.sample(order, tmp_path / "conditioning", tmp_path / "latents", Watch())
        expected = "BAD_CONDITIONING" if mode in modes else "UNSUPPORTED_MODE"
        assert caught.value.reason == expected
