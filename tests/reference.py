"""The same clip in one process, by diffusers alone: what all of ours is compared with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import MiniMaxH3Blocks
from diffusers.modular_pipelines.modular_pipeline import ModularPipeline

from services.common.conditioning import (
    AUDIO_CONDITION_LATENTS,
    CONDITION_LATENTS,
    KEYFRAME_ANCHORS,
    REFERENCE_KINDS,
    listed,
)

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


class Latents:
    """diffusers' whole pipeline of every mode up to the latents, and the conditioning it made."""

    def __init__(self, checkpoint: Path) -> None:
        blocks: Any = cast("Any", MiniMaxH3Blocks)()
        blocks.sub_blocks.pop("decode")
        self._pipeline = blocks.init_pipeline(str(checkpoint))
        self._pipeline.load_components(dtype=torch.float32)
        self._pipeline.set_progress_bar_config(disable=True)

    def make(
        self, size: Mapping[str, int], seed: int, evaluations: int, threads: int, **inputs: Any
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Latents, and the tensors of the conditioning file.

        `inputs` choose the mode: image or last_image, or references; and the prompt.
        """
        torch.set_num_threads(threads)
        names = ["prompt_embeds", "text_token_tags", "keyframe_anchors", "normalized_references"]
        names += [CONDITION_LATENTS, AUDIO_CONDITION_LATENTS]
        state = self._pipeline(
            height=size["height"],
            width=size["width"],
            num_frames=size["frames"],
            num_inference_steps=evaluations + 1,
            generator=torch.Generator("cpu").manual_seed(seed),
            **inputs,
        )
        latents = {name: state.get(name) for name in ("latents", "audio_latents")}
        return latents, conditioning_tensors({name: state.get(name) for name in names})


def conditioning_tensors(made: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a conditioning file, out of the state of diffusers' encoder blocks."""
    tensors = {name: made[name].contiguous() for name in ("prompt_embeds", "text_token_tags")}
    for name in (CONDITION_LATENTS, AUDIO_CONDITION_LATENTS):
        for place, tensor in enumerate(made[name] or []):
            tensors[listed(name, place)] = tensor.contiguous()
    if made["keyframe_anchors"]:
        codes = [KEYFRAME_ANCHORS.index(anchor) for anchor in made["keyframe_anchors"]]
        tensors["keyframe_anchors"] = torch.tensor(codes)
    if made["normalized_references"]:
        references = made["normalized_references"]
        kinds = [REFERENCE_KINDS.index(reference.kind) for reference in references]
        tensors["reference_kinds"] = torch.tensor(kinds)
        tensors["reference_has_audio"] = torch.tensor([int(one.has_audio) for one in references])
    return tensors
