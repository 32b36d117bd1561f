"""The latents of many rendered clips, made once: what the denoiser is trained on."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.demo_model import units
from tools.demo_model.attributes import FRAMES
from tools.demo_model.drawing import Clip, draw_clips
from tools.demo_model.world import render_audio, render_video
from tools.tiny_models import untyped

SEED = 4_000_000
_BATCH = 32
# The posterior of a channel that says nothing is the prior, of deviation 1, around a constant mean.
# Scaled by its own tiny spread that mean would be noise to learn, and a sampled condition huge.
_LEAST_SPREAD = 0.15
_CHANNEL_AXES = {5: (0, 2, 3, 4), 4: (0, 1, 3)}


@dataclass
class Latents:
    """Raw latents of the clips `draw_clips(SEED + part, _BATCH)` of each part, fp16, in order."""

    video: Tensor
    """(N, 24, 37, 8, 8), posterior means."""
    first: Tensor
    """(N, 24, 8, 8), log variances of the first latent frame, which is the first picture's."""
    last: Tensor
    """(N, 48, 8, 8), mean and log variance of the last picture encoded alone."""
    audio: Tensor
    """(N, 2, 32, 207), posterior means."""

    def clips(self) -> list[Clip]:
        """The clips, drawn again from their seeds."""
        return [clip for part in range(len(self.video) // _BATCH) for clip in clips_of(part)]

    def statistics(self) -> dict[str, list[float]]:
        """Mean and standard deviation of every channel, for the configs of both VAEs."""
        found = {}
        for name, latents in (("video", self.video), ("audio", self.audio)):
            axes = _CHANNEL_AXES[latents.ndim]
            some = latents[:4096].float()
            found[f"{name}_mean"] = some.mean(axes).tolist()
            found[f"{name}_std"] = some.std(axes).clamp(min=_LEAST_SPREAD).tolist()
        return found


def clips_of(part: int) -> list[Clip]:
    """The clips of one part."""
    return draw_clips(SEED + part, _BATCH)


def make(folder: Path, minutes: float, most: int, device: torch.device) -> Latents:
    """The latents stage: add parts to `folder`/latents.pt until time or `most` clips are spent.

    A change of the VAEs makes old latents worthless: delete the file then.
    """
    diffusers = untyped("diffusers")
    vae = diffusers.AutoencoderKLMiniMaxH3.from_pretrained(folder / "video_vae").to(device).eval()
    audio_vae = diffusers.AutoencoderKLMiniMaxH3Audio.from_pretrained(folder / "audio_vae")
    audio_vae = audio_vae.to(device).eval()
    path = folder / "latents.pt"
    parts: list[Latents] = [load(folder)] if path.exists() else []
    done = len(parts[0].video) // _BATCH if parts else 0
    began = time.monotonic()
    while time.monotonic() - began < minutes * 60 and done * _BATCH < most:
        parts.append(_part(vae, audio_vae, clips_of(done), device))
        done += 1
    whole = Latents(*(torch.cat([getattr(p, name) for p in parts]) for name in _NAMES))
    torch.save({name: getattr(whole, name) for name in _NAMES}, path)
    (folder / "statistics.json").write_text(json.dumps(whole.statistics(), indent=2) + "\n")
    print(f"latents: {len(whole.video)} clips in {time.monotonic() - began:.0f} s", flush=True)
    return whole


def load(folder: Path) -> Latents:
    """What `make` left."""
    saved: dict[str, Tensor] = torch.load(folder / "latents.pt", map_location="cpu")
    return Latents(**saved)


_NAMES = ("video", "first", "last", "audio")


@torch.no_grad()
def _part(vae: Any, audio_vae: Any, clips: list[Clip], device: torch.device) -> Latents:
    video = units.to_model(render_video(clips, torch.arange(FRAMES, device=device)))
    # fp16 keeps as many bits of a product as TF32 does, and halves what memory has to move.
    with torch.autocast("cuda", torch.float16, enabled=device.type == "cuda"):
        mean, logvar = units.encode(vae, video).chunk(2, dim=1)
        last = units.encode(vae, video[:, :, -1:].contiguous())[:, :, 0]
    wave = render_audio(clips, device).flatten(0, 1)[:, None]
    sound = audio_vae.encode(wave).latent_dist.mode().unflatten(0, (-1, 2))
    kept = (mean, logvar[:, :, 0], last, sound)
    return Latents(*(each.to("cpu", torch.float16) for each in kept))
