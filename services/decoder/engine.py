"""Decodes one clip's latents into frames and a waveform, and those into a verified MP4.

The video VAE cuts time into windows of 7 latent frames, 5 apart. Each window is decoded by itself,
so that a cancelled run stops within one, and cross-faded over 5 frames with the one before: the
same arithmetic as diffusers' decode of the whole clip, equal to it bit for bit.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from services.common.checkpoint.components import (
    DECODER_COMPONENTS,
    ModelSettings,
    load,
    use_threads,
)
from services.common.work import EngineError, NonFinite, Watch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = structlog.get_logger()

# The VAE's pixels are normalised as ImageNet's (diffusers, MiniMaxH3ModularPipeline).
_PIXEL_MEAN = (0.485, 0.456, 0.406)
_PIXEL_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class DecodeOrder:
    """What the latents hold: canvas in pixels, frames on the 17n+5 grid."""

    height: int
    width: int
    frames: int


@dataclass(frozen=True)
class Clip:
    """A decoded clip before it is encoded."""

    frames: "NDArray[np.uint8]"
    """(frames, height, width, 3), RGB."""
    audio: "NDArray[np.float32]"
    """(2, samples) at 32 kHz, as long as the frames."""
    overs: int
    """Samples beyond full scale, counted before the audio VAE clamps them."""
    timings: dict[str, float]
    """Seconds by phase."""


class DecoderEngine:
    """The video VAE and the audio VAE, both fp32."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._parts: dict[str, Any] = {}

    def load(self) -> None:
        """Load the two VAEs, and nothing else of the checkpoint."""
        self._parts = load(self._settings, DECODER_COMPONENTS)

    def decode(
        self, order: DecodeOrder, latents: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """Write the clip that `latents` hold to `output`, an MP4; returns seconds by phase.

        Raises `EngineError` (BAD_LATENTS, MUX_FAILED), `NonFinite` or `Cancelled`, which it checks
        between windows and between frames; `output` is whole only if nothing was raised.
        """
        from services.decoder.mux import Picture, verify_mp4, write_mp4

        clip = self.frames(order, latents, watch)
        if clip.overs:
            _log.warning("audio_over_full_scale", samples=clip.overs)
        picture = Picture(order.frames, order.height, order.width)
        started = time.perf_counter()
        write_mp4(output, picture, clip.frames, clip.audio, watch)
        written = time.perf_counter()
        verify_mp4(output, picture, watch)
        return {
            **clip.timings,
            "mux": written - started,
            "verify": time.perf_counter() - written,
        }

    def frames(self, order: DecodeOrder, latents: Path, watch: Watch) -> Clip:
        """The frames and the waveform of `latents`, before any lossy coding."""
        import numpy as np
        import torch

        use_threads(self._settings)
        started = time.perf_counter()
        video_latents, audio_latents = self._read(order, latents)
        read = time.perf_counter()
        with torch.no_grad():
            audio, overs = self._sound(order, audio_latents, watch)
            heard = time.perf_counter()
            frames = np.empty((order.frames, order.height, order.width, 3), np.uint8)
            filled = 0
            for window in self._windows(video_latents, watch):
                frames[filled : filled + len(window)] = window
                filled += len(window)
        return Clip(
            frames=frames,
            audio=audio,
            overs=overs,
            timings={
                "read": read - started,
                "decode_audio": heard - read,
                "decode_video": time.perf_counter() - heard,
            },
        )

    def _read(self, order: DecodeOrder, path: Path) -> tuple[Any, Any]:
        """`latents` (1, 24, T, H/16, W/16) and `audio_latents` (2, 32, A), checked."""
        import torch
        from diffusers.modular_pipelines.minimax_h3 import modular_pipeline as h3
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        vae, audio_vae = self._parts["vae"], self._parts["audio_vae"]
        chunk_frames, chunk_latents = vae.config.clip_length, vae.tokens_chunk_size
        ratio = vae.spatial_compression_ratio
        if order.frames <= chunk_frames or order.frames % chunk_frames != chunk_latents:
            raise EngineError("BAD_ORDER", f"frames are 17n + 5 with n >= 1, not {order.frames}")
        expected = {
            "latents": (
                1,
                vae.config.latent_channels,
                h3.video_latent_num_frames(order.frames, chunk_frames, chunk_latents),
                order.height // ratio,
                order.width // ratio,
            ),
            "audio_latents": (
                h3.MINIMAX_H3_AUDIO_CHANNELS,
                audio_vae.config.latent_channels,
                h3.audio_latent_num_frames(order.frames),
            ),
        }
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise EngineError("BAD_LATENTS", f"not a safetensors file: {error}") from error
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != expected or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
            raise EngineError(
                "BAD_LATENTS", f"the clip's latents are fp32 {expected}, and these are {found}"
            )
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise NonFinite(f"the {name.replace('_', ' ')}")
        return tensors["latents"], tensors["audio_latents"]

    def _sound(self, order: DecodeOrder, latents: Any, watch: Watch) -> tuple[Any, int]:
        """The waveform (2, samples), cut or padded with silence to the picture's length."""
        import torch

        from services.decoder.mux import Picture

        watch.raise_if_cancelled()
        watch.report("decode_audio", 0, 1)
        audio_vae = self._parts["audio_vae"]
        latents = _denormalize(latents.to(audio_vae.device), audio_vae.config)
        with _counting_overs(audio_vae.decoder.conv_post) as overs:
            waveform = audio_vae.decode(latents, return_dict=False)[0].float()[:, 0].cpu()
        if not bool(torch.isfinite(waveform).all()):
            raise NonFinite("the decoded audio samples")
        samples = Picture(order.frames, order.height, order.width).samples
        waveform = torch.nn.functional.pad(waveform, (0, samples - waveform.shape[1]))
        watch.report("decode_audio", 1, 1)
        return waveform.contiguous().numpy(), sum(overs)

    def _windows(self, latents: Any, watch: Watch) -> Iterator["NDArray[np.uint8]"]:
        """The frames in order, (n, height, width, 3): 17 for each window, then the last 5."""
        import torch

        vae = self._parts["vae"]
        step, length = vae.tokens_chunk_size, vae.tokens_chunk_size + vae.token_overlap
        windows = (latents.shape[2] - vae.token_overlap) // step
        latents = _denormalize(latents.to(vae.device), vae.config)
        rising = torch.arange(vae.frame_overlap, device=vae.device, dtype=torch.float32)
        rising = (rising / vae.frame_overlap).view(1, 1, -1, 1, 1)
        watch.report("decode_video", 0, windows)
        tail = None
        for index in range(windows):
            watch.raise_if_cancelled()
            window = latents[:, :, index * step : index * step + length]
            decoded = vae.decode(window, return_dict=False)[0].float()  # (1, 3, 22, H, W)
            if not bool(torch.isfinite(decoded).all()):
                raise NonFinite(f"the frames of window {index + 1} of {windows}")
            head, rest = decoded.split([vae.config.clip_length, vae.frame_overlap], dim=2)
            if tail is not None:
                faded = tail * (1 - rising) + head[:, :, : vae.frame_overlap] * rising
                head = torch.cat([faded, head[:, :, vae.frame_overlap :]], dim=2)
            yield _pixels(head)
            tail = rest
            watch.report("decode_video", index + 1, windows)
        watch.raise_if_cancelled()
        yield _pixels(tail)


def _denormalize(latents: Any, config: Any) -> Any:
    """Latents at the VAE's own scale: its config holds each channel's mean and deviation."""
    import torch

    shape = (1, -1) + (1,) * (latents.ndim - 2)
    mean = torch.tensor(config.latents_mean, device=latents.device).view(shape)
    std = torch.tensor(config.latents_std, device=latents.device).view(shape)
    return latents * std + mean


def _pixels(video: Any) -> "NDArray[np.uint8]":
    """Normalised (1, 3, frames, H, W) into RGB bytes (frames, H, W, 3), rounded half to even."""
    import torch

    mean = torch.tensor(_PIXEL_MEAN, device=video.device).view(1, -1, 1, 1, 1)
    std = torch.tensor(_PIXEL_STD, device=video.device).view(1, -1, 1, 1, 1)
    unit = (video * std + mean).clamp(0, 1)
    pixels: NDArray[np.uint8] = (
        (unit * 255).round().to(torch.uint8)[0].permute(1, 2, 3, 0).contiguous().cpu().numpy()
    )
    return pixels


@contextmanager
def _counting_overs(last_layer: Any) -> Iterator[list[int]]:
    """Counts the samples beyond +-1 that a layer puts out before they are clamped."""
    overs: list[int] = []

    def count(_module: Any, _inputs: Any, output: Any) -> None:
        overs.append(int((output.abs() > 1).sum()))

    handle = last_layer.register_forward_hook(count)
    try:
        yield overs
    finally:
        handle.remove()
