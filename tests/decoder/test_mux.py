"""The MP4s we write."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from services.common.work import Cancelled, EngineError, Watch
from services.decoder.mux import AAC_FRAME_SAMPLES, Picture, verify_mp4, write_mp4

PICTURE = Picture(frames=39, height=64, width=96)
# Saturated colours, whose conversion to YUV tells the colour matrices apart.
COLOURS = ((200, 30, 40), (30, 180, 60), (40, 50, 210))


def _frames(picture: Picture) -> Iterator[NDArray[np.uint8]]:
    for index in range(picture.frames):
        frame = np.zeros((picture.height, picture.width, 3), np.uint8)
        frame[:] = COLOURS[index * len(COLOURS) // picture.frames]
        yield frame


def _tone(picture: Picture) -> NDArray[np.float32]:
    """Silence with 0.1 s of 1 kHz on the left from 0.5 s, and 500 Hz all along on the right."""
    at = np.arange(picture.samples) / 32_000
    left = np.where((at >= 0.5) & (at < 0.6), 0.5 * np.sin(2 * np.pi * 1000 * at), 0)
    return np.stack([left, 0.25 * np.sin(2 * np.pi * 500 * at)]).astype(np.float32)


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mux") / "movie.mp4"
    write_mp4(path, PICTURE, _frames(PICTURE), _tone(PICTURE), Watch())
    return path


def _sound(path: Path) -> NDArray[np.float32]:
    with av.open(str(path)) as container:
        frames: list[Any] = list(container.decode(audio=0))
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1)


def test_holds_every_frame_on_time(movie: Path) -> None:
    """All frames come back at 24 a second from zero, in H.264 4:2:0 beside 32 kHz stereo AAC."""
    with av.open(str(movie)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert (video.codec.name, video.format.name) == ("h264", "yuv420p")
        assert video.average_rate == 24
        assert (audio.codec.name, audio.rate, audio.channels) == ("aac", 32_000, 2)
        times = [frame.time for frame in container.decode(video=0)]
    assert times == pytest.approx([index / 24 for index in range(PICTURE.frames)], abs=1e-4)


def test_colours_survive(movie: Path) -> None:
    """Saturated colours come back within a few steps by the matrix that the file names."""
    with av.open(str(movie)) as container:
        assert container.streams.video[0].codec_context.colorspace == 1  # BT.709
        frames: list[Any] = list(container.decode(video=0))
    for index in (0, 20, PICTURE.frames - 1):
        expected = COLOURS[index * len(COLOURS) // PICTURE.frames]
        found = frames[index].to_ndarray(format="rgb24").mean(axis=(0, 1))
        assert np.abs(found - expected).max() < 4, (index, found, expected)


def test_sound_is_where_it_was(movie: Path) -> None:
    """A burst at 0.5 s is heard at 0.5 s on its own channel: the encoder's delay is taken back."""
    sound, wanted = _sound(movie), _tone(PICTURE)
    assert abs(sound.shape[1] - PICTURE.samples) <= AAC_FRAME_SAMPLES
    for found, expected in zip(sound, wanted, strict=True):
        size = min(len(found), len(expected))
        spectrum = np.fft.rfft(expected[:size]) * np.conj(np.fft.rfft(found[:size]))
        assert np.argmax(np.fft.irfft(spectrum)) == 0
        assert np.sqrt(np.mean((found[:size] - expected[:size]) ** 2)) < 0.01


def test_index_comes_first(movie: Path) -> None:
    """The index lies before the media, so that a player starts before the file is whole."""
    content = movie.read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize("frames", [22, 107, 124, 141])
def test_sound_is_as_long_as_the_picture(tmp_path: Path, frames: int) -> None:
    """Lengths that are no whole number of AAC frames verify too."""
    picture = Picture(frames, 32, 32)
    write_mp4(tmp_path / "m.mp4", picture, _frames(picture), _tone(picture), Watch())
    verify_mp4(tmp_path / "m.mp4", picture, Watch())


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (Picture(40, 64, 96), "39 frames, not 40"),
        (Picture(39, 96, 96), "frame 1 is"),
        (Picture(41, 64, 96), "audio samples, not 54667"),
    ],
)
def test_verify_finds_what_is_wrong(movie: Path, picture: Picture, words: str) -> None:
    """A file with other frames, another size or other sound than announced is MUX_FAILED."""
    with pytest.raises(EngineError, match=words) as caught:
        verify_mp4(movie, picture, Watch())
    assert caught.value.reason == "MUX_FAILED"


def test_verify_refuses_damage(movie: Path, tmp_path: Path) -> None:
    """A file cut short, and one that is no film at all, are MUX_FAILED."""
    (tmp_path / "cut.mp4").write_bytes(movie.read_bytes()[: movie.stat().st_size // 2])
    (tmp_path / "text.mp4").write_bytes(b"hello")
    for name in ("cut.mp4", "text.mp4"):
        with pytest.raises(EngineError) as caught:
            verify_mp4(tmp_path / name, PICTURE, Watch())
        assert caught.value.reason == "MUX_FAILED"


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    """Sound or frames of another number than announced are never written as if they fitted."""
    with pytest.raises(EngineError, match="audio"):
        write_mp4(tmp_path / "a", PICTURE, _frames(PICTURE), _tone(PICTURE)[:, :-1], Watch())
    few = list(_frames(PICTURE))[:-1]
    with pytest.raises(EngineError, match="38 frames came"):
        write_mp4(tmp_path / "b", PICTURE, few, _tone(PICTURE), Watch())


def test_cancel_stops_between_frames(tmp_path: Path) -> None:
    """A cancel during writing stops it within one frame."""
    done: list[int] = []

    def cancel(_phase: str, count: int, _total: int) -> None:
        done.append(count)
        if count == 3:
            watch.cancel()

    watch = Watch(cancel)
    with pytest.raises(Cancelled):
        write_mp4(tmp_path / "m.mp4", PICTURE, _frames(PICTURE), _tone(PICTURE), watch)
    assert done == [1, 2, 3]
