"""What lies between the matrix products of a block, each as one pass over memory, in Triton.

Between two products a block's rows are normed, modulated, gated and added: bound by memory, not by
arithmetic, so each kernel reads and writes its rows once. They take any number of rows: nothing is
compiled again for another clip or prompt. Beside each is what it computes, in torch: that is used
where there is no card, and what the kernels are tested against.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch.nn.functional import rms_norm, silu

_ROW_WARPS = 8
_HEADS_AT_ONCE = 8
_FLAT_BLOCK = 2048


@dataclass(frozen=True)
class Modulation:
    """Where every row finds its shift and scale: row `index[r]` of `table`, columns by number.

    `table` is (kinds, numbers * channels), contiguous in its rows; `shift`, `scale` and `gate` are
    the numbers.
    """

    table: torch.Tensor
    index: torch.Tensor
    shift: int = 0
    scale: int = 1
    gate: int = 0

    def column(self, number: int, channels: int) -> torch.Tensor:
        """One number of every row (rows, channels)."""
        whole = self.table[:, number * channels : (number + 1) * channels]
        return whole.index_select(0, self.index)


def norm_modulate(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, by: Modulation
) -> torch.Tensor:
    """RMS-normed rows (rows, channels), times 1 + scale, plus shift."""
    if not hidden.is_cuda:
        channels = hidden.shape[1]
        normed = rms_norm(hidden, (channels,), weight, eps)
        scale, shift = by.column(by.scale, channels), by.column(by.shift, channels)
        return normed * (1.0 + scale) + shift
    return launch_add_norm_modulate(hidden, None, by, weight, eps, by)[1]


def add_norm_modulate(
    hidden: torch.Tensor,
    branch: torch.Tensor,
    gate: Modulation,
    weight: torch.Tensor,
    eps: float,
    by: Modulation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`hidden` plus the gated branch, and that normed and modulated: all (rows, channels)."""
    if not hidden.is_cuda:
        hidden = hidden + gate.column(gate.gate, hidden.shape[1]) * branch
        return hidden, norm_modulate(hidden, weight, eps, by)
    return launch_add_norm_modulate(hidden, branch, gate, weight, eps, by)


def norm_rotate(
    heads: torch.Tensor, weight: torch.Tensor, eps: float, cosine: torch.Tensor, sine: torch.Tensor
) -> torch.Tensor:
    """RMS-normed heads (rows, heads, channels), turned by the angles of their row.

    `cosine` and `sine` are (rows, turning), their second half like their first: pairs lie half of
    `turning` apart, and the channels beyond it stand still.
    """
    if not heads.is_cuda:
        normed = rms_norm(heads, (heads.shape[-1],), weight, eps)
        turning, still = normed[..., : cosine.shape[1]], normed[..., cosine.shape[1] :]
        first, second = turning.chunk(2, dim=-1)
        crossed = torch.cat([-second, first], dim=-1)
        return torch.cat([turning * cosine[:, None] + crossed * sine[:, None], still], dim=-1)
    return launch_norm_rotate(heads, weight, eps, cosine, sine)


def gate_silu(both: torch.Tensor) -> torch.Tensor:
    """The first half of the channels times SiLU of the second: (rows, 2 n) to (rows, n)."""
    if not both.is_cuda:
        value, gate = both.chunk(2, dim=-1)
        return value * silu(gate)
    return launch_gate_silu(both)


