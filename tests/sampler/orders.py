"""What the samplers of these tests are asked for."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from services.sampler.order import SampleOrder

TOKENS = 5


def order(seed: int = 7, evaluations: int = 2, mode: str = "t2va") -> SampleOrder:
    """A small clip: 641 to 665 packed rows."""
    return SampleOrder(mode, 64, 96, 124, seed, evaluations)


def conditionings(folder: Path) -> dict[str, Path]:
    """A conditioning file of every mode."""
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    text = {
        "prompt_embeds": draw(1, TOKENS, 64),
        "text_token_tags": torch.ones(TOKENS, dtype=torch.long),
    }
    picture = draw(1, 24, 1, 4, 6)
    tensors = {
        "t2va": text,
        "fl2va": {
            **text,
            "keyframe_anchors": torch.tensor([0]),
            "condition_latents.0": picture,
        },
        "ref2va": {
            **text,
            "reference_kinds": torch.tensor([0]),
            "reference_has_audio": torch.tensor([0]),
            "condition_latents.0": picture,
        },
    }
    for mode, made in tensors.items():
        save_file(made, folder / mode)
    return {mode: folder / mode for mode in tensors}
