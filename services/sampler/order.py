"""What a sampler is told to compute. Without torch: the supervisor imports it too."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The reason of an `EngineError`: a snapshot is no half of the run that should go on from it.
SNAPSHOT_REFUSED = "SNAPSHOT_REFUSED"


@dataclass(frozen=True)
class SampleOrder:
    """What to sample: canvas in pixels, frames on the 17n+5 grid, seed of the noise.

    `evaluations` are forwards of the transformer; the model's "inference steps" are one more. The
    files are no part of what is computed: `snapshot` is where the run keeps its state as it goes,
    `resume` a snapshot to go on from.
    """

    mode: str
    height: int
    width: int
    frames: int
    seed: int
    evaluations: int
    snapshot: Path | None = None
    resume: Path | None = None

    def request(self) -> Mapping[str, Any]:
        """What is computed, without the files that it goes through."""
        files = ("snapshot", "resume")
        return {name: value for name, value in asdict(self).items() if name not in files}
