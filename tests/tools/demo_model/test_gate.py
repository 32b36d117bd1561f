"""What follows a stage does not start on a stage that failed."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tools.demo_model.loop import Training
from tools.demo_model.pace import Recipe
from tools.demo_model.shipping import ship
from tools.demo_model.video_training import require_sharp
from tools.tiny_models import untyped


@pytest.mark.parametrize("shapes", [None, 0.97])
def test_blurred_pictures_stop_a_run(shapes: float | None, tmp_path: Path) -> None:
    """Without a measured round trip, or with one that loses shapes, no latents are made."""
    if shapes is not None:
        (tmp_path / "video_vae.json").write_text(json.dumps({"shape": shapes}))
    with pytest.raises(SystemExit, match="round trip"):
        require_sharp(tmp_path)


def test_sharp_pictures_let_it_go_on(tmp_path: Path) -> None:
    """A round trip in which all but one in fifty shapes are read is enough."""
    (tmp_path / "video_vae.json").write_text(json.dumps({"shape": 0.98}))
    require_sharp(tmp_path)


def test_shipped_shards_start_a_training(tmp_path: Path) -> None:
    """On another machine, without the state, a stage starts from its weights in all their files."""
    sizes = {"encoder_dim": 8, "latent_dim": 64, "decoder_dim": 128}
    audio_vae = untyped("tools.demo_model.models").audio_vae
    torch.manual_seed(1)
    first: nn.Module = audio_vae(**sizes)
    ship(first, tmp_path / "audio_vae", shard="1MB")
    assert len(list((tmp_path / "audio_vae").glob("*.safetensors"))) > 1
    second: nn.Module = audio_vae(**sizes)
    Training("audio_vae", second, Recipe(learning_rate=1e-3), tmp_path).resume()
    ours, theirs = first.state_dict(), second.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_shipping_rounds_weights_and_nothing_else(tmp_path: Path) -> None:
    """What is measured after a stage is what a fresh load computes, rotary frequencies included."""
    models = untyped("tools.demo_model.models")
    small = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "ffn_dim": 64}
    model = models.transformer(**small)
    ship(model, tmp_path / "transformer")
    loaded = type(model).from_pretrained(tmp_path / "transformer").float()
    assert torch.equal(model.rope.inv_freq, loaded.rope.inv_freq)
    assert torch.equal(model.proj_in.weight, loaded.proj_in.weight)
