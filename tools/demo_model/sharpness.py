"""Losses that keep outlines sharp and the decoder's 16-pixel patches invisible."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d

_SCALES = (1, 2, 4)
_PATCH = 16


def slope_loss(made: Tensor, wanted: Tensor, border: float) -> Tensor:
    """Mean absolute difference of slopes at three scales, those across patch borders `border` fold.

    Both are (B, 3, F, H, W).
    """
    total = torch.zeros((), device=made.device)
    wrong = made - wanted  # slopes are linear: the slope of the difference is their difference
    for scale in _SCALES:
        coarse = avg_pool3d(wrong, (1, scale, scale)) if scale > 1 else wrong
        every = _PATCH // scale
        for axis in (-2, -1):
            slope = coarse.diff(dim=axis).abs()
            weight = torch.ones(slope.shape[axis], device=made.device)
            weight[every - 1 :: every] = border
            weight = weight / weight.mean()
            total = total + (slope * (weight[:, None] if axis == -2 else weight)).mean()
    return total / (2 * len(_SCALES))


def excess_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """Mean slope across the patch borders beyond the wanted one's, of (B, 3, F, H, W) both.

    A grid is just that. A decoder unsure of an outline beside a border gives steps that are too
    steep or too faint: both weigh the same in `slope_loss`, but only the steep ones are seen.
    """
    total = torch.zeros((), device=made.device)
    for axis in (-2, -1):
        steep, right = (each.diff(dim=axis).abs().movedim(axis, 0) for each in (made, wanted))
        total = total + (steep - right)[_PATCH - 1 :: _PATCH].clamp(min=0).mean()
    return total / 2


def border_slopes(video: Tensor) -> tuple[float, float]:
    """Mean slope across the 16-pixel borders and elsewhere, of (..., H, W)."""
    borders, others = [], []
    for axis in (-2, -1):
        slope = video.diff(dim=axis).abs().movedim(axis, 0).flatten(1).mean(dim=1)
        on_border = torch.zeros(len(slope), dtype=torch.bool, device=video.device)
        on_border[_PATCH - 1 :: _PATCH] = True
        borders.append(slope[on_border])
        others.append(slope[~on_border])
    return float(torch.cat(borders).mean()), float(torch.cat(others).mean())


def border_ratio(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """How much more the pictures slope across the patches' borders than the wanted ones do.

    Slopes elsewhere are divided out of both, and all videos (..., H, W) count together: one that
    rests has its outline on the borders or off them. 1 without a grid.
    """
    ratios = []
    for videos in (made, wanted):
        slopes = torch.tensor([border_slopes(each) for each in videos]).mean(dim=0)
        ratios.append(float(slopes[0] / slopes[1]))
    return ratios[0] / ratios[1]
