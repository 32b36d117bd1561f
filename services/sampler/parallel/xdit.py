"""xfuser's MiniMax-H3 over NCCL on cards and over gloo on a CPU, with its padding kept out.

xfuser 0.7.0 has no CPU mode, but its sequence-parallel code runs over gloo once it is told that
there is no CUDA and that its process groups exist. Its transformer pads the packed sequence to a
multiple of 64 rows and leaves hiding them to the attention backend, which several do not do: the
one registered here cuts the padding off keys and values, whatever kernel then runs.

Imported by the ranks of a group alone; xfuser takes 10 to 30 s to import.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from services.common.work import EngineError
from services.sampler.layout import RankLayout

# By the recipe's names; "native" is torch's own choice.
KERNELS: dict[str, SDPBackend | None] = {
    "native": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
Attend = Callable[..., tuple[torch.Tensor, None]]
_PADDED, _VALID = 64, 5  # rows of the padding's test


def join(layout: RankLayout, rank: int, device: torch.device) -> Any:
    """Make xfuser's groups over the default process group; returns this rank's Ulysses group."""
    import xfuser.envs

    cuda = device.type == "cuda"
    if not cuda:
        # Read when tensors are placed: a CUDA build of torch on a machine without a card.
        xfuser.envs._is_cuda = lambda: False
    import yunchang.globals
    from xfuser.core.distributed import group_coordinator, parallel_state, runtime_state
    from xfuser.model_executor.layers import usp

    if not cuda:
        parallel_state.HAS_LONG_CTX_ATTN = group_coordinator.HAS_LONG_CTX_ATTN = True
        usp.PROCESS_GROUP = yunchang.globals.PROCESS_GROUP
    backend = "nccl" if cuda else "gloo"
    parallel_state.init_distributed_environment(
        world_size=layout.ranks, rank=rank, local_rank=device.index or 0, backend=backend
    )
    # To xfuser our tensor-parallel parts are replicas: its own order would put tensor-parallel
    # neighbours first, while yunchang's groups, which move the heads, put the sequence first.
    parallel_state.initialize_model_parallel(
        data_parallel_degree=layout.tp,
        sequence_parallel_degree=layout.ulysses,
        ulysses_degree=layout.ulysses,
        ring_degree=1,
        backend=backend,
    )
    runtime_state._RUNTIME = SimpleNamespace(
        attention_backend=None,
        fp8_comms=None,
        runtime_config=SimpleNamespace(use_spargeattn_head_balance=False),
        increment_step_counter=lambda: None,
    )
    return yunchang.globals.PROCESS_GROUP.ULYSSES_PG


def transformer_class() -> Any:
    """xfuser's transformer."""
    from xfuser.model_executor.models.transformers import transformer_minimax_h3

    return transformer_minimax_h3.xFuserMiniMaxH3Transformer3DWrapper


def register_attention(kernel: str, device: torch.device, dtype: torch.dtype) -> str:
    """Register our attention with xfuser under a name of its own; returns the name.

    Raises ATTENTION_REFUSED if the kernel does not run here, or lets padding take part.
    """
    from xfuser.core.distributed.attention_backend import ATTENTION_FUNCTION_REGISTRY

    name = f"reelmesh-{kernel}"
    attend = attention(KERNELS[kernel])
    check_padding(kernel, attend, device, dtype)
    ATTENTION_FUNCTION_REGISTRY[name] = attend
    return name


def check_padding(kernel: str, attend: Attend, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ATTENTION_REFUSED unless padding rows, however large, change nothing."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 1, 2, _PADDED, 64, generator=generator)  # q, k, v of two heads
    rows[1:, :, :, _VALID:] = 1e3
    query, key, value = rows.to(device, dtype)
    try:
        padded, _ = attend(query, key, value, 0.0, False, {"valid_kv_len": _VALID})
        valid, _ = attend(query, key[:, :, :_VALID], value[:, :, :_VALID], 0.0, False)
    except RuntimeError as error:
        raise EngineError(
            "ATTENTION_REFUSED", f"attention {kernel} does not run in {dtype} on {device}: {error}"
        ) from error
    if not torch.equal(padded, valid):
        raise EngineError("ATTENTION_REFUSED", f"attention {kernel} lets padding take part")


def attention(kernel: SDPBackend | None) -> Attend:
    """Attention over (1, heads, rows, channels) that never sees a padding row among its keys."""

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float,
        is_causal: bool,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, None]:
        valid = (attention_kwargs or {}).get("valid_kv_len")
        if valid is not None:
            key, value = key[:, :, :valid], value[:, :, :valid]  # (1, heads, valid rows, channels)
        if kernel is None:
            return F.scaled_dot_product_attention(query, key, value), None
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(query, key, value), None

    return attend
