"""Where the objects of a clip are, and how large, at any time."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model.attributes import BOUNCE_S, FPS, FRAMES, MOTIONS
from tools.demo_model.drawing import Clip

GROW = (0.55, 1.35)  # scale of a growing object at the first and at the last frame
_MOST_OBJECTS = 2


@dataclass(frozen=True)
class Paths:
    """Tracks of a batch of clips; a clip of one object has a second one of radius 0."""

    x: Tensor
    """(B, 2, T), 0..1 from left to right."""
    y: Tensor
    """(B, 2, T), 0..1 from top to bottom."""
    radius: Tensor
    """(B, 2, T), pixels."""


def trace(clips: list[Clip], times_s: Tensor) -> Paths:
    """The tracks at `times_s`, (B, T) seconds from the first frame, on its device.

    All motions are computed for all clips and one is picked: a few large operations instead of
    many small ones, which is what a GPU wants.
    """
    known = torch.tensor([_numbers(clip) for clip in clips]).to(times_s.device)  # (B, 9)
    middle_x, middle_y, extent, phase, motion = (known[:, at, None, None] for at in range(5))
    lane, size = known[:, 5:7, None], known[:, 7:9, None]  # (B, 2, 1)
    times = times_s[:, None]  # (B, 1, T)
    share = (times / ((FRAMES - 1) / FPS)).clamp(0.0, 1.0)
    way = extent * (2 * share - 1)
    half_turns = torch.arange(_MOST_OBJECTS, device=times.device)[:, None] / 2
    angle = 2 * math.pi * (share + phase + half_turns)
    height = torch.sin(math.pi * (times / BOUNCE_S + phase)).abs()
    grown = GROW[0] + (GROW[1] - GROW[0]) * share
    shrunk = GROW[1] - (GROW[1] - GROW[0]) * share

    def pick(other: Tensor, **moved: Tensor) -> Tensor:
        value = other
        for name, choice in moved.items():
            value = torch.where(motion == MOTIONS.index(name), choice, value)
        return value.expand(len(clips), _MOST_OBJECTS, times.shape[-1])

    return Paths(
        x=pick(
            lane,
            right=middle_x + way,
            left=middle_x - way,
            orbit=middle_x + extent * torch.cos(angle),
        ),
        y=pick(
            middle_y,
            right=lane,
            left=lane,
            down=middle_y + way,
            up=middle_y - way,
            bounce=middle_y + 0.25 - 0.45 * height,
            orbit=middle_y + extent * torch.sin(angle),
        ),
        radius=pick(size, grow=size * grown, shrink=size * shrunk),
    )


def _numbers(clip: Clip) -> tuple[float, ...]:
    empty = _MOST_OBJECTS - len(clip.radii)
    return (
        *clip.middle,
        clip.extent,
        clip.phase,
        float(MOTIONS.index(clip.scene.motion)),
        *(*clip.lanes, *[0.5] * empty),
        *(*clip.radii, *[0.0] * empty),
    )
