"""Reads the objects of decoded frames: colour, shape and track, with no network involved."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tools.demo_model.attributes import COLOURS, SHAPES
from tools.demo_model.heaps import FAINT, LEAST_PIXELS, Floats, split
from tools.demo_model.world import outline

_BRIGHT = 0.5  # an object has a channel above it, no ground has
_SHAPE_FRAMES = 12  # of the frames in which an object is largest


@dataclass(frozen=True)
class Seen:
    """One object as it was read."""

    colour: str
    shape: str
    x: Floats
    """(F,) pixels; NaN where the object was not found."""
    y: Floats
    """(F,) pixels."""
    area: Floats
    """(F,) pixels."""


def read_objects(frames: NDArray[np.uint8], count: int) -> list[Seen]:
    """The `count` (1 or 2) objects of frames (F, H, W, 3), the upper or left one first.

    Empty when they are not to be found in most frames.
    """
    pictures = frames.astype(np.float64) / 255
    cover = np.clip((pictures.max(axis=-1) - 0.3) / (2 * (_BRIGHT - 0.3)), 0.0, 1.0)
    seen = []
    for masks in split(cover, count):
        track = _moments(masks)
        if np.isnan(track[:, 0]).mean() > 0.2:
            return []
        largest = np.argsort(np.nan_to_num(track[:, 2]))[-_SHAPE_FRAMES:]
        seen.append(
            Seen(
                colour=_colour(pictures[largest], masks[largest]),
                shape=_shape(masks[largest], track[largest]),
                x=track[:, 0],
                y=track[:, 1],
                area=track[:, 2],
            )
        )
    return seen


def _moments(masks: Floats) -> Floats:
    """x, y and area (F, 3) of masks (F, H, W); NaN and 0 where there is too little to see."""
    strong = np.where(masks > FAINT, masks, 0.0)
    area = strong.sum(axis=(1, 2))
    x = (strong.sum(axis=1) * np.arange(masks.shape[2])).sum(axis=1)
    y = (strong.sum(axis=2) * np.arange(masks.shape[1])).sum(axis=1)
    found = area >= LEAST_PIXELS
    divisor = np.where(found, area, np.nan)
    return np.stack((x / divisor, y / divisor, np.where(found, area, 0.0)), axis=-1)


def _colour(pictures: Floats, masks: Floats) -> str:
    inside = pictures[masks > 0.9]
    if not len(inside):
        inside = pictures[masks > 0.5]
    if not len(inside):
        return ""
    median = np.median(inside, axis=0)
    return min(
        COLOURS, key=lambda name: float(np.abs(np.array(COLOURS[name]) / 255 - median).sum())
    )


def _shape(masks: Floats, track: Floats) -> str:
    """The shape whose outline, at the same place and area, covers most nearly the same pixels."""
    wrong = dict.fromkeys(SHAPES, 0.0)
    for mask, (x, y, area) in zip(masks, track, strict=True):
        if not area:
            continue
        row, column = torch.from_numpy(np.indices(mask.shape).astype(np.float64))
        for shape in SHAPES:
            radius = torch.tensor(_radius_of(shape, area))
            drawn = _template(shape, row, column, (x, y), radius)
            wrong[shape] += float(np.abs(drawn - (mask > 0.5)).sum() / area)
    return min(wrong, key=lambda shape: wrong[shape])


def _template(
    shape: str,
    row: torch.Tensor,
    column: torch.Tensor,
    at: tuple[float, float],
    radius: torch.Tensor,
) -> Floats:
    """The hard cover of a shape whose centre of area, not its origin, is at `at`."""
    # Only a triangle's could differ, and its origin is its centroid too.
    inside: Floats = (outline(shape, column - at[0], row - at[1], radius) <= 0).double().numpy()
    return inside


def _radius_of(shape: str, area: float) -> float:
    """The radius at which a shape has an area, both in pixels."""
    return float((area / _UNIT_AREAS[shape]) ** 0.5)


def _unit_area(shape: str) -> float:
    at = torch.linspace(-2, 2, 801, dtype=torch.float64)
    row, column = torch.meshgrid(at, at, indexing="ij")
    return float((outline(shape, column, row, torch.tensor(1.0)) <= 0).double().mean() * 16)


_UNIT_AREAS = {shape: _unit_area(shape) for shape in SHAPES}
