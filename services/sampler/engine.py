"""Denoises one clip's latents under a conditioning file.

It runs inside a rank process below the sampler's supervisor and knows neither. The loop itself is
in `denoise`, the torch code; this module imports torch only when it works, so that the supervisor
can import its order.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.checkpoint.components import (
    SAMPLER_COMPONENTS,
    ModelSettings,
    load,
    use_threads,
)
from services.common.work import EngineError, NonFinite, Watch


@dataclass(frozen=True)
class SampleOrder:
    """What to sample: canvas in pixels, frames on the 17n+5 grid, seed of the noise.

    `evaluations` are forwards of the transformer; the model's "inference steps" are one more.
    """

    mode: str
    height: int
    width: int
    frames: int
    seed: int
    evaluations: int


class SamplerEngine:
    """The transformer and its two schedules."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._parts: dict[str, Any] = {}

    def load(self) -> None:
        """Load the transformer and the schedulers, and nothing else of the checkpoint."""
        self._parts = load(self._settings, SAMPLER_COMPONENTS)

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """Write the denoised latents of an order to `output`; returns seconds by phase.

        `output` is a safetensors file with `latents` (1, 24, 5n+2, height/16, width/16) and
        `audio_latents` (2, 32, round(frames / 24 * 40)), both fp32.
        Raises `EngineError` (UNSUPPORTED_MODE, BAD_ORDER, BAD_CONDITIONING), `NonFinite` or
        `Cancelled`, which it checks between evaluations.
        """
        if order.mode != "t2va":
            raise EngineError(
                "UNSUPPORTED_MODE", f"this sampler samples mode t2va, not {order.mode!r}"
            )
        if order.evaluations < 1:
            raise EngineError("BAD_ORDER", f"evaluations are 1 or more, not {order.evaluations}")
        if not 0 <= order.seed < 2**64:
            raise EngineError("BAD_ORDER", f"a seed is 0 to 2^64 - 1, not {order.seed}")
        import torch
        from safetensors.torch import save_file

        from services.sampler.denoise import Layout, Rows, Shape, denoise, draw_noise, unpack

        use_threads(self._settings)
        started = time.perf_counter()
        transformer = self._parts["transformer"]
        patch_size: tuple[int, int, int] = tuple(transformer.config.patch_size)
        shape = Shape.of(order.height, order.width, order.frames, transformer.config)
        prompt_embeds, text_token_tags = self._read(conditioning)
        layout = Layout.of(text_token_tags, shape, patch_size)
        noise = draw_noise(shape, order.seed, patch_size)
        device = transformer.device
        prepared = time.perf_counter()
        watch.report("evaluate", 0, order.evaluations)
        with torch.no_grad():
            rows = denoise(
                transformer,
                (self._parts["scheduler"], self._parts["audio_scheduler"]),
                Rows(noise.video.to(device), noise.audio.to(device)),
                layout,
                prompt_embeds.to(device),
                evaluations=order.evaluations,
                watch=watch,
            )
        latents, audio_latents = unpack(Rows(rows.video.cpu(), rows.audio.cpu()), shape, patch_size)
        evaluated = time.perf_counter()
        save_file({"latents": latents, "audio_latents": audio_latents}, output)
        return {
            "prepare": prepared - started,
            "evaluate": evaluated - prepared,
            "write": time.perf_counter() - evaluated,
        }

    def _read(self, conditioning: Path) -> tuple[Any, Any]:
        """`prompt_embeds` (1, tokens, text_dim) and `text_token_tags` (tokens,), checked."""
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(conditioning)
        except (SafetensorError, OSError) as error:
            raise EngineError("BAD_CONDITIONING", f"not a safetensors file: {error}") from error
        expected = {"prompt_embeds", "text_token_tags"}
        if set(tensors) != expected:
            raise EngineError(
                "BAD_CONDITIONING",
                f"mode t2va takes the tensors {sorted(expected)}, not {sorted(tensors)}",
            )
        embeds, tags = tensors["prompt_embeds"], tensors["text_token_tags"]
        text_dim = self._parts["transformer"].config.text_dim
        if embeds.ndim != 3 or embeds.shape[0] != 1 or embeds.shape[2] != text_dim:
            raise EngineError(
                "BAD_CONDITIONING",
                f"prompt_embeds are (1, tokens, {text_dim}), not {tuple(embeds.shape)}",
            )
        if tags.shape != (embeds.shape[1],) or tags.dtype != torch.long or not tags.numel():
            raise EngineError(
                "BAD_CONDITIONING",
                f"text_token_tags are ({embeds.shape[1]},) int64, one or more, "
                f"not {tuple(tags.shape)} {tags.dtype}",
            )
        if int(tags.min()) < 0 or int(tags.max()) > 2:
            raise EngineError("BAD_CONDITIONING", "text_token_tags are 0, 1 or 2")
        if not bool(torch.isfinite(embeds).all()):
            raise NonFinite("the prompt's embeddings")
        return embeds, tags
