"""The same clip in one process, by diffusers alone: what all of ours is compared with."""

from pathlib import Path
from typing import Any

import torch
from diffusers.modular_pipelines.modular_pipeline import ModularPipeline

SIZE = {"height": 128, "width": 128, "frames": 124}


def generate(
    checkpoint: Path, prompt: str, seed: int, evaluations: int, threads: int
) -> dict[str, Any]:
    """Tensors, images and waveform of diffusers' own pipeline. Bits depend on `threads`."""
    torch.set_num_threads(threads)
    pipeline = ModularPipeline.from_pretrained(str(checkpoint), workflow="t2va")
    pipeline.load_components(dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    whole: dict[str, Any] = pipeline(
        prompt=prompt,
        height=SIZE["height"],
        width=SIZE["width"],
        num_frames=SIZE["frames"],
        num_inference_steps=evaluations + 1,
        generator=torch.Generator("cpu").manual_seed(seed),
        output_type="pil",
        output=["latents", "audio_latents", "videos", "audio", "prompt_embeds"],
    )
    return whole
