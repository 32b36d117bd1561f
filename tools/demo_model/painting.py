"""Gives the video VAE's decoder a good brush to start with.

Its last layer paints 4 frames of 16x16 pixels from one linear map. The best such map for given
clips is known without training: the principal components of their patches. Started there, a
training learns what to paint instead of how to.
"""

import random
from typing import Any

import torch
from torch import Tensor

from tools.demo_model import units
from tools.demo_model.drawing import draw_clips
from tools.demo_model.world import render_video

_BATCH = 32
_FRAMES, _PATCH = 4, 16
_LEAST = 1e-4  # of a component's variance, below which its scale is kept up
_SEED = 6_000_000


@torch.no_grad()
def start(vae: Any, batches: int, device: torch.device) -> None:
    """Set the decoder's last layer from the patches of `batches` times 32 training clips."""
    layer = vae.decoder.proj_out
    inputs = layer.in_features
    total = torch.zeros(layer.out_features, dtype=torch.float64, device=device)
    squares = torch.zeros(
        layer.out_features, layer.out_features, dtype=torch.float64, device=device
    )
    count = 0
    for number in range(batches):
        patches = _patches(number, device)
        total += patches.double().sum(0)
        squares += (patches.T @ patches).double()
        count += len(patches)
    mean = total / count
    variances, components = torch.linalg.eigh(squares / count - torch.outer(mean, mean))
    scale = variances[-inputs:].clamp(min=_LEAST).sqrt()
    # The layer's inputs are normalized: each of them moves its component by one deviation.
    layer.weight.copy_(components[:, -inputs:] * scale)
    layer.bias.copy_(mean)


def _patches(number: int, device: torch.device) -> Tensor:
    """(N, 3072) in the model's pixel convention, in the order that the layer paints."""
    source = random.Random(_SEED + number)
    clips = draw_clips(_SEED + number, _BATCH)
    # As a latent sees them: four frames from the second on of one of a clip's chunks.
    starts = [17 * source.randrange(7) + 1 + _FRAMES * source.randrange(4) for _ in clips]
    frames = torch.tensor(starts, device=device)[:, None] + torch.arange(_FRAMES, device=device)
    video = units.to_model(render_video(clips, frames))
    side = video.shape[-1] // _PATCH
    cut = video.reshape(len(clips), 3, _FRAMES, side, _PATCH, side, _PATCH)
    return cut.permute(0, 3, 5, 1, 2, 4, 6).reshape(-1, 3 * _FRAMES * _PATCH**2)
