"""The decoder engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, NonFinite, Watch
from services.decoder.engine import DecodeOrder, DecoderEngine
from services.decoder.mux import Picture, verify_mp4

# Two windows of the VAE: 39 frames are 12 latent frames and 65 audio latents.
ORDER = DecodeOrder(height=64, width=96, frames=39)


def _load(checkpoint: Path) -> DecoderEngine:
    engine = DecoderEngine(ModelSettings(str(checkpoint), device="cpu", threads=2))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> DecoderEngine:
    return _load(tiny_checkpoint)


def _latents(path: Path, height: int = 4, width: int = 6, **replaced: Any) -> Path:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        "latents": 0.5 * torch.randn(1, 24, 12, height, width, generator=generator),
        "audio_latents": 0.4 * torch.randn(2, 32, 65, generator=generator),
    }
    save_file({**tensors, **replaced}, path)
    return path


def test_decodes_into_a_film(engine: DecoderEngine, tmp_path: Path) -> None:
    """The MP4 verifies, and progress covers every window and frame."""
    reports: dict[str, list[tuple[int, int]]] = {}
    watch = Watch(lambda phase, done, total: reports.setdefault(phase, []).append((done, total)))
    timings = engine.decode(ORDER, _latents(tmp_path / "l"), tmp_path / "o.mp4", watch)
    verify_mp4(tmp_path / "o.mp4", Picture(39, 64, 96), Watch())
    assert reports["decode_video"] == [(0, 2), (1, 2), (2, 2)]
    assert reports["decode_audio"] == [(0, 1), (1, 1)]
    assert reports["mux"][-1] == reports["verify"][-1] == (39, 39)
    assert set(timings) == {"read", "decode_audio", "decode_video", "mux", "verify"}


def test_clip_is_neither_flat_nor_clipped(engine: DecoderEngine, tmp_path: Path) -> None:
    """Frames vary over space and time, and the sound is audible with headroom."""
    clip = engine.frames(ORDER, _latents(tmp_path / "l"), Watch())
    assert clip.frames.shape == (39, 64, 96, 3) and clip.frames.dtype == np.uint8
    assert clip.frames.std(axis=(1, 2)).min() > 10 and clip.frames.std(axis=0).mean() > 5
    assert clip.audio.shape == (2, 52_000)
    loudness = 20 * np.log10(np.sqrt(np.mean(clip.audio**2, axis=1)))
    assert (loudness > -40).all() and np.abs(clip.audio).max() < 0.99
    assert clip.overs == 0


def test_windows_and_tiles_equal_the_whole(engine: DecoderEngine, tmp_path: Path) -> None:
    """Where the VAE tiles, decoding by windows equals its decoding of the whole, bit for bit."""
    path = _latents(tmp_path / "l", height=18, width=20)
    clip = engine.frames(DecodeOrder(288, 320, 39), path, Watch())
    vae = engine._parts["vae"]
    assert vae.use_tiling and vae.tile_sample_min_height < 288
    generator = torch.Generator().manual_seed(5)
    latents = 0.5 * torch.randn(1, 24, 12, 18, 20, generator=generator)
    with torch.no_grad():
        whole = vae.decode(latents).sample
    mean = torch.tensor((0.485, 0.456, 0.406)).view(1, -1, 1, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(1, -1, 1, 1, 1)
    pixels = ((whole * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    assert np.array_equal(clip.frames, pixels[0].permute(1, 2, 3, 0).numpy())


def test_counts_overs_before_the_clamp(engine: DecoderEngine, tmp_path: Path) -> None:
    """Latents that are too loud are counted where the VAE would hide them in its clamp."""
    loud = _latents(tmp_path / "l", audio_latents=20 * torch.ones(2, 32, 65))
    clip = engine.frames(ORDER, loud, Watch())
    assert clip.overs > 0
    assert np.abs(clip.audio).max() <= 1.0


def test_cancel_stops_within_one_window(engine: DecoderEngine, tmp_path: Path) -> None:
    """After a cancel no further window is decoded and no film is written."""
    done: list[int] = []

    def cancel(phase: str, count: int, _total: int) -> None:
        if phase == "decode_video":
            done.append(count)
            if count == 1:
                watch.cancel()

    watch = Watch(cancel)
    with pytest.raises(Cancelled):
        engine.decode(ORDER, _latents(tmp_path / "l"), tmp_path / "o.mp4", watch)
    assert done == [0, 1]
    assert not (tmp_path / "o.mp4").exists()


@pytest.mark.parametrize("name", ["latents", "audio_latents"])
def test_nonfinite_latents_are_refused(engine: DecoderEngine, tmp_path: Path, name: str) -> None:
    """A single NaN in either tensor is refused before anything is decoded."""
    shape = {"latents": (1, 24, 12, 4, 6), "audio_latents": (2, 32, 65)}[name]
    bad = torch.zeros(shape)
    bad.view(-1)[17] = float("nan")
    replaced: dict[str, Any] = {name: bad}
    with pytest.raises(NonFinite, match=name.replace("_", " ")):
        engine.frames(ORDER, _latents(tmp_path / "l", **replaced), Watch())


@pytest.mark.parametrize(
    ("component", "words"), [("vae", "frames of window 1"), ("audio_vae", "audio samples")]
)
def test_nonfinite_output_is_refused(
    tiny_checkpoint: Path, tmp_path: Path, component: str, words: str
) -> None:
    """A VAE that breaks down is caught, though clamps and bytes would hide it."""
    engine = _load(tiny_checkpoint)
    next(engine._parts[component].decoder.parameters()).data.fill_(float("nan"))
    with pytest.raises(NonFinite, match=words):
        engine.decode(ORDER, _latents(tmp_path / "l"), tmp_path / "o.mp4", Watch())
    assert not (tmp_path / "o.mp4").exists()


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (DecodeOrder(64, 96, 56), "BAD_LATENTS"),
        (DecodeOrder(96, 64, 39), "BAD_LATENTS"),
        (DecodeOrder(64, 96, 40), "BAD_ORDER"),
    ],
)
def test_latents_of_another_clip_are_refused(
    engine: DecoderEngine, tmp_path: Path, order: DecodeOrder, reason: str
) -> None:
    """Latents that are not of the ordered canvas and length are refused."""
    with pytest.raises(EngineError) as caught:
        engine.decode(order, _latents(tmp_path / "l"), tmp_path / "o.mp4", Watch())
    assert caught.value.reason == reason


def test_half_precision_latents_are_refused(engine: DecoderEngine, tmp_path: Path) -> None:
    """Latents in another dtype than fp32 are BAD_LATENTS: they were rounded on the way."""
    half = torch.zeros(1, 24, 12, 4, 6, dtype=torch.bfloat16)
    with pytest.raises(EngineError) as caught:
        engine.frames(ORDER, _latents(tmp_path / "l", latents=half), Watch())
    assert caught.value.reason == "BAD_LATENTS"
