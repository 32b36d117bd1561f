"""Writes pictures to look at: rows of frames of several clips, one file."""

from pathlib import Path

import torch
from torch import Tensor


def write_sheet(path: Path, rows: list[Tensor]) -> None:
    """Each row a clip (3, F, H, W) in [0, 1], its frames side by side."""
    from PIL import Image

    strips = [row.float().clamp(0, 1).permute(2, 1, 3, 0).flatten(1, 2) for row in rows]
    pixels = (torch.cat(strips).cpu() * 255).round().byte().numpy()
    Image.fromarray(pixels).save(path)
