"""Trains the video VAE on rendered stretches of 22 frames, and measures its round trip."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss

from tools.demo_model import drawing, painting, readers, units
from tools.demo_model.attributes import FRAMES, SAMPLE_RATE
from tools.demo_model.loop import Training
from tools.demo_model.models import video_vae
from tools.demo_model.pace import Pace, Recipe
from tools.demo_model.sharpness import border_ratio, slope_loss
from tools.demo_model.sheets import write_sheet
from tools.demo_model.shipping import ship
from tools.demo_model.world import render_audio, render_video

RECIPE = Recipe(learning_rate=1.2e-3, ema=0.998)
BATCH = 16
_CHUNKS = 7  # stretches of 22 frames that start one of a clip's chunks
_KL = 1e-4
_START_SCALE = 0.3  # of the decoder's layers, whose zeros of a fresh model learn slowly
_PAINTED = 24  # batches of 32 clips that the decoder's last layer is started from
_MEASURED = 60
LEAST_SHAPES = 0.98  # of a round trip's shapes that must still be read
_ROUND_TRIP = "video_vae.json"


def train(folder: Path, pace: Pace, device: torch.device) -> None:
    """The video VAE stage; its averaged weights in `folder`/video_vae."""
    torch.manual_seed(2)
    vae = video_vae().to(device)
    with torch.no_grad():
        for block in vae.decoder.transformer_blocks:
            block.scale1.fill_(_START_SCALE)
            block.scale2.fill_(_START_SCALE)
        vae.decoder.register_tokens.normal_(std=0.1)
    painting.start(vae, _PAINTED if device.type == "cuda" else 1, device)
    training = Training("video_vae", vae, RECIPE, folder)
    training.resume()
    compiled = pace.compiles(device)
    encoder = torch.compile(vae.encoder, dynamic=False) if compiled else vae.encoder
    decoder = torch.compile(vae.decoder, dynamic=False) if compiled else vae.decoder

    def loss_of(step: int) -> dict[str, Tensor]:
        video = units.to_model(draw_stretch(step + 2_000_000, BATCH, device))
        mean, logvar = units.encode(vae, video, encoder).float().chunk(2, dim=1)
        logvar = logvar.clamp(-30.0, 20.0)
        latents = mean + torch.exp(logvar / 2) * torch.randn_like(mean)
        found = losses(units.decode(vae, latents, decoder).float(), video)
        kl = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).mean()
        return {**found, "loss": found["loss"] + _KL * kl, "kl": kl}

    training.run(loss_of, pace)
    training.use_average()
    ship(vae, folder / "video_vae")
    training.log(**measure(vae, folder, device))


def require_sharp(folder: Path) -> None:
    """Stop a run whose pictures lose shapes in the VAE: no denoiser could bring them back."""
    path = folder / _ROUND_TRIP
    shapes = json.loads(path.read_text())["shape"] if path.exists() else 0.0
    if shapes < LEAST_SHAPES:
        raise SystemExit(
            f"the video VAE's round trip shows {shapes:.0%} of the shapes: train it on, "
            "or go on with --blurred"
        )


def losses(
    made: Tensor, video: Tensor, border: float = 3.0, steepness: float = 0.5
) -> dict[str, Tensor]:
    """What is wrong with decoded pictures, (B, 3, F, H, W) both.

    `border` is that of `slope_loss`, `steepness` the weight of it all.
    """
    wrong = mse_loss(made, video)
    slope = slope_loss(made, video, border)
    loss = wrong + 0.25 * l1_loss(made, video) + steepness * slope
    # dB of pictures in [0, 1]: 0.226 is the mean of the convention's deviations.
    return {"loss": loss, "psnr": -10 * torch.log10(wrong * 0.226**2), "slope": slope}


def draw_stretch(seed: int, batch: int, device: torch.device) -> Tensor:
    """(batch, 3, 22, 128, 128) in [-1, 1] of fresh training clips, each at a random chunk."""
    source = random.Random(seed)
    clips = drawing.draw_clips(seed, batch)
    starts = [17 * source.randrange(_CHUNKS) for _ in clips]
    frames = torch.tensor(starts, device=device)[:, None] + torch.arange(22, device=device)
    return render_video(clips, frames.clamp(max=FRAMES - 1))


@torch.no_grad()
def measure(vae: Any, folder: Path, device: torch.device) -> dict[str, Any]:
    """The class's own round trip of whole held-out clips: dB, grid, what is still read.

    Left in `folder` too, with a sheet of pictures.
    """
    source = random.Random(3)
    vae.eval()
    psnr, rows, readings = [], [], []
    pairs: list[tuple[Tensor, Tensor]] = []
    for number in range(_MEASURED):
        scene = drawing.draw_held_out_scene(source, objects=1 + number % 2)
        clip = drawing.place(scene, source)
        video = render_video([clip], torch.arange(FRAMES, device=device))
        made = units.from_model(
            vae.decode(vae.encode(units.to_model(video)).latent_dist.mode()).sample
        )
        wanted = (video + 1) / 2
        psnr.append(float(-10 * torch.log10(mse_loss(made, wanted))))
        pairs.append((made, wanted))
        pixels = (made[0] * 255).round().byte().permute(1, 2, 3, 0).cpu().numpy()
        audio = render_audio([clip])[0].double().numpy()
        readings.append(readers.read(pixels, audio, SAMPLE_RATE, scene))
        if number < 6:
            rows += [wanted[0, :, ::18], made[0, :, ::18]]
    write_sheet(folder / "video_vae.png", rows)
    read = {
        name: round(float(np.mean([getattr(each, name) for each in readings])), 3)
        for name in ("colour", "shape", "motion")
    }
    found = {
        "round_trip_db": round(float(np.mean(psnr)), 2),
        "worst_db": round(min(psnr), 2),
        "border_ratio": round(border_ratio(*zip(*pairs, strict=True)), 3),
        **read,
    }
    (folder / _ROUND_TRIP).write_text(json.dumps(found))
    return found
