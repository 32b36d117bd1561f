"""The denoising loop of MiniMax-H3, ours so that it reports, stops and goes on where it was.

diffusers' own loop has no callback and no interrupt. This one makes the same calls in the same
order (see `diffusers.modular_pipelines.minimax_h3`), so the results are equal bit for bit. What an
evaluation is, it does not know: that is an `Evaluate`, the transformer itself or a faster one.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import MiniMaxH3SetTimestepsStep

from services.common.work import Cancelled, NonFinite, Watch
from services.sampler.loop.rows import Rows
from services.sampler.loop.schedule import Schedule
from services.sampler.loop.sequence import Sequence


class Evaluate(Protocol):
    """One forward: the velocities of all video and all audio rows, conditions first."""

    def __call__(
        self, index: int, video: torch.Tensor, audio: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


# keep(evaluations done, rows now): called from time to time, and before a cancelled run ends.
Keep = Callable[[int, Rows], None]


def evaluate_by(
    transformer: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    sequence: Sequence,
    schedule: Schedule,
    prompt_embeds: torch.Tensor,
) -> Evaluate:
    """Evaluations by a transformer with diffusers' signature, every argument said explicitly."""
    device = prompt_embeds.device
    placed = sequence.to(device)

    def evaluate(
        index: int, video: torch.Tensor, audio: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        timestep, timestep_indices = MiniMaxH3SetTimestepsStep.build_row_timesteps(
            sequence.video_indices,
            sequence.audio_indices,
            sequence.condition_video_rows,
            sequence.condition_audio_rows,
            sequence.text_indices.numel(),
            *schedule.times(index),
        )
        video_velocity, audio_velocity = transformer(
            hidden_states=video[None],
            audio_hidden_states=audio[None],
            encoder_hidden_states=prompt_embeds,
            timestep=timestep.to(device),
            timestep_indices=timestep_indices.to(device),
            **placed,
            return_dict=False,
        )
        return video_velocity[0], audio_velocity[0]

    return evaluate


def denoise(
    evaluate: Evaluate,
    schedulers: tuple[Any, Any],
    schedule: Schedule,
    rows: Rows,
    *,
    start: int,
    watch: Watch,
    keep: Keep | None = None,
    keep_every: int = 0,
) -> Rows:
    """Denoise `rows`, which stand before evaluation `start`, to the end of the schedule.

    The schedulers (video, audio) are copied, so no state survives a run. With `keep_every`, `keep`
    is called after each so many evaluations. Raises `Cancelled` between two evaluations, and
    `NonFinite` after a bad one.
    """
    video_stepper, audio_stepper = schedule.steppers(schedulers, start, rows.video.device)
    video = torch.cat([rows.condition, rows.video])
    audio = torch.cat([rows.audio_condition, rows.audio])
    made_video = video[len(rows.condition) :]  # views: the conditions are never written
    made_audio = audio[len(rows.audio_condition) :]

    def now() -> Rows:
        return Rows(made_video, made_audio, rows.condition, rows.audio_condition)

    last = schedule.evaluations
    kept = start
    for index in range(start, last):
        try:
            watch.raise_if_cancelled()
        except Cancelled:
            if keep is not None and keep_every and index > kept:
                keep(index, now())
            raise
        video_velocity, audio_velocity = evaluate(index, video, audio)
        made_video[:] = _step(
            video_stepper, index, video_velocity[len(rows.condition) :], made_video
        )
        made_audio[:] = _step(
            audio_stepper, index, audio_velocity[len(rows.audio_condition) :], made_audio
        )
        if not bool(torch.isfinite(made_video).all() & torch.isfinite(made_audio).all()):
            raise NonFinite(f"the latents after evaluation {index + 1} of {last}")
        if keep is not None and keep_every and (index + 1) % keep_every == 0 and index + 1 < last:
            keep(index + 1, now())
            kept = index + 1
        watch.report("evaluate", index + 1, last)
    watch.raise_if_cancelled()
    return now()


def _step(stepper: Any, index: int, velocity: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    (stepped,) = stepper.step(velocity.float(), stepper.timesteps[index], sample, return_dict=False)
    result: torch.Tensor = stepped
    return result
