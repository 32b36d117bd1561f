"""The score counts what it should, on cases that are the same every time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.work import Watch
from services.decoder.mux import Picture, write_mp4
from tools.demo_model import mp4, tally
from tools.demo_model.attributes import FRAMES, has_held_out
from tools.demo_model.cases import GROUPS, cases
from tools.demo_model.intervals import said, wilson
from tools.demo_model.library_clips import pictures
from tools.demo_model.world import render_audio


@pytest.mark.parametrize("group", GROUPS)
def test_cases_are_held_out_and_repeatable(group: str) -> None:
    """Every case asks for a combination that training never drew, always the same one."""
    first, again = list(cases(group, 6)), list(cases(group, 12))
    assert first == again[:6]
    for case in again:
        assert has_held_out(case.clip.scene)
        shown, wanted = case.shown.scene.objects[0], case.clip.scene.objects[0]
        assert (shown.colour, shown.shape) == (wanted.colour, wanted.shape)


def test_a_true_clip_scores_after_mp4(tmp_path: Path) -> None:
    """Rendered clips keep colour, shape, motion, sound and pan through H.264 and AAC."""
    path = tmp_path / "clip.mp4"
    found = []
    for case in list(cases("t2va, one object, English", 12)):
        frames = pictures(case.clip, list(range(FRAMES)))
        picture = Picture(FRAMES, 128, 128)
        audio = render_audio([case.clip])[0, :, : picture.samples].numpy()
        write_mp4(path, picture, frames, audio, Watch())
        found.append(tally.score(case, *mp4.decode(path)))
    row = tally.row("true", 8, found)
    assert row["all four"].startswith("100.0"), row
    assert all(each.reading.pan is None or each.reading.pan > 0.95 for each in found)


def test_keyframes_are_compared() -> None:
    """A clip that is its own keyframes is far above any bound."""
    case = next(cases("fl2va, both", 1))
    frames = pictures(case.clip, list(range(FRAMES)))
    scored = tally.score(case, frames, torch.zeros(2, 32_000).double().numpy(), 32_000)
    assert len(scored.keyframes_db) == 2
    assert min(scored.keyframes_db) > 60


def test_wilson() -> None:
    """The interval is the textbook's: 9 of 10 is 0.60 to 0.98, and nothing is ever certain."""
    assert np.allclose(wilson(9, 10), (0.596, 0.982), atol=1e-3)
    assert wilson(100, 100)[0] < 0.97
    assert said(0, 0) == "-"
