"""One card and the full-width transformer: random weights, the card's own rates, and the floor."""

import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from diffusers import MiniMaxH3Transformer3DModel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SEED = 7
TINY: dict[str, Any] = {
    "num_attention_heads": 8,
    "attention_head_dim": 32,
    "hidden_size": 192,
    "num_layers": 4,
    "ffn_dim": 512,
    "text_dim": 64,
    "time_embed_dim": 96,
    "rope_freq_dim": 4,
}


def count_flops(config: Any, rows: int) -> tuple[float, float]:
    """Operations of one evaluation that no implementation can leave out: (matrices, attention).

    A multiply-add counts two. Per block and row: query, key, value and output projections
    (4 x hidden x heads x head_dim) and the three matrices of a SwiGLU (3 x hidden x ffn); per block
    scores and their mixture (2 x rows^2 x heads x head_dim). Left out, below 0.5 %: embeddings,
    output heads, the text's refiner and the modulations.
    """
    inner = config.num_attention_heads * config.attention_head_dim
    matrices = 4 * config.hidden_size * inner + 3 * config.hidden_size * config.ffn_dim
    return (
        2.0 * config.num_layers * rows * matrices,
        4.0 * config.num_layers * rows * rows * inner,
    )


def build(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """The transformer with random weights, in the released checkpoint's mixture of precisions."""
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = cast("Any", MiniMaxH3Transformer3DModel)(**config)
    finally:
        torch.set_default_dtype(before)
    whole = set(model._keep_in_fp32_modules)
    for name, weight in model.named_parameters():
        if whole.intersection(name.split(".")):
            weight.data = weight.data.float()
    with device:
        model.rope = type(model.rope)(model.config.rope_freq_dim, model.config.rope_theta)
    return model.eval().requires_grad_(False)


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median wall seconds of a piece of device work, after one that does not count."""
    taken = []
    for _ in range(repeats + 1):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def rates(config: Any, rows: int, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """The card's own FLOP/s: of a large matrix product, and of attention over `rows`."""
    edge = 8192 if device.type == "cuda" else 512
    left, right = (torch.randn(edge, edge, device=device, dtype=dtype) for _ in range(2))
    matrices = 2.0 * edge**3 * 10 / seconds_of(lambda: _times(10, left, right), device, 5)
    heads, channels = config.num_attention_heads, config.attention_head_dim
    query, key, value = (
        torch.randn(1, rows, heads, channels, device=device, dtype=dtype).transpose(1, 2)
        for _ in range(3)
    )
    kernel = SDPBackend.CUDNN_ATTENTION if device.type == "cuda" else SDPBackend.MATH
    with sdpa_kernel([kernel, SDPBackend.FLASH_ATTENTION]):
        once = seconds_of(lambda: scaled_dot_product_attention(query, key, value), device, 5)
    return matrices, 4.0 * rows * rows * heads * channels / once


def _times(count: int, left: torch.Tensor, right: torch.Tensor) -> None:
    for _ in range(count):
        torch.matmul(left, right)
