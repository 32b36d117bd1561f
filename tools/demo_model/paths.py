"""Where the objects of a clip are, and how large, at any time."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model.attributes import BOUNCE_S, FPS, FRAMES
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
    """The tracks at `times_s`, (B, T) seconds from the first frame, on its device."""
    length_s = (FRAMES - 1) / FPS
    tracks: list[tuple[Tensor, Tensor, Tensor]] = []
    for clip, times in zip(clips, times_s, strict=True):
        share = (times / length_s).clamp(0.0, 1.0)
        for index in range(_MOST_OBJECTS):
            if index < len(clip.radii):
                tracks.append(_track(clip, index, times, share))
            else:
                tracks.append((times * 0 + 0.5, times * 0 + 0.5, times * 0))
    x, y, radius = (
        torch.stack(each).unflatten(0, (-1, _MOST_OBJECTS)) for each in zip(*tracks, strict=True)
    )
    return Paths(x, y, radius)


def _track(clip: Clip, index: int, times: Tensor, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lane, radius = clip.lanes[index], clip.radii[index] + times * 0
    middle_x, middle_y = clip.middle
    fixed = times * 0
    way = clip.extent * (2 * share - 1)
    match clip.scene.motion:
        case "right":
            return middle_x + way, lane + fixed, radius
        case "left":
            return middle_x - way, lane + fixed, radius
        case "down":
            return lane + fixed, middle_y + way, radius
        case "up":
            return lane + fixed, middle_y - way, radius
        case "bounce":
            height = torch.sin(math.pi * (times / BOUNCE_S + clip.phase)).abs()
            return lane + fixed, middle_y + 0.25 - 0.45 * height, radius
        case "orbit":
            angle = 2 * math.pi * (share + clip.phase + index / 2)
            return (
                middle_x + clip.extent * torch.cos(angle),
                middle_y + clip.extent * torch.sin(angle),
                radius,
            )
        case "grow":
            return lane + fixed, middle_y + fixed, radius * (GROW[0] + (GROW[1] - GROW[0]) * share)
        case "shrink":
            return lane + fixed, middle_y + fixed, radius * (GROW[1] - (GROW[1] - GROW[0]) * share)
        case _:
            return lane + fixed, middle_y + fixed, radius
