"""Turns a prompt into the conditioning that the sampler denoises under.

The output is one safetensors file whose tensors have diffusers' names:

- `prompt_embeds` (1, tokens, text_dim), in the text encoder's dtype
- `text_token_tags` (tokens,) int64, the modality of every row

Modes with images, videos or sounds will add `condition_latents.0`, `condition_latents.1` ... and
`audio_condition_latents.0` ...: a list is its name, a dot and the place in packed order.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.checkpoint.components import (
    ENCODER_COMPONENTS,
    ModelSettings,
    load,
    use_threads,
)
from services.common.work import EngineError, NonFinite, Watch

# MiniMax-H3 reads `hidden_states[50]` of its conditioner (diffusers, MiniMaxH3ModularPipeline).
_TEXT_LAYER = 50
_TEXT_TAG = 1  # the row is text: 0 is video, 2 is audio (same source)


@dataclass(frozen=True)
class EncodeOrder:
    """What to encode. The canvas (pixels) and the frames belong to the clip that will be made."""

    mode: str
    prompt: str
    height: int
    width: int
    frames: int


class EncoderEngine:
    """The text encoder and its tokenizer."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._parts: dict[str, Any] = {}

    def load(self) -> None:
        """Load the text encoder, tokenizer and processor, and nothing else of the checkpoint."""
        self._parts = load(self._settings, ENCODER_COMPONENTS)

    def count_tokens(self, prompt: str) -> int:
        """The text rows that `encode` will make of a prompt in mode t2va.

        Counted are the tokens of the prompt verbatim, by the encoder's own tokenizer: no chat
        template, no special tokens. A prompt that spells a special token is one token of it.
        """
        return len(self._token_ids(prompt))

    def encode(self, order: EncodeOrder, output: Path, watch: Watch) -> dict[str, float]:
        """Write the conditioning of an order to `output`; returns seconds by phase.

        Raises `EngineError` (UNSUPPORTED_MODE, EMPTY_PROMPT, PROMPT_TOO_LONG), `NonFinite` or
        `Cancelled`.
        """
        if order.mode != "t2va":
            raise EngineError(
                "UNSUPPORTED_MODE", f"this encoder encodes mode t2va, not {order.mode!r}"
            )
        import torch
        from diffusers.modular_pipelines.minimax_h3.encoders import get_qwen3vl_prompt_embeds
        from safetensors.torch import save_file

        use_threads(self._settings)
        watch.raise_if_cancelled()
        started = time.perf_counter()
        watch.report("encode_text", 0, 1)
        token_ids = self._token_ids(order.prompt)
        if not token_ids:
            raise EngineError("EMPTY_PROMPT", "the prompt has no tokens: say what the clip shows")
        text_encoder = self._parts["text_encoder"]
        limit = min(
            text_encoder.config.text_config.max_position_embeddings,
            self._parts["tokenizer"].model_max_length,
        )
        if len(token_ids) > limit:
            raise EngineError(
                "PROMPT_TOO_LONG", f"the prompt has {len(token_ids)} tokens, and {limit} are read"
            )
        with torch.no_grad():
            prompt_embeds = get_qwen3vl_prompt_embeds(
                text_encoder,
                self._parts["processor"],
                token_ids,
                text_encoder_layer=_TEXT_LAYER,
                device=text_encoder.device,
                dtype=text_encoder.dtype,
            )  # (1, tokens, text_dim)
        if not bool(torch.isfinite(prompt_embeds).all()):
            raise NonFinite("the prompt's embeddings")
        watch.report("encode_text", 1, 1)
        watch.raise_if_cancelled()
        encoded = time.perf_counter()
        save_file(
            {
                "prompt_embeds": prompt_embeds.cpu().contiguous(),
                "text_token_tags": torch.full((len(token_ids),), _TEXT_TAG, dtype=torch.long),
            },
            output,
            metadata={"mode": order.mode},
        )
        return {"encode_text": encoded - started, "write": time.perf_counter() - encoded}

    def _token_ids(self, prompt: str) -> list[int]:
        ids: list[int] = self._parts["tokenizer"](prompt, add_special_tokens=False)["input_ids"]
        return ids
