"""The three engines in a row give what diffusers gives in one process, bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Watch
from services.decoder.engine import Clip, DecodeOrder, DecoderEngine
from services.encoder.engine import EncodeOrder, EncoderEngine
from services.sampler.engine import SamplerEngine
from services.sampler.order import SampleOrder
from tests.reference import SIZE, generate

# Results depend on the number of threads: both sides work with this one.
THREADS = 2
REQUESTS = [
    ("a red ball rolls on the beach", 7, 3),
    ("\u00e9t\u00e9: snow falls slowly over a dark city street", 2**63 + 5, 2),
]


@pytest.fixture(scope="module", params=REQUESTS, ids=["short", "long"])
def results(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, torch.Tensor], Clip, dict[str, Any]]:
    """Latents and clip of the engines, and everything of diffusers' own pipeline."""
    prompt, seed, evaluations = request.param
    folder = tmp_path_factory.mktemp("parity")
    settings = ModelSettings(str(tiny_checkpoint), device="cpu", threads=THREADS)
    encoder, sampler = EncoderEngine(settings), SamplerEngine(settings)
    decoder = DecoderEngine(settings)
    for engine in (encoder, sampler, decoder):
        engine.load()
    encoder.encode(EncodeOrder("t2va", prompt, **SIZE), folder / "c", Watch())
    order = SampleOrder("t2va", SIZE["height"], SIZE["width"], SIZE["frames"], seed, evaluations)
    sampler.sample(order, folder / "c", folder / "l", Watch())
    clip = decoder.frames(DecodeOrder(**SIZE), folder / "l", Watch())

    whole = generate(tiny_checkpoint, prompt, seed, evaluations, THREADS)
    return {**load_file(folder / "l"), **load_file(folder / "c")}, clip, whole


@pytest.mark.parametrize("name", ["prompt_embeds", "latents", "audio_latents"])
def test_tensors_are_bit_equal(
    results: tuple[dict[str, torch.Tensor], Clip, dict[str, Any]], name: str
) -> None:
    """What crosses the wire equals the same tensor inside one process."""
    ours, _, whole = results
    assert ours[name].shape == whole[name].shape
    assert torch.equal(ours[name], whole[name])


def test_frames_are_bit_equal(
    results: tuple[dict[str, torch.Tensor], Clip, dict[str, Any]],
) -> None:
    """The frames before H.264 equal diffusers' images, pixel for pixel."""
    _, clip, whole = results
    images = np.stack([np.asarray(image) for image in whole["videos"][0]])
    assert images.std() > 10
    assert np.array_equal(clip.frames, images)


def test_sound_is_bit_equal(
    results: tuple[dict[str, torch.Tensor], Clip, dict[str, Any]],
) -> None:
    """The waveform equals diffusers', cut to the picture's length."""
    _, clip, whole = results
    samples = clip.audio.shape[1]
    assert samples == round(124 * 32_000 / 24)
    assert np.array_equal(clip.audio, whole["audio"][0].numpy()[:, :samples])
