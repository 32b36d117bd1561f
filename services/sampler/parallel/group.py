"""What the ranks of one model are to each other: their groups, their proofs, their agreements.

A rank makes its `Group` once, before it loads. Whatever ranks decide together is said over gloo
and the CPU, so that it needs no card and waits for none.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from diffusers import MiniMaxH3Transformer3DModel

from services.common.checkpoint.components import (
    ModelSettings,
    pick_device,
    pick_dtype,
    use_threads,
)
from services.common.checkpoint.files import component_folder
from services.common.work import EngineError
from services.sampler.fused.acceleration import Accelerated
from services.sampler.fused.attention import pick_attention
from services.sampler.fused.sharing import Ulysses
from services.sampler.layout import RankLayout
from services.sampler.parallel import weights, xdit
from services.sampler.recipe import Recipe


@dataclass(frozen=True)
class Meeting:
    """How the ranks of one start find each other, and how long one waits for the others."""

    layout: RankLayout
    rendezvous: Path
    """A file that does not exist yet and that no other start uses."""
    load_s: float
    """How long the others may take to come: their libraries load at their own pace."""
    collective_s: float
    """How long one waits for the others inside a run."""
    recipe: Recipe = field(default_factory=Recipe)


class Group:
    """One rank's place among the others."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self._meeting = meeting
        self._control: Any = None
        self._parts: Any = None
        self._sequence: Any = None

    @property
    def leads(self) -> bool:
        """Whether this rank writes what all of them made."""
        return self.rank == 0

    def join(self, settings: ModelSettings) -> None:
        """Meet the others. Blocks until all have come."""
        use_threads(settings)
        device = pick_device(settings)
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device.index or 0)
        layout = self._meeting.layout
        dist.init_process_group(
            backend="nccl" if cuda else "gloo",
            init_method=f"file://{self._meeting.rendezvous}",
            world_size=layout.ranks,
            rank=self.rank,
            timeout=timedelta(seconds=self._meeting.load_s),
        )
        self._control = dist.new_group(backend="gloo")
        self._sequence = xdit.join(layout, self.rank, device)
        # Rank r holds part r // ulysses of the weights: one group for each place in the sequence.
        for place in range(layout.ulysses):
            members = list(range(place, layout.ranks, layout.ulysses))
            group = dist.new_group(members)
            if self.rank in members:
                self._parts = group
        # Groups made by libraries have torch's own timeouts of 10 and 30 minutes.
        for group in list(dist.distributed_c10d._world.pg_map):
            _set_timeout(timedelta(seconds=self._meeting.collective_s), group)

    def load_transformer(
        self, settings: ModelSettings, name: str = "transformer"
    ) -> torch.nn.Module | Accelerated:
        """This rank's part of a partition, `transformer` or `transformer_ref`, on its device."""
        folder = component_folder(settings.checkpoint, settings.revision, name)
        device = pick_device(settings)
        dtype = pick_dtype(settings, name, device)
        with weights.Files(folder) as files:
            return self.build(weights.read_config(folder), files, dtype, device)

    def build(
        self,
        config: Mapping[str, Any],
        source: weights.Weights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.nn.Module | Accelerated:
        """This rank's part of a transformer, wherever its tensors come from."""
        layout, recipe = self._meeting.layout, self._meeting.recipe
        share = weights.Share(
            index=self.rank // layout.ulysses,
            size=layout.tp,
            group=self._parts,
            sequence=self._sequence if layout.fsdp else None,
        )
        kernel = pick_attention(recipe.attention, device)
        if recipe.compile:
            model = weights.build(MiniMaxH3Transformer3DModel, config, source, dtype, device, share)
            return Accelerated(model, kernel, partial(Ulysses, group=self._sequence))
        return weights.build(
            xdit.transformer_class(),
            config,
            source,
            dtype,
            device,
            share,
            attention_backend=xdit.register_attention(kernel, device, dtype),
        )

    def agree(self, wish: bool) -> bool:
        """Whether any rank wishes it. Every rank has to ask."""
        wishes = torch.tensor([wish], dtype=torch.uint8)
        dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self._control)
        return bool(wishes.item())

    def prove_equal(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise RANKS_DISAGREE on every rank unless all of them hold the same bytes."""
        own = torch.stack([_digest(tensor) for tensor in tensors.values()])  # (tensors, 32)
        held = [torch.empty_like(own) for _ in range(self._meeting.layout.ranks)]
        dist.all_gather(held, own, group=self._control)
        wrong = [
            f"rank {rank} has other {name} than rank 0"
            for rank, digests in enumerate(held)
            for name, digest, first in zip(tensors, digests, held[0], strict=True)
            if not torch.equal(digest, first)
        ]
        if wrong:
            raise EngineError("RANKS_DISAGREE", "; ".join(wrong))


def _set_timeout(timeout: timedelta, group: Any) -> None:
    # torch before 2.12 has it under this name alone.
    set_it = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    set_it(timeout, group)


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    content = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{content.dtype} {tuple(content.shape)}".encode())
    digest.update(content.flatten().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
