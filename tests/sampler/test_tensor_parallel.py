"""The parts of a block add up to the block, fused or not. Both ranks in one process, no group."""

import copy
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3TransformerBlock

from services.common.work import EngineError
from services.sampler.parallel import tensor, xdit

SIZE = 2
CPU = torch.device("cpu")


def block() -> Any:
    """A block of 4 heads."""
    torch.manual_seed(3)
    return MiniMaxH3TransformerBlock(
        hidden_size=48,
        num_attention_heads=4,
        attention_head_dim=16,
        ffn_dim=64,
        time_embed_dim=24,
        norm_eps=1e-5,
        qk_norm_eps=1e-5,
    ).eval()


def parts(whole: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each rank keeps, without the exchange at the end."""

    def nothing(*_: Any) -> Any:
        return lambda _module, _inputs, output: output

    monkeypatch.setattr(tensor, "_sum_over", nothing)
    monkeypatch.setattr(tensor, "_gather_over", nothing)
    made = [copy.deepcopy(whole) for _ in range(SIZE)]
    for index, part in enumerate(made):
        tensor.shard_block(part, None, index, SIZE)
    return made


@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_parts_of_an_attention_add_up(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's heads, of one fused matrix of three or of three."""
    whole = block()
    if fused:
        whole.attn.fuse_projections()
    hidden = torch.randn(1, 10, 48)
    rotary = (torch.randn(10, 12), torch.randn(10, 12))
    total = sum(part.attn(hidden, rotary) for part in parts(whole, monkeypatch))
    torch.testing.assert_close(total, whole.attn(hidden, rotary))


@torch.no_grad()
def test_parts_of_a_swiglu_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half is divided by itself; one cut through both halves gives something else."""
    whole = block()
    hidden = torch.randn(1, 10, 48)
    shards = parts(whole, monkeypatch)
    torch.testing.assert_close(sum(part.ff(hidden) for part in shards), whole.ff(hidden))
    cut = whole.ff.net[0].proj.weight.tensor_split(SIZE)
    for part, weight in zip(shards, cut, strict=True):
        part.ff.net[0].proj.weight = torch.nn.Parameter(weight)
    wrong = sum(part.ff(hidden) for part in shards)
    assert float((wrong - whole.ff(hidden)).abs().max()) > 0.01


@torch.no_grad()
def test_parts_of_a_modulation_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered in the ranks' order they are the whole table."""
    whole = block()
    times = torch.randn(3, 24)
    shards = parts(whole, monkeypatch)
    table = torch.cat([part.adaln_proj.linear(times) for part in shards], dim=1)
    torch.testing.assert_close(table, whole.adaln_proj.linear(times))


@pytest.mark.parametrize("kernel", ["native", "math", "flash"])
def test_padding_takes_no_part(kernel: str) -> None:
    """In no kernel that runs here."""
    xdit.check_padding(kernel, xdit.attention(xdit.KERNELS[kernel]), CPU, torch.float32)


def test_kernel_that_does_not_run_here_is_refused() -> None:
    """With the reason, when the ranks load."""
    with pytest.raises(EngineError, match="cudnn does not run") as caught:
        attend = xdit.attention(xdit.KERNELS["cudnn"])
        xdit.check_padding("cudnn", attend, CPU, torch.float32)
    assert caught.value.reason == "ATTENTION_REFUSED"


def test_attention_that_lets_padding_take_part_is_refused() -> None:
    """As xfuser's own does, which reads no `valid_kv_len`."""

    def careless(query: Any, key: Any, value: Any, *_: Any) -> tuple[torch.Tensor, None]:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value), None

    with pytest.raises(EngineError, match="lets padding take part"):
        xdit.check_padding("careless", careless, CPU, torch.float32)
