"""The two noise schedules of a run, as tables: the video's and the audio's."""

import copy
from dataclasses import dataclass
from typing import Any

import torch

from services.common.work import EngineError
from services.sampler.loop.rows import VISUAL_CONDITION_TIME

AUDIO_CONDITION_TIME = 1.0  # soundtracks of references are clean (diffusers)


@dataclass(frozen=True)
class Schedule:
    """Both sigma tables, fp32 on the CPU: one entry more than evaluations, the last one zero."""

    video_sigmas: torch.Tensor
    audio_sigmas: torch.Tensor

    @classmethod
    def of(cls, schedulers: tuple[Any, Any], evaluations: int) -> "Schedule":
        """The tables of `evaluations` forwards, by the checkpoint's own (video, audio) schedulers.

        BAD_ORDER when neighbouring sigmas would collapse into one.
        """
        tables = []
        for scheduler in copy.deepcopy(schedulers):
            # The grid's final zero is one of the "inference steps" and costs no evaluation.
            scheduler.set_timesteps(evaluations + 1)
            if len(scheduler.timesteps) != evaluations:
                raise EngineError(
                    "BAD_ORDER", f"the schedule cannot hold {evaluations} distinct evaluations"
                )
            tables.append(scheduler.sigmas)
        return cls(*tables)

    @property
    def evaluations(self) -> int:
        """Forwards of the transformer."""
        return len(self.video_sigmas) - 1

    def times(self, index: int) -> tuple[float, float, float, float]:
        """The times t = 1 - sigma of evaluation `index` by kind of row.

        Video (and text), audio, visual conditions, soundtracks of references. `max`: a condition
        is never noisier than the video that is being made (diffusers).
        """
        video = float(1.0 - self.video_sigmas[index])
        audio = float(1.0 - self.audio_sigmas[index])
        return video, audio, max(video, VISUAL_CONDITION_TIME), AUDIO_CONDITION_TIME

    def steppers(
        self, schedulers: tuple[Any, Any], start: int, device: torch.device
    ) -> tuple[Any, Any]:
        """Copies of the schedulers that stand before evaluation `start`."""
        steppers = copy.deepcopy(schedulers)
        for stepper, sigmas in zip(steppers, (self.video_sigmas, self.audio_sigmas), strict=True):
            stepper.set_timesteps(sigmas=sigmas, device=device)
            stepper.set_begin_index(start)
        return steppers

    def equals(self, other: "Schedule") -> bool:
        """Whether both tables are the same, bit for bit."""
        return torch.equal(self.video_sigmas, other.video_sigmas) and torch.equal(
            self.audio_sigmas, other.audio_sigmas
        )