def launch_add_norm_modulate(
    hidden: torch.Tensor,
    branch: torch.Tensor | None,
    gate: Modulation,
    weight: torch.Tensor,
    eps: float,
    by: Modulation,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel of `add_norm_modulate`, and without a branch that of `norm_modulate`."""
    rows, channels = hidden.shape
    added = hidden if branch is None else torch.empty_like(hidden)
    normed = torch.empty_like(hidden)
    _add_norm_modulate[(rows,)](
        hidden,
        hidden if branch is None else branch,
        gate.table,
        gate.index,
        gate.table.stride(0),
        gate.gate * channels,
        weight,
        by.table,
        by.index,
        by.table.stride(0),
        by.shift * channels,
        by.scale * channels,
        added,
        normed,
        channels,
        eps,
        HAS_BRANCH=branch is not None,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=_ROW_WARPS,
    )
    return added, normed


def launch_norm_rotate(
    heads: torch.Tensor, weight: torch.Tensor, eps: float, cosine: torch.Tensor, sine: torch.Tensor
) -> torch.Tensor:
    """The kernel of `norm_rotate`."""
    rows, count, channels = heads.shape
    half = cosine.shape[1] // 2  # the angles of both halves are the same (diffusers)
    rest = channels - 2 * half
    turned = torch.empty((rows, count, channels), dtype=heads.dtype, device=heads.device)
    _norm_rotate[(rows, triton.cdiv(count, _HEADS_AT_ONCE))](
        heads,
        heads.stride(0),
        heads.stride(1),
        weight,
        cosine,
        sine,
        turned,
        count,
        eps,
        CHANNELS=channels,
        HALF=half,
        HALF_BLOCK=triton.next_power_of_2(half),
        REST=rest,
        REST_BLOCK=triton.next_power_of_2(max(rest, 1)),
        HEADS=_HEADS_AT_ONCE,
        num_warps=4,
    )
    return turned


def launch_gate_silu(both: torch.Tensor) -> torch.Tensor:
    """The kernel of `gate_silu`."""
    rows, width = both.shape
    half = width // 2
    made = torch.empty((rows, half), dtype=both.dtype, device=both.device)
    _gate_silu[(rows, triton.cdiv(half, _FLAT_BLOCK))](
        both, made, half, BLOCK=_FLAT_BLOCK, num_warps=4
    )
    return made


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm_modulate(  # type: ignore[no-untyped-def]
    hidden,
    branch,
    gate_table,
    gate_index,
    gate_stride,
    gate_at,
    weight,
    table,
    index,
    stride,
    shift_at,
    scale_at,
    added,
    normed,
    channels,
    eps,
    HAS_BRANCH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < channels
    here = row * channels + at
    value = tl.load(hidden + here, mask=inside, other=0.0).to(tl.float32)
    if HAS_BRANCH:
        kind = tl.load(gate_index + row)
        gate = tl.load(gate_table + kind * gate_stride + gate_at + at, mask=inside, other=0.0)
        more = tl.load(branch + here, mask=inside, other=0.0).to(tl.float32)
        # The sum is stored, and normed as stored.
        stored = (value + gate.to(tl.float32) * more).to(added.dtype.element_ty)
        tl.store(added + here, stored, mask=inside)
        value = stored.to(tl.float32)
    scaled = value * tl.rsqrt(tl.sum(value * value, axis=0) / channels + eps)
    scaled *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    mine = table + tl.load(index + row) * stride + at
    scale = tl.load(mine + scale_at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(mine + shift_at, mask=inside, other=0.0).to(tl.float32)
    result = scaled * (1.0 + scale) + shift
    tl.store(normed + here, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_rotate(  # type: ignore[no-untyped-def]
    heads,
    row_stride,
    head_stride,
    weight,
    cosine,
    sine,
    turned,
    count,
    eps,
    CHANNELS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = (head < count)[:, None]
    mine = heads + row * row_stride + head[:, None] * head_stride
    mine_turned = turned + (row * count + head[:, None]) * CHANNELS
    at = tl.arange(0, HALF_BLOCK)
    half = at < HALF
    both = inside & half[None, :]
    first = tl.load(mine + at[None, :], mask=both, other=0.0).to(tl.float32)
    second = tl.load(mine + HALF + at[None, :], mask=both, other=0.0).to(tl.float32)
    squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
    if REST > 0:
        after = tl.arange(0, REST_BLOCK)
        still = inside & (after < REST)[None, :]
        rest = tl.load(mine + 2 * HALF + after[None, :], mask=still, other=0.0).to(tl.float32)
        squares += tl.sum(rest * rest, axis=1)
    scale = tl.rsqrt(squares / CHANNELS + eps)[:, None]
    first *= scale * tl.load(weight + at, mask=half, other=0.0).to(tl.float32)[None, :]
    second *= scale * tl.load(weight + HALF + at, mask=half, other=0.0).to(tl.float32)[None, :]
    angles = row * 2 * HALF + at
    cos = tl.load(cosine + angles, mask=half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sine + angles, mask=half, other=0.0).to(tl.float32)[None, :]
    kind = turned.dtype.element_ty
    tl.store(mine_turned + at[None, :], (first * cos - second * sin).to(kind), mask=both)
    tl.store(mine_turned + HALF + at[None, :], (second * cos + first * sin).to(kind), mask=both)
    if REST > 0:
        gain = tl.load(weight + 2 * HALF + after, mask=after < REST, other=0.0).to(tl.float32)
        tl.store(
            mine_turned + 2 * HALF + after[None, :], (rest * scale * gain[None, :]).to(kind), still
        )


@triton.jit  # type: ignore[untyped-decorator]
def _gate_silu(both, made, half, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < half
    value = tl.load(both + row * 2 * half + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(both + row * 2 * half + half + at, mask=inside, other=0.0).to(tl.float32)
    result = value * gate * tl.sigmoid(gate)
    tl.store(made + row * half + at, result.to(made.dtype.element_ty), mask=inside)
