"""Tensor parallelism, applied from outside to the finished model.

Every rank of a tensor-parallel group keeps its heads of each attention, its part of each half of
each SwiGLU and its part of each AdaLN projection, and the blocks compute what they did before.
The parts of a fused matrix are divided one by one: a contiguous cut through all of it runs, and is
silently wrong. Two all-reduces a block, after the attention and after the feed-forward; the AdaLN
table, a few rows, is gathered. The order of additions differs from one rank's: see docs/sampler.md
for the bound.
"""

from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import nn


def shard_block(block: nn.Module, group: Any, index: int, size: int) -> None:
    """Divide one block, of the stack or of the token refiner, in place: rank `index` of `size`.

    What it keeps is copied, so the block's whole weights can be released.
    """
    _shard_attention(block.get_submodule("attn"), group, index, size)
    _shard_feed_forward(block.get_submodule("ff"), group, index, size)
    if hasattr(block, "adaln_proj"):
        _shard_modulation(
            block.get_submodule("adaln_proj").get_submodule("linear"), group, index, size
        )


def _shard_attention(attention: Any, group: Any, index: int, size: int) -> None:
    # Fusing keeps the three besides.
    if attention.fused_projections:
        _keep_rows(attention.to_qkv, index, size, parts=3)
    for name in ("to_q", "to_k", "to_v"):
        _keep_rows(getattr(attention, name), index, size)
    _keep_columns(attention.to_out[0], index, size)
    attention.heads //= size
    attention.inner_dim //= size
    attention.register_forward_hook(_sum_over(group))


def _shard_feed_forward(feed_forward: Any, group: Any, index: int, size: int) -> None:
    swiglu, _, out = feed_forward.net
    # Its first half is the value, its second half the gate, and each rank needs of both the part
    # of the same columns.
    _keep_rows(swiglu.proj, index, size, parts=2)
    _keep_columns(out, index, size)
    feed_forward.register_forward_hook(_sum_over(group))


def _shard_modulation(linear: Any, group: Any, index: int, size: int) -> None:
    if linear.out_features % size == 0:  # else it stays whole: its table is the same everywhere
        _keep_rows(linear, index, size)
        linear.register_forward_hook(_gather_over(group))


def _gather_over(group: Any) -> Any:
    def gather(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        # (times, part) of each rank -> (times, 3 modalities x 6 x channels), in the ranks' order
        return _wait(collectives.all_gather_tensor(output.contiguous(), 1, group))

    return gather


def _sum_over(group: Any) -> Any:
    def add(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return _wait(collectives.all_reduce(output.contiguous(), "sum", group))

    return add


def _keep_rows(linear: nn.Linear, index: int, size: int, parts: int = 1) -> None:
    """Keep this rank's outputs of each of the `parts` matrices that lie one below the other."""
    linear.weight = _part(linear.weight, 0, index, size, parts)
    if linear.bias is not None:
        linear.bias = _part(linear.bias, 0, index, size, parts)
    linear.out_features //= size


def _keep_columns(linear: nn.Linear, index: int, size: int) -> None:
    """Keep this rank's inputs; the outputs have then to be added up over the ranks."""
    if linear.bias is not None:
        raise ValueError("a bias would be added once by every rank")
    linear.weight = _part(linear.weight, 1, index, size)
    linear.in_features //= size


def _part(weight: torch.Tensor, dim: int, index: int, size: int, parts: int = 1) -> nn.Parameter:
    kept = [
        part.tensor_split(size, dim)[index] for part in weight.detach().tensor_split(parts, dim)
    ]
    return nn.Parameter(torch.cat(kept, dim).contiguous(), requires_grad=False)


def _wait(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, collectives.AsyncCollectiveTensor):
        return tensor.wait()
    return tensor
