"""The AdaLN modulations of a run, computed once: they depend on the times alone.

13 of the model's 33 billion weights make them. Read for many evaluations at once, they cost a few
milliseconds a run instead of some every evaluation.
"""

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.transformers.transformer_minimax_h3 import MINIMAX_H3_MODALITY_NUM
from torch.nn.functional import silu

from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence

_KINDS = 4  # of rows with a time of their own: see Schedule.times
_WINDOW = 32  # evaluations whose tables are made at once: 1.2 GB of bf16 at full width


class Tables:
    """The modulations of every evaluation, a window of them at a time.

    Windows lie at multiples of their length, so that a run that goes on in the middle of one
    computes the same tables as an unbroken run.
    """

    def __init__(
        self,
        model: Any,
        sequence: Sequence,
        schedule: Schedule,
        part: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
    ) -> None:
        self._model = model
        self._schedule = schedule
        self._first = -1
        self._blocks: list[torch.Tensor] = []
        self._last = torch.empty(0)
        kinds, tags = _kinds(sequence).to(model.device), sequence.token_tags.to(model.device)
        self.kinds = part(kinds)
        """For every row that is this rank's `part` its row of the last table."""
        self.modulations = part(kinds * MINIMAX_H3_MODALITY_NUM + tags)
        """For every row that is this rank's its row of a block's table."""

    def of(self, index: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Every block's table (kinds * modalities, 6 * hidden), and the last norm's (kinds, 2 *
        hidden), of an evaluation. A block's numbers are shift, scale and gate of the attention,
        then of the feed-forward; the last norm's are shift and scale.
        """
        place = index % _WINDOW
        if index - place != self._first:
            self._fill(index - place)
        return [blocks[place] for blocks in self._blocks], self._last[place]

    def _fill(self, first: int) -> None:
        self._blocks = []  # before the next ones are made: both at once need not fit
        end = min(first + _WINDOW, self._schedule.evaluations)
        times = torch.tensor([self._schedule.times(index) for index in range(first, end)])
        model = self._model
        embedder = model.time_embedder
        dtype = next(embedder.parameters()).dtype
        embeddings = embedder(model.time_proj(times.flatten().to(model.device)).to(dtype))
        active = silu(embeddings)  # (evaluations * kinds, dim), in the embedder's precision
        shape = (end - first, _KINDS * MINIMAX_H3_MODALITY_NUM, -1)
        for block in model.transformer_blocks:
            projection = block.adaln_proj.linear
            made = projection(active.to(projection.weight.dtype))
            self._blocks.append(made.reshape(shape))
        projection = model.norm_out.linear
        made = projection(active.to(projection.weight.dtype))
        self._last = made.reshape(end - first, _KINDS, -1)
        self._first = first


def _kinds(sequence: Sequence) -> torch.Tensor:
    """For every row the place of its time in `Schedule.times`; text has the video's."""
    kinds = torch.zeros(sequence.length, dtype=torch.long)
    kinds[sequence.audio_indices] = 1
    kinds[sequence.video_indices[: sequence.condition_video_rows]] = 2
    kinds[sequence.audio_indices[: sequence.condition_audio_rows]] = 3
    return kinds
