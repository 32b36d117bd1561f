"""The transformer as fast as one card runs it: its products as they are, fused passes between them.

The weights are diffusers' model's, untouched; the arithmetic is its forward's, in other pieces. Two
things of a run do not change between its evaluations and are computed once: the text rows and the
rotary table. A third is known before: the modulations (see `modulation`).
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

from services.sampler.fused.attention import BACKENDS
from services.sampler.fused.kernels import (
    Modulation,
    add_norm_modulate,
    gate_silu,
    norm_modulate,
    norm_rotate,
)
from services.sampler.fused.modulation import Tables
from services.sampler.fused.sharing import Sharing, Whole
from services.sampler.loop.denoise import Evaluate
from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence


class Accelerated:
    """A transformer that is evaluated through `begin`.

    `share` gives, for a number of rows, how they are shared with the other ranks of a sequence.
    """

    def __init__(
        self, transformer: Any, attention: str, share: Callable[[int], Sharing] = Whole
    ) -> None:
        self._model = transformer
        self._share = share
        self._backend = BACKENDS.get(attention)
        self.config = transformer.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._model.device
        return device

    def begin(
        self, sequence: Sequence, schedule: Schedule, prompt_embeds: torch.Tensor
    ) -> Evaluate:
        """The evaluations of one run; all that it remembers goes with the returned function."""
        model = self._model
        share = self._share(sequence.length)
        placed = sequence.to(self.device)
        dtype = model.context_embedder.weight.dtype
        text = model.token_refiner(model.context_embedder(prompt_embeds.to(dtype)))[0]
        # Two of (rows, turning channels).
        rotary = tuple(share.part(one) for one in model.rope(placed["position_ids"]))
        tables = Tables(model, sequence, schedule, share.part)

        def evaluate(
            index: int, video: torch.Tensor, audio: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = share.part(_enter(model, text, video, audio, placed))
            with sdpa_kernel(self._backend) if self._backend else nullcontext():
                hidden = self._through_blocks(hidden, tables, index, rotary, share)
            return _leave(model, hidden, placed, share)

        return evaluate

    def _through_blocks(
        self,
        hidden: torch.Tensor,
        tables: Tables,
        index: int,
        rotary: tuple[torch.Tensor, ...],
        share: Sharing,
    ) -> torch.Tensor:
        """This rank's rows (rows, hidden) behind the last norm."""
        blocks = self._model.transformer_blocks
        made, last = tables.of(index)
        # What norms and modulates before each attention, and behind the last block.
        attending = [
            (block.norm1, Modulation(table, tables.modulations, 0, 1, 2))
            for block, table in zip(blocks, made, strict=True)
        ]
        attending.append((self._model.norm_out.norm, Modulation(last, tables.kinds)))
        norm, modulation = attending[0]
        normed = norm_modulate(hidden, norm.weight, norm.eps, modulation)
        for block, table, (_, gate), (norm, modulation) in zip(
            blocks, made, attending[:-1], attending[1:], strict=True
        ):
            branch = _attend(block.attn, normed, rotary, share)
            feeding = Modulation(table, tables.modulations, 3, 4, 5)
            hidden, normed = add_norm_modulate(
                hidden, branch, gate, block.norm2.weight, block.norm2.eps, feeding
            )
            branch = _feed(block.ff, normed)
            hidden, normed = add_norm_modulate(
                hidden, branch, feeding, norm.weight, norm.eps, modulation
            )
        return normed


def _attend(
    attn: Any, normed: torch.Tensor, rotary: tuple[torch.Tensor, ...], share: Sharing
) -> torch.Tensor:
    """Self-attention over (rows, hidden), without diffusers' copies into another order of axes."""
    query, key, value = (
        project(normed).unflatten(-1, (attn.heads, -1))  # (rows, heads, channels)
        for project in (attn.to_q, attn.to_k, attn.to_v)
    )
    query = norm_rotate(query, attn.norm_q.weight, attn.norm_q.eps, *rotary)
    key = norm_rotate(key, attn.norm_k.weight, attn.norm_k.eps, *rotary)
    result: torch.Tensor = attn.to_out[0](share.attend(query, key, value).flatten(1))
    return result


def _feed(feed_forward: Any, normed: torch.Tensor) -> torch.Tensor:
    """SwiGLU over (rows, hidden)."""
    swiglu, _, out = feed_forward.net
    result: torch.Tensor = out(gate_silu(swiglu.proj(normed)))
    return result


def _enter(
    model: Any,
    text: torch.Tensor,
    video: torch.Tensor,
    audio: torch.Tensor,
    placed: dict[str, torch.Tensor],
) -> torch.Tensor:
    """The packed sequence (rows, hidden) of an evaluation's inputs."""
    hidden = text.new_empty((placed["position_ids"].shape[0], text.shape[-1]))
    hidden.index_copy_(0, placed["text_indices"], text)
    for rows, project, indices in (
        (video, model.proj_in, placed["video_indices"]),
        (audio, model.audio_proj_in, placed["audio_indices"]),
    ):
        hidden.index_copy_(0, indices, project(rows.to(project.weight.dtype)).to(text.dtype))
    return hidden


def _leave(
    model: Any, normed: torch.Tensor, placed: dict[str, torch.Tensor], share: Sharing
) -> tuple[torch.Tensor, torch.Tensor]:
    """The velocities of the video and the audio rows, of all ranks at every one."""
    heads = (model.proj_out, model.audio_proj_out)
    own = torch.cat([head(normed.to(head.weight.dtype)) for head in heads], dim=-1)
    every = share.collect(own)
    channels = model.proj_out.out_features
    return (
        every[:, :channels].index_select(0, placed["video_indices"]),
        every[:, channels:].index_select(0, placed["audio_indices"]),
    )
