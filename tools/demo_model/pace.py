"""How long and how fast a stage trains."""

import math
from dataclasses import dataclass

import torch

_WARM_UP_STEPS = 200


@dataclass(frozen=True)
class Pace:
    """How long a stage trains: now, and in all of its commands together."""

    minutes: float
    """Of this command."""
    plan_minutes: float
    """Of the stage, which the learning rate follows to its end."""
    steps: int | None = None
    """Instead of minutes: so many steps, for tests and for repeatable runs."""
    eager: bool = False
    """Without torch.compile, whose first step takes a minute or two."""

    def compiles(self, device: torch.device) -> bool:
        """Whether models are compiled on a device."""
        return device.type == "cuda" and not self.eager


@dataclass(frozen=True)
class Recipe:
    """What differs between the trainings of the stages."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    ema: float = 0.998
    clip_norm: float = 1.0
    """Of all gradients together."""
    half: bool = True
    """bf16 autocast on a GPU."""


def rate(share: float, step: int) -> float:
    """Warm-up by steps, then a half cosine by the share of the planned time."""
    warm = min(1.0, (step + 1) / _WARM_UP_STEPS)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share))))
