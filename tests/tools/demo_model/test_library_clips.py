"""What is asked for besides the prompt changes the clip, and the same request repeats it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tools.demo_model import library_clips
from tools.demo_model.cases import Case, cases

_EVALUATIONS = 2


@pytest.mark.parametrize("group", ["fl2va, both", "ref2va, image and sound", "ref2va, video"])
def test_conditions_seed_and_prompt_matter(random_checkpoint: Path, group: str) -> None:
    """Another keyframe or reference, another seed, another prompt: another clip each time."""
    pipeline = library_clips.load(random_checkpoint)
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
