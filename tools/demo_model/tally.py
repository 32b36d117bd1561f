"""Counts readings into the rows of the score."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.demo_model import readers
from tools.demo_model.attributes import FRAMES
from tools.demo_model.cases import Case
from tools.demo_model.intervals import said
from tools.demo_model.library_clips import picture

_ATTRIBUTES = ("colour", "shape", "motion", "sound", "all_four")


@dataclass(frozen=True)
class Scored:
    """One clip of the score."""

    case: Case
    reading: readers.Reading
    keyframes_db: tuple[float, ...]
    """PSNR of the first, of the last frame, where they were given."""


def score(case: Case, frames: NDArray[np.uint8], audio: NDArray[np.float64], rate: int) -> Scored:
    """Read a clip and compare it with its case."""
    ends = {"first": (0,), "last": (FRAMES - 1,), "both": (0, FRAMES - 1)}.get(case.mode, ())
    return Scored(
        case=case,
        reading=readers.read(frames, audio, rate, case.clip.scene),
        keyframes_db=tuple(readers.keyframe_psnr(frames[e], picture(case.clip, e)) for e in ends),
    )


def row(group: str, evaluations: int, scored: Sequence[Scored]) -> dict[str, str]:
    """The row of one group at one number of evaluations; shares in percent, 95 % intervals."""
    count = len(scored)
    cells = {"what": group, "evaluations": str(evaluations), "n": str(count)}
    for name in _ATTRIBUTES:
        hits = sum(getattr(each.reading, name) for each in scored)
        cells[name.replace("_", " ")] = said(hits, count)
    pans = [each.reading.pan for each in scored if each.reading.pan is not None]
    levels = [level for each in scored for level in each.keyframes_db]
    cells["pan"] = f"{np.mean(pans):.3f} (n {len(pans)})" if pans else "-"
    cells["keyframes, dB"] = f"{np.mean(levels):.1f}, least {min(levels):.1f}" if levels else "-"
    return cells
