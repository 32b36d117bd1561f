"""Which ranks a sampler has, how each is started, and after how long something counts as broken."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from services.common.checkpoint.components import ModelSettings
from services.sampler.layout import RankLayout
from services.sampler.ranks.rank import Post
from services.sampler.recipe import Recipe


@dataclass(frozen=True)
class Limits:
    """Seconds after which something counts as broken; see docs/sampler.md."""

    load_s: float = 1800.0
    """For a start: processes, libraries, weights."""
    hang_s: float = 60.0
    """Without a sign of life from a rank's process, once it has loaded."""
    evaluation_s: float = 900.0
    """Of a run without progress, the first evaluation and its compilation included."""
    collective_s: float = 600.0
    """That one rank waits for the others inside a run."""
    settle_s: float = 10.0
    """For the other ranks to end, once one has failed."""
    heartbeat_s: float = 1.0
    """Between two signs of life."""
    restarts: int = 10
    """Starts of ranks in a row without a finished run between them, before giving up."""


@dataclass(frozen=True)
class Plan:
    """Which ranks to start, and how: everything but the run."""

    model: ModelSettings
    instance_id: str
    layout: RankLayout = field(default_factory=RankLayout)
    recipe: Recipe = field(default_factory=Recipe)
    limits: Limits = field(default_factory=Limits)
    # The environment of each rank, by rank; none: as the supervisor's.
    environments: list[dict[str, str]] = field(default_factory=list)
    log_level: str = "info"
    prologue: Callable[[int], None] | None = None

    def posts(self, epoch: int, rendezvous: Path) -> list[Post]:
        """What each rank is told."""
        return [
            Post(
                rank=rank,
                epoch=epoch,
                model=self.model,
                recipe=self.recipe,
                layout=self.layout,
                rendezvous=rendezvous,
                load_s=self.limits.load_s,
                collective_s=self.limits.collective_s,
                heartbeat_s=self.limits.heartbeat_s,
                instance_id=self.instance_id,
                log_level=self.log_level,
                supervisor_pid=os.getpid(),
                environment=self.environments[rank] if self.environments else {},
                prologue=self.prologue,
            )
            for rank in range(self.layout.ranks)
        ]
