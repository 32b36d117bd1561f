"""Loads one rank's part of the transformer, block by block, out of the checkpoint's files.

The files are mapped, not read, and the model is built without memory: of each block only what the
rank keeps is copied. At no time is more than one whole block in memory besides what is kept.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from services.common.checkpoint.files import CheckpointError, last_line, read_json
from services.sampler.parallel.tensor import shard_block

_WHOLE = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class Share:
    """What a rank keeps of each block: part `index` of `size`, divided over `group`.

    With `sequence`, the group of the ranks of one sequence, these divide a block's weights besides.
    """

    index: int
    size: int
    group: Any
    sequence: Any = None


class Weights(Protocol):
    """Where a transformer's tensors come from."""

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor of a parameter."""


def read_config(folder: Path) -> dict[str, Any]:
    """A transformer's arguments."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in read_json(folder / "config.json").items()
        if not name.startswith("_")
    }


def build(
    cls: Any,
    config: Mapping[str, Any],
    source: Weights,
    dtype: torch.dtype,
    device: torch.device,
    share: Share,
    **options: Any,
) -> nn.Module:
    """The transformer of `config` as `cls`, this rank's share of `source`, on its device.

    Parameters are of `dtype`, but for those that the model keeps in fp32. Raises
    `CheckpointError` when the source does not hold just the model's parameters.
    """
    with torch.device("meta"):
        model: Any = cls(**config, **options)
    # Its frequencies are computed, not stored.
    model.rope = type(model.rope)(model.config.rope_freq_dim, model.config.rope_theta)
    kept_whole = set(model._keep_in_fp32_modules)
    for name, block in _blocks(model):
        _fill(block, f"{name}.", source, dtype, kept_whole)
        if share.size > 1:
            shard_block(block, share.group, share.index, share.size)
        block.to(device)
        if share.sequence is not None:
            _divide(block, share.sequence, device)
    _fill(model, "", source, dtype, kept_whole)
    for part in model.children():
        if not isinstance(part, nn.ModuleList):
            part.to(device)
    whole: nn.Module = model.eval().requires_grad_(False)
    return whole


class Files:
    """The checkpoint's tensors, each mapped from its file when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[str, Any] = {}
        self._stack = ExitStack()
        index = folder / f"{_WHOLE}.index.json"
        self._places: dict[str, str] = read_json(index)["weight_map"] if index.is_file() else {}

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor whose pages are read when they are touched."""
        place = self._places.get(name, _WHOLE)
        try:
            if place not in self._opened:
                file = safe_open(self._folder / place, framework="pt", device="cpu")
                self._opened[place] = self._stack.enter_context(file)
            tensor: torch.Tensor = self._opened[place].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self._folder / place}: {last_line(error)}") from error
        return tensor


def _blocks(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """What is divided, by name: the blocks of the stack and of the token refiner."""
    for name in ("token_refiner.refiner_blocks", "transformer_blocks"):
        for index, block in enumerate(model.get_submodule(name)):
            yield f"{name}.{index}", block


def _fill(
    module: nn.Module, prefix: str, source: Weights, dtype: torch.dtype, kept_whole: set[str]
) -> None:
    """Give the parameters that have no memory yet their weights."""
    for name, empty in list(module.named_parameters()):
        if not empty.is_meta:
            continue
        whole = kept_whole.intersection((prefix + name).split("."))  # as diffusers decides
        weight = source.tensor(prefix + name).to(torch.float32 if whole else dtype)
        if weight.shape != empty.shape:
            raise CheckpointError(
                f"{prefix}{name} is {tuple(weight.shape)} in the checkpoint, and by its config "
                f"{tuple(empty.shape)}: get the checkpoint again"
            )
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


def _divide(block: nn.Module, sequence: Any, device: torch.device) -> None:
    """Keep a part of each weight; the block gathers them while it runs, and lets them go again.

    Block by block, because the fp32 projections around the blocks have another dtype and stay
    whole on every rank: FSDP takes no mixed dtypes.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(sequence, device.type)
    fully_shard(block, mesh=mesh, reshard_after_forward=True)
