"""Frames and a waveform into one MP4, and the proof that the file holds them.

H.264 4:2:0 in BT.709 beside AAC stereo, the index in front so that a player starts before the whole
file is there. A file is believed only after `verify_mp4` has decoded every frame of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import Colorspace
from numpy.typing import NDArray

from services.common.work import EngineError, Watch

FPS = 24
SAMPLE_RATE_HZ = 32_000
AAC_FRAME_SAMPLES = 1024
_CRF = 18  # visually lossless by x264's own guide
_AUDIO_BITS_PER_S = 192_000
_BT709 = 1  # AVCOL_PRI_BT709, AVCOL_TRC_BT709 and AVCOL_SPC_BT709 (libavutil/pixfmt.h)
_LIMITED_RANGE = 1  # AVCOL_RANGE_MPEG


@dataclass(frozen=True)
class Picture:
    """The size of a clip: frames, and pixels of each."""

    frames: int
    height: int
    width: int

    @property
    def samples(self) -> int:
        """Audio samples of each channel that last as long as the frames do."""
        return round(self.frames * SAMPLE_RATE_HZ / FPS)


def write_mp4(
    output: Path,
    picture: Picture,
    video: Iterable[NDArray[np.uint8]],
    audio: NDArray[np.float32],
    watch: Watch,
) -> None:
    """Write RGB frames (height, width, 3) and a waveform (2, samples) in [-1, 1] to `output`.

    Raises `EngineError` MUX_FAILED, or `Cancelled` between two frames; `output` is then unusable.
    """
    if audio.shape != (2, picture.samples):
        raise EngineError(
            "MUX_FAILED",
            f"the audio is {audio.shape}, and the picture takes (2, {picture.samples})",
        )
    try:
        with av.open(
            str(output), "w", format="mp4", options={"movflags": "+faststart"}
        ) as container:
            _write_streams(container, picture, video, audio, watch)
    except av.FFmpegError as error:
        raise EngineError("MUX_FAILED", f"writing the MP4 failed: {error}") from error


def _write_streams(
    container: Any,
    picture: Picture,
    video: Iterable[NDArray[np.uint8]],
    audio: NDArray[np.float32],
    watch: Watch,
) -> None:
    pictures = container.add_stream("libx264", rate=FPS, options={"crf": str(_CRF)})
    pictures.width, pictures.height = picture.width, picture.height
    pictures.pix_fmt = "yuv420p"
    context = pictures.codec_context
    context.color_primaries = context.color_trc = context.colorspace = _BT709
    context.color_range = _LIMITED_RANGE
    sound = container.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="stereo")
    sound.bit_rate = _AUDIO_BITS_PER_S

    sent_samples = 0
    written = 0
    for written, pixels in enumerate(video, start=1):
        watch.raise_if_cancelled()
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        frame = frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)
        frame.pts, frame.time_base = written - 1, Fraction(1, FPS)
        container.mux(pictures.encode(frame))
        # Sound follows the picture, so that the muxer holds back little.
        due = written * SAMPLE_RATE_HZ // FPS if written < picture.frames else picture.samples
        while due - sent_samples >= AAC_FRAME_SAMPLES or (
            written == picture.frames and sent_samples < due
        ):
            piece = audio[:, sent_samples : min(sent_samples + AAC_FRAME_SAMPLES, due)]
            container.mux(sound.encode(_audio_frame(piece, sent_samples)))
            sent_samples += piece.shape[1]
        watch.report("mux", written, picture.frames)
    if written != picture.frames:
        raise EngineError("MUX_FAILED", f"{written} frames came, {picture.frames} were announced")
    container.mux(pictures.encode(None))
    container.mux(sound.encode(None))


def _audio_frame(piece: NDArray[np.float32], start: int) -> Any:
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(piece, dtype=np.float32), format="fltp", layout="stereo"
    )
    frame.sample_rate, frame.pts, frame.time_base = (
        SAMPLE_RATE_HZ,
        start,
        Fraction(1, SAMPLE_RATE_HZ),
    )
    return frame


def verify_mp4(path: Path, picture: Picture, watch: Watch) -> None:
    """Decode all of an MP4 and raise `EngineError` MUX_FAILED unless it holds what it should.

    The sound may differ from the picture's length by one AAC frame (1,024 samples, 32 ms): the
    encoder delays it by one, which the file's edit list takes back, and pads the last.
    """
    frames = samples = 0
    wrong: list[str] = []
    try:
        with av.open(str(path)) as container:
            pictures, sound = container.streams.video[0], container.streams.audio[0]
            if pictures.average_rate != FPS:
                wrong.append(f"{pictures.average_rate} frames a second, not {FPS}")
            for packet in container.demux(pictures, sound):
                watch.raise_if_cancelled()
                for frame in packet.decode():
                    if isinstance(frame, av.VideoFrame):
                        frames += 1
                        found = (frame.height, frame.width, frame.format.name)
                        if found != (picture.height, picture.width, "yuv420p"):
                            wrong.append(f"frame {frames} is {found}")
                    elif isinstance(frame, av.AudioFrame):
                        samples += frame.samples
                        heard = (frame.sample_rate, frame.layout.nb_channels)
                        if heard != (SAMPLE_RATE_HZ, 2):
                            wrong.append(f"the sound is {heard[0]} Hz in {heard[1]} channels")
    except (av.FFmpegError, IndexError) as error:
        raise EngineError("MUX_FAILED", f"the MP4 does not decode: {error}") from error
    if frames != picture.frames:
        wrong.append(f"{frames} frames, not {picture.frames}")
    if abs(samples - picture.samples) > AAC_FRAME_SAMPLES:
        wrong.append(f"{samples} audio samples, not {picture.samples}")
    if wrong:
        raise EngineError("MUX_FAILED", f"the MP4 is not what was written: {'; '.join(wrong[:3])}")
    watch.report("verify", frames, picture.frames)
