"""Trains the transformer on all three modes at once, and looks at what it makes of new prompts."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from tools.demo_model import batched, drawing, latents, prompts, readers, sampling, table
from tools.demo_model.attributes import FRAMES, SAMPLE_RATE
from tools.demo_model.batches import Source
from tools.demo_model.loop import Training
from tools.demo_model.models import transformer
from tools.demo_model.pace import Pace, Recipe
from tools.demo_model.sheets import write_sheet
from tools.demo_model.shipping import ship
from tools.tiny_models import untyped

RECIPE = Recipe(learning_rate=1.2e-3, betas=(0.9, 0.99), ema=0.999)
BATCH = 128
_MODES = {
    "t2va": 0.48, "first": 0.06, "last": 0.06, "both": 0.06,
    "image": 0.1, "video": 0.11, "sound": 0.13,
}  # fmt: skip
_MEASURED = 40
_EVALUATIONS = 8


def load_parts(folder: Path, device: torch.device) -> sampling.Models:
    """The finished earlier stages, and a fresh transformer."""
    transformers, diffusers = untyped("transformers"), untyped("diffusers")
    torch.manual_seed(4)
    return sampling.Models(
        encoder=transformers.Qwen3VLForConditionalGeneration.from_pretrained(
            folder / "text", dtype=torch.float32
        )
        .to(device)
        .eval(),
        tokenizer=transformers.Qwen2Tokenizer.from_pretrained(folder / "tokenizer"),
        transformer=fresh().to(device),
        vae=diffusers.AutoencoderKLMiniMaxH3.from_pretrained(folder / "video_vae").to(device),
        audio_vae=diffusers.AutoencoderKLMiniMaxH3Audio.from_pretrained(folder / "audio_vae").to(
            device
        ),
    )


def fresh() -> Any:
    """A transformer whose blocks start as identities and whose answer starts at zero."""
    model = transformer()
    with torch.no_grad():
        for block in model.transformer_blocks:
            block.adaln_proj.linear.weight.zero_()
            block.adaln_proj.linear.bias.zero_()
        for layer in (model.norm_out.linear, model.proj_out, model.audio_proj_out):
            layer.weight.zero_()
            layer.bias.zero_()
    return model


def train(folder: Path, pace: Pace, device: torch.device) -> None:
    """The transformer stage; its averaged weights in `folder`/transformer."""
    models = load_parts(folder, device)
    cached = latents.load(folder)
    clips = cached.clips()
    source = Source(cached, clips, device)
    groups = table.build(models.encoder, models.tokenizer, clips)
    training = Training("transformer", models.transformer, RECIPE, folder)
    training.resume()
    block = batched.apply_block
    if pace.compiles(device):
        # Lengths of text differ from batch to batch: one graph must serve them all.
        block = torch.compile(batched.apply_block, dynamic=True)
    names, weights = list(_MODES), list(_MODES.values())

    def loss_of(step: int) -> dict[str, Tensor]:
        draw = random.Random(step + 5_000_000)
        mode = draw.choices(names, weights)[0]
        batch = source.batch(*table.draw(groups[mode], BATCH, draw))
        video, audio = batched.forward(
            models.transformer,
            batch.where,
            batch.video,
            batch.audio,
            batch.text,
            batch.times,
            block,
        )
        seen = mse_loss(video[:, batch.where.kept_video :].float(), batch.wanted_video)
        heard = mse_loss(audio[:, batch.where.kept_audio :].float(), batch.wanted_audio)
        return {"loss": seen + heard, f"video_{mode}": seen, f"audio_{mode}": heard}

    training.run(loss_of, pace, lambda averaged: ship(averaged, folder / "transformer"))
    training.use_average()
    ship(models.transformer, folder / "transformer")
    training.log(**measure(models, source, folder))


def measure(models: sampling.Models, source: Source, folder: Path) -> dict[str, Any]:
    """Shares of held-out prompts whose colour, shape, motion and sound came out, in t2va."""
    for model in (models.transformer, models.vae, models.audio_vae):
        model.eval()
    draw = random.Random(6)
    torch.manual_seed(6)
    rows, readings = [], []
    for number in range(_MEASURED):
        scene = drawing.draw_held_out_scene(draw, objects=2 if number % 4 == 3 else 1)
        prompt = prompts.say(scene, draw, prompts.LANGUAGES[number % 2])
        pictures, wave = sampling.generate(models, source, prompt, _EVALUATIONS)
        pixels = (pictures * 255).round().byte().permute(1, 2, 3, 0).cpu().numpy()[:FRAMES]
        sound = wave.double().cpu().numpy()
        readings.append((len(scene.objects), readers.read(pixels, sound, SAMPLE_RATE, scene)))
        if number < 12:
            rows.append(pictures[:, ::15])
    write_sheet(folder / "transformer.png", rows)
    found: dict[str, Any] = {}
    for objects in (1, 2):
        for name in ("colour", "shape", "motion", "sound", "all_four"):
            values = [getattr(each, name) for count, each in readings if count == objects]
            found[f"{name}_{objects}"] = round(float(np.mean(values)), 3) if values else None
    pans = [each.pan for _, each in readings if each.pan is not None]
    return {**found, "pan": round(float(np.mean(pans)), 3) if pans else None}
