"""The smallest stretch that the video VAE can be trained on, without the class's idle work.

A decoder's window reads 7 latents: a chunk of 17 frames and the first 5 frames of the next one.
The class encodes that next chunk padded to 17 frames and drops what the padding gave; causal
convolutions give the same two latents from the 5 frames alone, at two thirds of the cost.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

FRAMES = 22
_CHUNK = 17
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)

Network = Callable[[Tensor], Tensor]


def to_model(video: Tensor) -> Tensor:
    """Pictures (B, 3, F, H, W) in [-1, 1] as the video VAE takes them."""
    mean, std = (
        torch.tensor(each, device=video.device).view(1, 3, 1, 1, 1) for each in (_MEAN, _STD)
    )
    return ((video + 1) / 2 - mean) / std


def from_model(video: Tensor) -> Tensor:
    """What the video VAE gives as pictures in [0, 1]."""
    mean, std = (
        torch.tensor(each, device=video.device).view(1, 3, 1, 1, 1) for each in (_MEAN, _STD)
    )
    return (video.float() * std + mean).clamp(0, 1)


def encode(vae: Any, video: Tensor, encoder: Network | None = None) -> Tensor:
    """Moments (B, 48, L, H/16, W/16) of frames that start a chunk and end in one's first five.

    Equal to the class's for 17 n + 5 frames; `encoder` may be a compiled `vae.encoder`.
    """
    network = vae.encoder if encoder is None else encoder
    parts = [
        vae.quant_conv(network(video[:, :, start : start + _CHUNK]))
        for start in range(0, video.shape[2], _CHUNK)
    ]
    return torch.cat(parts, dim=2)


def decode(vae: Any, latents: Tensor, decoder: Network | None = None) -> Tensor:
    """22 frames (B, 3, 22, H, W) of one window of 7 latents, before any cross-fade."""
    network = vae.decoder if decoder is None else decoder
    window = network(vae.post_quant_conv(latents))
    # Every chunk's first latent stands for one frame, which is the last of the four painted.
    return torch.cat((window[:, :, 3:20], window[:, :, 23:28]), dim=2)
