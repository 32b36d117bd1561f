"""Every stage of a training runs on a CPU, one after the other, and the result exports."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from services.common.checkpoint.components import ModelSettings, load
from tools.demo_model import (
    audio_training,
    decoder_training,
    denoiser_training,
    export,
    latents,
    models,
    painting,
    text,
    train,
    video_training,
)
from tools.demo_model.pace import Pace

_CPU = torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and batches so small that a step takes a second; measuring is tested elsewhere."""
    channels = (8, 8, 8, 8, 8, 8)
    heads = {"decoder_num_attention_heads": 1, "decoder_num_layers": 1}
    vae = partial(models.video_vae, block_out_channels=channels, **heads)
    denoiser = partial(models.transformer, num_layers=1, ffn_dim=64)
    changes: list[tuple[Any, str, Any]] = [
        (text, "_BATCH", 8), (video_training, "BATCH", 1), (audio_training, "_CROPS", ((2, 52),)),
        (decoder_training, "AUDIO_CROPS", ((1, 26),)), (decoder_training, "_PICTURES", 1),
        (latents, "_BATCH", 2), (denoiser_training, "BATCH", 2),
        (video_training, "video_vae", vae), (denoiser_training, "transformer", denoiser),
        (video_training, "measure", _nothing), (audio_training, "measure", _nothing),
        (denoiser_training, "measure", _nothing), (painting, "start", _nothing),
    ]  # fmt: skip
    for module, name, value in changes:
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("small")
def test_all_stages_run(tmp_path: Path) -> None:
    """Two steps each, resumed after the first, leave a checkpoint that the mesh's stages load."""
    for stage in train.PLAN:
        for clips in (2, 4):
            train.run(stage, tmp_path, Pace(5.0, 5.0, 1), _CPU, clips)
    state = torch.load(tmp_path / "transformer.state.pt")
    assert state["step"] == 2
    export.export(tmp_path, tmp_path / "checkpoint")
    names = ("text_encoder", "transformer", "transformer_ref", "vae", "audio_vae")
    parts = load(ModelSettings(str(tmp_path / "checkpoint"), device="cpu"), names)
    assert all(bool(each.isfinite().all()) for part in parts.values() for each in part.parameters())
    assert len(parts["vae"].config.latents_std) == models.VIDEO_CHANNELS
    assert min(parts["vae"].config.latents_std) > 0
