"""Which attention kernel a transformer uses."""

from typing import Any

import torch
from torch.nn.attention import SDPBackend

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def pick_attention(wanted: str, device: torch.device) -> str:
    """The attention that "auto" means on a device: cuDNN from Hopper on, else torch's choice."""
    if wanted != "auto":
        return wanted
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return "cudnn" if hopper else "native"


def set_attention(transformer: Any, attention: str) -> None:
    """Have diffusers' own forward use an attention.

    The default is named too: diffusers makes the last backend that any model was given the one of
    all models that were given none.
    """
    transformer.set_attention_backend("native" if attention == "native" else f"_native_{attention}")
