"""What a sampler is told, and the plan of ranks that follows from it."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.common.checkpoint.components import ModelSettings
from services.common.checkpoint.facts import describe
from services.common.config import StageSettings
from services.sampler.layout import LayoutRefused, RankLayout, Width, check
from services.sampler.ranks.devices import environments
from services.sampler.ranks.plan import Limits, Plan
from services.sampler.recipe import Recipe


class SamplerSettings(StageSettings):
    """`REELMESH_SAMPLER_…`, or the table [sampler] of the file."""

    model_config = SettingsConfigDict(env_prefix="REELMESH_SAMPLER_")
    table: ClassVar[str] = "sampler"

    instance_id: str = "sampler-1"
    listen: str = "127.0.0.1:7420"
    # How the model is divided among ranks: docs/sampler.md.
    tp: int = Field(1, ge=1)
    ulysses: int = Field(1, ge=1)
    fsdp: bool = False
    ring: int = Field(1, ge=1)
    # One card a rank, by index or UUID, separated by commas; empty: the first ones.
    devices: str = ""
    # How it computes: services/sampler/recipe.py.
    attention: str = "auto"
    compile: bool = False
    # "transformer" (t2va, fl2va), "transformer_ref" (ref2va), or both, separated by a comma.
    partitions: str = "transformer"
    # Evaluations between two snapshots of a run, 0: none; and how long those of a run that did not
    # succeed are kept.
    snapshot_every: int = Field(5, ge=0)
    snapshot_retention_s: float = Field(86_400.0, gt=0)
    # Seconds after which something counts as broken.
    load_limit_s: float = Field(1800.0, gt=0)
    hang_limit_s: float = Field(60.0, gt=0)
    evaluation_limit_s: float = Field(900.0, gt=0)
    collective_timeout_s: float = Field(600.0, gt=0)
    # Starts of the ranks in a row without a finished run between them.
    restarts: int = Field(10, ge=0)

    def plan(self, environment: Mapping[str, str]) -> Plan:
        """The ranks to start. Reads the checkpoint's configs; imports no torch.

        Raises `LayoutRefused` or `CheckpointError` for what cannot run.
        """
        facts = describe(self.checkpoint)
        layout = RankLayout(self.tp, self.ulysses, self.fsdp)
        check(layout, Width(facts.attention_heads, facts.feed_forward), ring=self.ring)
        if self.compile and (layout.tp > 1 or layout.fsdp):
            raise LayoutRefused(
                "compile is for one rank or for Ulysses alone: leave it off, or tp and fsdp"
            )
        return Plan(
            model=ModelSettings(self.checkpoint, self.device, self.dtype, self.threads),
            instance_id=self.instance_id,
            layout=layout,
            recipe=Recipe(
                partitions=tuple(name.strip() for name in self.partitions.split(",")),
                compile=self.compile,
                attention=self.attention,
                snapshot_every=self.snapshot_every,
            ),
            limits=Limits(
                load_s=self.load_limit_s,
                hang_s=self.hang_limit_s,
                evaluation_s=self.evaluation_limit_s,
                collective_s=self.collective_timeout_s,
                restarts=self.restarts,
            ),
            environments=self._environments(layout, environment),
            log_level=self.log_level,
        )

    def _environments(
        self, layout: RankLayout, environment: Mapping[str, str]
    ) -> list[dict[str, str]]:
        named = [name for name in self.devices.split(",") if name.strip()]
        if not named and (layout.ranks == 1 or self.device == "cpu"):
            return []
        if self.device not in ("auto", "cuda"):
            raise LayoutRefused(
                f"devices name the card of each rank, so device is cuda, not {self.device}"
            )
        return environments(named, layout.ranks, environment)
