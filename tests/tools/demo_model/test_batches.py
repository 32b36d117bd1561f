"""Training batches follow the model's own convention of noise, times and conditions."""

import pytest
import torch

from tools.demo_model import batches, tokens
from tools.demo_model.drawing import draw_clips
from tools.demo_model.latents import Latents
from tools.demo_model.partners import look, partners
from tools.demo_model.presentation import MODES, present
from tools.demo_model.table import Group
from tools.tiny_models import untyped

_CPU = torch.device("cpu")


def _source() -> batches.Source:
    torch.manual_seed(0)
    clips = draw_clips(0, 4, objects=1)
    latents = Latents(
        video=torch.randn(4, 24, 37, 8, 8).half() * 3 + 1,
        first=torch.full((4, 24, 8, 8), -20.0).half(),
        last=torch.cat((torch.randn(4, 24, 8, 8), torch.full((4, 24, 8, 8), -20.0)), 1).half(),
        audio=torch.randn(4, 2, 32, 207).half() * 2,
    )
    return batches.Source(latents, clips, _CPU)


@pytest.mark.parametrize("mode", MODES)
def test_answers_lead_to_the_data(mode: str) -> None:
    """One scheduler step along the wanted velocity lands on the clean latents, in every mode."""
    source = _source()
    ids, tags = present(tokens.build(), "a red ball", mode)
    group = Group(mode, tuple(tags), torch.arange(4), torch.randn(4, len(ids), 64))
    made = source.batch(group, torch.tensor([2, 0]))
    clean = batches.patchify(source.normal_video(source.latents.video[[2, 0]].float()))
    noised = made.video[:, made.where.kept_video :]
    sigma = (1 - made.times[:, 0])[:, None, None]
    assert torch.allclose(noised + sigma * made.wanted_video, clean, atol=1e-3)
    heard = source.normal_audio(source.latents.audio[[2, 0]].float())
    sounded = made.audio[:, made.where.kept_audio :]
    sigma = (1 - made.times[:, 1])[:, None, None]
    assert torch.allclose(sounded + sigma * made.wanted_audio, heard, atol=1e-3)
    assert made.video.shape[1] == len(made.where.video)
    assert made.audio.shape[1] == len(made.where.audio)
    assert (made.times[:, 2] >= batches.KEPT_AT).all()
    if mode in ("first", "both"):
        # The first picture's rows are those of the clip's first latent, all but clean.
        assert (made.video[:, :16] - clean[:, :16]).abs().max() < 0.02


def test_sigmas_are_the_schedulers() -> None:
    """A place of the grid gives the sigma that the library's scheduler has there."""
    for shift in (batches.VIDEO_SHIFT, batches.AUDIO_SHIFT):
        scheduler = untyped("diffusers").MiniMaxH3Scheduler(shift=shift)
        scheduler.set_timesteps(9)
        u = torch.linspace(1, 0, 9)
        assert torch.allclose(batches.shifted(u, torch.full_like(u, shift)), scheduler.sigmas)


def test_partners_are_alike() -> None:
    """A drawn partner is of the same kind, and in time every one of the kind is drawn."""
    clips = draw_clips(1, 400, objects=1)
    pick = partners(clips, look, _CPU)
    numbers = torch.arange(400)
    for _ in range(5):
        assert all(
            look(clips[int(one)]) == look(clips[int(other)])
            for one, other in zip(numbers, pick(numbers), strict=True)
        )
    drawn = {int(other) for _ in range(40) for other in pick(numbers)}
    assert len(drawn) == 400
