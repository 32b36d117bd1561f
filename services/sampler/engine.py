"""Denoises one clip's latents under a conditioning file.

It runs inside a rank process below the sampler's supervisor and knows neither. The loop itself is
in `loop.denoise`; torch is imported only when there is work.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from services.common.checkpoint.components import ModelSettings, load, pick_device, use_threads
from services.common.checkpoint.facts import describe
from services.common.work import EngineError, Watch
from services.sampler.order import SampleOrder
from services.sampler.recipe import PARTITION_OF, Recipe

_SCHEDULERS = ("scheduler", "audio_scheduler")


class Ranks(Protocol):
    """The other ranks of one model, if it is divided: see `services.sampler.parallel`."""

    @property
    def leads(self) -> bool:
        """Whether this rank writes what all of them made."""

    def join(self, settings: ModelSettings) -> None:
        """Meet the others, before anything is loaded."""

    def load_transformer(self, settings: ModelSettings, name: str = "transformer") -> Any:
        """This rank's part of a partition, called like diffusers' transformer."""

    def prove_equal(self, tensors: Mapping[str, Any]) -> None:
        """Raise an EngineError unless all ranks hold the same."""


class SamplerEngine:
    """The transformers of a recipe and their two schedules; `ranks` if it is one of several."""

    def __init__(
        self, settings: ModelSettings, recipe: Recipe | None = None, ranks: Ranks | None = None
    ) -> None:
        self._settings = settings
        self._recipe = recipe or Recipe()
        self._ranks = ranks
        self._parts: dict[str, Any] = {}
        self._identity: dict[str, Any] = {}

    def load(self) -> None:
        """Load the recipe's transformers and the schedulers, and nothing else of the checkpoint."""
        names = self._recipe.partitions
        if self._ranks is None:
            self.adopt(load(self._settings, (*names, *_SCHEDULERS)))
        else:
            self._ranks.join(self._settings)
            ranks = self._ranks
            made = {name: ranks.load_transformer(self._settings, name) for name in names}
            self.adopt({**load(self._settings, _SCHEDULERS), **made})
        facts = describe(self._settings.checkpoint, self._settings.revision)
        self._identity = {
            "weights": facts.digest,
            "dtype": self._settings.dtype,
            "attention": self._recipe.attention,
            "compile": self._recipe.compile,
        }

    def adopt(self, parts: Mapping[str, Any]) -> None:
        """Take loaded parts, by name, and make the transformers evaluate as the recipe says.

        Those of a group of ranks do already.
        """
        from services.sampler.fused.acceleration import Accelerated
        from services.sampler.fused.attention import pick_attention, set_attention

        self._parts = dict(parts)
        if self._ranks is not None:
            return
        attention = pick_attention(self._recipe.attention, pick_device(self._settings))
        for name in self._recipe.partitions:
            if self._recipe.compile:
                self._parts[name] = Accelerated(parts[name], attention)
            else:
                set_attention(parts[name], attention)

    @property
    def device(self) -> Any:
        """The `torch.device` of the weights."""
        return self._parts[self._recipe.partitions[0]].device

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """Write the denoised latents of an order to `output`; returns seconds by phase.

        `output` is a safetensors file with `latents` (1, 24, 5n+2, height/16, width/16) and
        `audio_latents` (2, 32, round(frames / 24 * 40)), both fp32. Of several ranks the
        leading one writes it, and the snapshots.
        A run that goes on from `order.resume` has a phase "resume", and its first report says how
        many evaluations it took over.
        Raises `EngineError` (UNSUPPORTED_MODE, BAD_ORDER, BAD_CONDITIONING, SNAPSHOT_REFUSED),
        `NonFinite` or `Cancelled`, which it checks between evaluations.
        """
        self._check(order)
        import torch
        from safetensors.torch import save_file

        from services.sampler.loop.denoise import denoise
        from services.sampler.loop.preparation import Prepared
        from services.sampler.loop.rows import unpack
        from services.sampler.loop.snapshot import Keeper, Origin, Snapshot

        use_threads(self._settings)
        clock = _Clock()
        transformer = self._parts[PARTITION_OF[order.mode]]
        schedulers = (self._parts["scheduler"], self._parts["audio_scheduler"])
        run = Prepared.of(order, conditioning, transformer.config, schedulers)
        clock.lap("prepare")
        keep, start, rows = None, 0, run.rows
        keeping = order.snapshot is not None and self._recipe.snapshot_every > 0
        if keeping or order.resume is not None:
            origin = Origin.of({**self._identity, **order.request()}, conditioning)
            if order.resume is not None:
                snapshot = Snapshot.read(order.resume, origin, run.schedule, rows)
                start, rows = snapshot.index, snapshot.rows
                clock.lap("resume")
            if order.snapshot is not None and self._leads:
                keep = Keeper(order.snapshot, origin, run.schedule)
        if self._ranks is not None:
            at = torch.tensor([start])
            self._ranks.prove_equal({**vars(rows), **vars(run.schedule), "evaluation": at})
        with torch.no_grad():
            evaluate = self._evaluate_by(transformer, run)
            watch.report("evaluate", start, order.evaluations)
            rows = denoise(
                evaluate,
                schedulers,
                run.schedule,
                rows.to(transformer.device),
                start=start,
                watch=watch,
                keep=keep,
                keep_every=self._recipe.snapshot_every,
            )
        latents, audio_latents = unpack(rows.to(torch.device("cpu")), run.shape)
        clock.lap("evaluate")
        if self._leads:
            save_file({"latents": latents, "audio_latents": audio_latents}, output)
            clock.lap("write")
        return clock.seconds

    @property
    def _leads(self) -> bool:
        return self._ranks is None or self._ranks.leads

    def _evaluate_by(self, transformer: Any, run: Any) -> Any:
        from services.sampler.fused.acceleration import Accelerated
        from services.sampler.loop.denoise import evaluate_by

        embeds = run.conditioning.prompt_embeds.to(transformer.device)
        if isinstance(transformer, Accelerated):
            return transformer.begin(run.sequence, run.schedule, embeds)
        return evaluate_by(transformer, run.sequence, run.schedule, embeds)

    def _check(self, order: SampleOrder) -> None:
        modes = self._recipe.modes
        if order.mode not in modes:
            raise EngineError(
                "UNSUPPORTED_MODE", f"this sampler samples {', '.join(modes)}, not {order.mode!r}"
            )
        if order.evaluations < 1:
            raise EngineError("BAD_ORDER", f"evaluations are 1 or more, not {order.evaluations}")
        if not 0 <= order.seed < 2**64:
            raise EngineError("BAD_ORDER", f"a seed is 0 to 2^64 - 1, not {order.seed}")


class _Clock:
    """Wall seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """What passed since the last lap belongs to this phase."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now
