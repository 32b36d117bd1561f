"""How a sampler computes, as configured: which weights, which attention, compiled or not.

No torch here: the supervisor publishes a recipe, the engine applies it.
"""

from dataclasses import dataclass

# Each mode runs on one partition of the weights (diffusers, `MiniMaxH3Blocks`).
PARTITION_OF = {"t2va": "transformer", "fl2va": "transformer", "ref2va": "transformer_ref"}
PARTITIONS = ("transformer", "transformer_ref")
ATTENTIONS = ("auto", "native", "cudnn", "flash", "efficient", "math")


@dataclass(frozen=True)
class Recipe:
    """What may change a result's bits or its speed, beside the model settings."""

    partitions: tuple[str, ...] = ("transformer",)
    """The partitions to load: "transformer" (t2va, fl2va), "transformer_ref" (ref2va) or both."""
    compile: bool = False
    """Run fused kernels over tables made once a run, instead of diffusers' own forward."""
    attention: str = "auto"
    """One of ATTENTIONS; "auto" is cuDNN on a Hopper card or newer, else torch's own choice."""
    snapshot_every: int = 5
    """Evaluations between two snapshots of a run; 0: none."""

    def __post_init__(self) -> None:
        unknown = set(self.partitions) - set(PARTITIONS)
        if unknown or not self.partitions:
            raise ValueError(
                f"partitions are some of {list(PARTITIONS)}, not {list(self.partitions)}"
            )
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention is one of {list(ATTENTIONS)}, not {self.attention!r}")
        if self.snapshot_every < 0:
            raise ValueError(f"snapshot_every is 0 or more, not {self.snapshot_every}")

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that these partitions do."""
        return tuple(mode for mode, part in PARTITION_OF.items() if part in self.partitions)
