"""The transformer's forward for a batch whose items stand at different times.

The class shares one list of timesteps over the batch. Here every item has its own four, and rows
pick theirs by a product with a one-hot matrix, whose gradient needs no scattered additions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention, silu

from tools.demo_model.layouts import Layout

Block = Callable[[Any, Tensor, Tensor, Tensor, tuple[Tensor, Tensor]], Tensor]
_TAGS, _TIMES = 3, 4


def forward(
    model: Any,
    where: Layout,
    video: Tensor,
    audio: Tensor,
    text: Tensor,
    times: Tensor,
    block: Block | None = None,
) -> tuple[Tensor, Tensor]:
    """Velocities of all video rows (B, Nv, 96) and audio rows (B, Na, 32), as the class gives them.

    `video` and `audio` are the rows in their layout's order, `text` (B, L, width), `times` (B, 4)
    by kind of `layouts`; `block` may be a compiled `apply_block`.
    """
    run = apply_block if block is None else block
    rotary = model.rope(where.positions)
    told = model.token_refiner(model.context_embedder(text))
    rows = told.new_zeros((len(text), len(where.tags), told.shape[-1]), dtype=torch.float32)
    rows = rows.index_copy(1, where.text, told.float())
    # The class keeps its entries, its heads and its sense of time in fp32, autocast or not.
    with torch.autocast(rows.device.type, enabled=False):
        rows = rows.index_copy(1, where.video, model.proj_in(video))
        rows = rows.index_copy(1, where.audio, model.audio_proj_in(audio))
        embedded = model.time_embedder(model.time_proj(times.flatten()))
    active = silu(embedded).reshape(*times.shape, -1)  # (B, 4, E)
    of_row = one_hot(where.times * _TAGS + where.tags, _TIMES * _TAGS).to(rows.dtype)  # (S, 12)
    for each in model.transformer_blocks:
        rows = run(each, rows, active, of_row, rotary)

    shift, scale = model.norm_out.linear(active).float().chunk(2, dim=-1)  # (B, 4, width)
    of_time = one_hot(where.times, _TIMES).to(rows.dtype)
    rows = model.norm_out.norm(rows) * (1 + of_time @ scale) + of_time @ shift
    with torch.autocast(rows.device.type, enabled=False):
        return model.proj_out(rows[:, where.video]), model.audio_proj_out(rows[:, where.audio])


def apply_block(
    block: Any, rows: Tensor, active: Tensor, of_row: Tensor, rotary: tuple[Tensor, Tensor]
) -> Tensor:
    """One transformer block on rows (B, S, width), which stay fp32 between blocks."""
    table = block.adaln_proj.linear(active).unflatten(-1, (_TAGS, -1)).flatten(1, 2)  # (B, 12, 6 w)
    modulation = of_row.to(table.dtype) @ table
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = modulation.chunk(6, dim=-1)
    rows = rows + gate_a * _attend(block.attn, block.norm1(rows) * (1 + scale_a) + shift_a, rotary)
    fed: Tensor = gate_f * block.ff(block.norm2(rows) * (1 + scale_f) + shift_f)
    return rows + fed


def _attend(attention: Any, rows: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    query, key, value = (
        project(rows).unflatten(-1, (attention.heads, -1))
        for project in (attention.to_q, attention.to_k, attention.to_v)
    )
    query = _turn(attention.norm_q(query.float()), rotary).to(value.dtype).transpose(1, 2)
    key = _turn(attention.norm_k(key.float()), rotary).to(value.dtype).transpose(1, 2)
    mixed = scaled_dot_product_attention(query, key, value.transpose(1, 2))
    out: Tensor = attention.to_out[0](mixed.transpose(1, 2).flatten(2))
    return out


def _turn(heads: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the leading channels of (B, S, heads, channels) by angles (S, rotated)."""
    cos, sin = (each[:, None] for each in rotary)
    turned, kept = heads[..., : cos.shape[-1]], heads[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((turned * cos + torch.cat((-second, first), dim=-1) * sin, kept), dim=-1)
