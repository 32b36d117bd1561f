"""The sound of a clip before it is panned."""

import math

import torch
from torch import Tensor

from tools.demo_model.attributes import (
    BEEP_HZ,
    BEEP_S,
    BEEPS_PER_S,
    BOUNCE_S,
    PEAK,
    SAMPLE_RATE,
    SAMPLES,
    TONES_HZ,
)
from tools.demo_model.drawing import Clip

_WASH_TAPS = 12  # samples of the mean that takes the hiss off a noise wash
_WASH_S = 2.0  # seconds from one swell of a wash to the next


def mono(clip: Clip, device: torch.device | str = "cpu") -> Tensor:
    """(165600,) fp32 at 32 kHz, at most `PEAK` loud but for rare peaks of noise."""
    seconds = torch.arange(SAMPLES, device=device, dtype=torch.float64) / SAMPLE_RATE
    sound = clip.scene.sound
    if sound in TONES_HZ:
        wave = torch.sin(2 * math.pi * TONES_HZ[sound] * seconds)
    elif sound == "beeps":
        since = torch.remainder(seconds - first_beep_s(clip), beep_every_s(clip))
        swell = torch.where(since < BEEP_S, torch.sin(math.pi * since / BEEP_S), 0.0)
        wave = torch.sin(2 * math.pi * BEEP_HZ * seconds) * swell.clamp(min=0.0).sqrt()
    elif sound == "wash":
        generator = torch.Generator().manual_seed(clip.noise_seed)
        noise = torch.randn(SAMPLES + _WASH_TAPS - 1, generator=generator).to(device)
        smooth = noise.unfold(0, _WASH_TAPS, 1).mean(-1) * math.sqrt(_WASH_TAPS)
        wave = smooth * 0.4 * (0.75 + 0.25 * torch.sin(2 * math.pi * seconds / _WASH_S))
    else:
        wave = torch.zeros_like(seconds)
    return (wave * PEAK).to(torch.float32)


def beep_every_s(clip: Clip) -> float:
    """Seconds between beeps: one a touch of the floor when bouncing, else a steady rate."""
    return BOUNCE_S if clip.scene.motion == "bounce" else 1 / BEEPS_PER_S


def first_beep_s(clip: Clip) -> float:
    """Seconds to the first beep from the start, which may be one cut short by it."""
    return -BOUNCE_S * clip.phase if clip.scene.motion == "bounce" else 0.0
