"""What is asked for besides the prompt changes the clip, and the same request repeats it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from tools.demo_model import library_clips
from tools.demo_model.cases import Case, cases

_EVALUATIONS = 1


@pytest.fixture(scope="module")
def pipeline(random_checkpoint: Path) -> Any:
    """The whole pipeline, whose pictures are three channels of its latents: they take no time."""
    loaded = library_clips.load(random_checkpoint)

    def show(latents: Tensor, **_: Any) -> tuple[Tensor]:
        return (interpolate(latents[:, :3], size=(124, 128, 128)),)

    def sound(latents: Tensor, **_: Any) -> tuple[Tensor]:
        return (latents[:, :1].repeat_interleave(800, dim=-1),)

    loaded.vae.decode, loaded.audio_vae.decode = show, sound
    return loaded


@pytest.mark.parametrize("group", ["fl2va, both", "ref2va, image and sound", "ref2va, video"])
def test_conditions_seed_and_prompt_matter(pipeline: Any, group: str) -> None:
    """Another keyframe or reference, another seed, another prompt: another clip each time."""
    first, second = cases(group, 2)

    def made(case: Case) -> NDArray[np.uint8]:
        return library_clips.generate(pipeline, case, _EVALUATIONS)[0]

    frames = made(first)
    assert frames.shape == (124, 128, 128, 3)
    assert np.array_equal(frames, made(first))
    others = {
        "condition": replace(first, clip=second.clip, shown=second.shown),
        "seed": replace(first, seed=first.seed + 1),
        "prompt": replace(first, prompt=second.prompt),
    }
    for name, other in others.items():
        assert not np.array_equal(frames, made(other)), name
