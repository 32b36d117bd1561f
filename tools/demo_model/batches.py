"""Makes one training batch of the denoiser: clean latents, conditions, noise and times."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.demo_model import table
from tools.demo_model.drawing import Clip
from tools.demo_model.latents import Latents
from tools.demo_model.layouts import REFERENCE_LATENTS, REFERENCE_SOUND, Layout, layout
from tools.demo_model.partners import look, partners
from tools.tiny_models import untyped

VIDEO_SHIFT, AUDIO_SHIFT = 12.0, 3.0
KEPT_AT = 0.999  # the time that the model noises its visual conditions to
_LOWER_SHIFTS = 0.25  # of the clips, whose video is noised less than inference would
_PATCH = (1, 2, 2)


@dataclass(frozen=True)
class Batch:
    """Rows as the transformer takes them, conditions first, and what it should answer."""

    where: Layout
    video: Tensor
    audio: Tensor
    text: Tensor
    times: Tensor
    wanted_video: Tensor
    """(B, targets, 96), of the rows after the conditions."""
    wanted_audio: Tensor


class Source:
    """The cached latents on a device, normalized, with the partners that can be references."""

    def __init__(self, latents: Latents, clips: Sequence[Clip], device: torch.device) -> None:
        known = latents.statistics()
        self.video_mean, self.video_std, self.audio_mean, self.audio_std = (
            torch.tensor(known[name], device=device)
            for name in ("video_mean", "video_std", "audio_mean", "audio_std")
        )
        self.latents = Latents(
            *(
                each.to(device)
                for each in (latents.video, latents.first, latents.last, latents.audio)
            )
        )
        self.spread = torch.exp(self.latents.first.float() / 2).mean((0, 2, 3))  # (24,)
        self.alike = partners(clips, look, device)
        self.sounding = partners(clips, lambda clip: clip.scene.sound, device)

    def batch(self, group: table.Group, chosen: Tensor) -> Batch:
        """A batch of the presentations `chosen` from a group, at times drawn afresh."""
        numbers, text = group.clips[chosen], group.text[chosen].float()
        where = layout(group.mode, group.tags, text.device)
        video = patchify(self.normal_video(self.latents.video[numbers].float()))
        audio = self.normal_audio(self.latents.audio[numbers].float())
        video_sigma, audio_sigma = draw_sigmas(len(numbers), text.device)
        video_noise, audio_noise = torch.randn_like(video), torch.randn_like(audio)
        seen, heard = self.conditions(group.mode, numbers)
        noised = torch.lerp(video, video_noise, video_sigma[:, None, None])
        sounded = torch.lerp(audio, audio_noise, audio_sigma[:, None, None])
        kept = torch.full_like(video_sigma, KEPT_AT)
        times = (1 - video_sigma, 1 - audio_sigma, kept.maximum(1 - video_sigma), kept * 0 + 1)
        return Batch(
            where=where,
            video=torch.cat([*(noise_condition(each) for each in seen), noised], dim=1),
            audio=torch.cat([*heard, sounded], dim=1),
            text=text,
            times=torch.stack(times, dim=1),
            wanted_video=video - video_noise,
            wanted_audio=audio - audio_noise,
        )

    def conditions(self, mode: str, numbers: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Clean condition rows of a mode: video ones, audio ones."""
        seen: list[Tensor] = []
        if mode in ("first", "both"):
            seen.append(
                self._picture(self.latents.video[numbers, :, :1], self.latents.first[numbers])
            )
        if mode in ("last", "both"):
            mean, logvar = self.latents.last[numbers].chunk(2, dim=1)
            seen.append(self._picture(mean[:, :, None], logvar))
        if mode in ("image", "sound"):
            other = self.alike(numbers)
            seen.append(self._picture(self.latents.video[other, :, :1], self.latents.first[other]))
        if mode == "video":
            shown = self.latents.video[self.alike(numbers), :, :REFERENCE_LATENTS].float()
            spread = self.spread.view(1, -1, 1, 1, 1)
            seen.append(patchify(self.normal_video(shown + spread * torch.randn_like(shown))))
        heard: list[Tensor] = []
        if mode == "sound":
            rows = self.latents.audio[self.sounding(numbers), ..., :REFERENCE_SOUND].float()
            heard.append(self.normal_audio(rows))
        return seen, heard

    def normal_video(self, latents: Tensor) -> Tensor:
        """Raw video latents (B, 24, ...) as the denoiser knows them."""
        shape = (1, -1, 1, 1, 1)
        return (latents - self.video_mean.view(shape)) / self.video_std.view(shape)

    def normal_audio(self, latents: Tensor) -> Tensor:
        """Raw audio latents (B, 2, 32, T) as rows (B, 2 T, 32)."""
        return ((latents.transpose(2, 3) - self.audio_mean) / self.audio_std).flatten(1, 2)

    def _picture(self, mean: Tensor, logvar: Tensor) -> Tensor:
        # The library samples a condition's posterior, where targets are its means.
        spread = torch.exp(logvar.float() / 2)[:, :, None]
        return patchify(self.normal_video(mean.float() + spread * torch.randn_like(spread)))


def patchify(latents: Tensor) -> Tensor:
    """(B, 24, T, H, W) as rows (B, T H W / 4, 96), in the library's order."""
    steps = untyped("diffusers.modular_pipelines.minimax_h3.before_denoise")
    rows: Tensor = steps.patchify_video_latents(latents, _PATCH)
    return rows.reshape(len(latents), -1, rows.shape[-1])


def noise_condition(rows: Tensor) -> Tensor:
    """Visual condition rows at the time that the model keeps them at."""
    return torch.lerp(torch.randn_like(rows), rows, KEPT_AT)


def draw_sigmas(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Video and audio sigmas (count,): one place of the schedule a clip drives both shifts.

    The places are spread evenly over the batch, each at random in its share.
    """
    u = (torch.randperm(count, device=device) + torch.rand(count, device=device)) / count
    lower = torch.rand(count, device=device) < _LOWER_SHIFTS
    drawn = 3 + (VIDEO_SHIFT - 3) * torch.rand(count, device=device)
    shift = torch.where(lower, drawn, torch.full_like(u, VIDEO_SHIFT))
    return shifted(u, shift), shifted(u, torch.full_like(u, AUDIO_SHIFT))


def shifted(u: Tensor, shift: Tensor) -> Tensor:
    """The scheduler's sigma at a place u of its grid."""
    return shift * u / (1 + (shift - 1) * u)
