"""A run before its first evaluation: all that follows from its order and its conditioning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.work import EngineError
from services.sampler.loop.conditioning import Conditioning, read_conditioning
from services.sampler.loop.rows import Rows, draw_rows
from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence, Shape
from services.sampler.order import SampleOrder


@dataclass(frozen=True)
class Prepared:
    """What a run computes with, on the CPU; all state is the run's own."""

    shape: Shape
    conditioning: Conditioning
    sequence: Sequence
    schedule: Schedule
    rows: Rows

    @classmethod
    def of(
        cls, order: SampleOrder, path: Path, transformer_config: Any, schedulers: tuple[Any, Any]
    ) -> "Prepared":
        """Raises BAD_ORDER, BAD_CONDITIONING or NON_FINITE."""
        shape = Shape.of(order.height, order.width, order.frames, transformer_config)
        canvas = (shape.height, shape.width)
        conditioning = read_conditioning(path, order.mode, canvas, transformer_config)
        sequence = Sequence.of(conditioning, shape)
        rows = draw_rows(shape, conditioning, order.seed)
        placed = (sequence.condition_video_rows, sequence.condition_audio_rows)
        if (len(rows.condition), len(rows.audio_condition)) != placed:
            raise EngineError("BAD_CONDITIONING", "the conditions do not fit the packed sequence")
        return cls(shape, conditioning, sequence, Schedule.of(schedulers, order.evaluations), rows)
