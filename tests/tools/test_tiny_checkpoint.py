"""The tiny checkpoint is the same for everyone and never half there."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings, load
from services.common.checkpoint.facts import describe
from services.common.checkpoint.files import CheckpointError
from tools import tiny_checkpoint


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_builds_are_identical(tmp_path: Path) -> None:
    """A build in another process, at another place, has the same bytes in every file."""
    out = tmp_path / "elsewhere" / "tiny"
    command = [sys.executable, "-m", "tools.tiny_checkpoint", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert str(out) in done.stdout and "parameters" in done.stdout and "bytes" in done.stdout
    tiny_checkpoint.build(tmp_path / "here")
    assert _digests(out) == _digests(tmp_path / "here")


def test_existing_is_kept(tmp_path: Path) -> None:
    """An existing folder is left alone unless --force is given."""
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(FileExistsError, match="--force"):
        tiny_checkpoint.build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that fails half way leaves neither the folder nor its draft."""

    def fail(folder: Path) -> int:
        (folder / "part").write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(tiny_checkpoint, "_write", fail)
    with pytest.raises(OSError, match="disk full"):
        tiny_checkpoint.build(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_weights_are_finite(tiny_checkpoint: Path) -> None:
    """Every weight of every component is a finite number."""
    files = list(tiny_checkpoint.rglob("*.safetensors"))
    assert len(files) == 5  # both partitions of the transformer, encoder, two VAEs
    for path in files:
        for name, weight in load_file(path).items():
            assert bool(torch.isfinite(weight).all()), (path, name)


def test_facts_are_the_models(tiny_checkpoint: Path) -> None:
    """Its facts have the released checkpoint's structure and its own defaults."""
    facts = describe(str(tiny_checkpoint))
    assert (facts.frame_step, facts.frame_offset, facts.fps) == (17, 5, 24)
    assert (facts.min_frames, facts.max_frames, facts.canvas_multiple) == (124, 345, 32)
    assert (facts.video_latent_channels, facts.audio_latent_channels) == (24, 32)
    assert (facts.sample_rate_hz, facts.text_limit_tokens, facts.text_dim) == (32_000, 1024, 64)
    assert (facts.default_height, facts.default_width, facts.default_evaluations) == (128, 128, 8)
    assert facts.attention_heads == 8


def test_facts_need_no_torch(tiny_checkpoint: Path) -> None:
    """Reading the facts imports none of the big libraries."""
    code = (
        "import sys; from services.common.checkpoint.facts import describe; "
        f"describe({str(tiny_checkpoint)!r}); "
        "sys.exit(bool({'torch', 'diffusers', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_digest_follows_what_is_computed(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A copy has the same digest, other defaults keep it, and other weights change it."""
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    facts = describe(str(copy))
    assert facts == describe(str(tiny_checkpoint))
    (copy / "reelmesh.json").write_text(json.dumps({"default_evaluations": 3}))
    assert describe(str(copy)).digest == facts.digest
    weights = copy / "transformer" / "diffusion_pytorch_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[8 + int.from_bytes(content[:8], "little") :] = bytes(
        byte ^ 1 for byte in content[8 + int.from_bytes(content[:8], "little") :]
    )
    weights.write_bytes(content)
    assert describe(str(copy)).digest != facts.digest


def test_incomplete_checkpoints_are_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A missing index, component or weight file is named, and hub ids are told from folders."""
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    settings = ModelSettings(str(copy), device="cpu")
    (copy / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not load"):
        load(settings, ["vae"])
    shutil.rmtree(copy / "transformer")
    with pytest.raises(CheckpointError, match="transformer is missing"):
        load(settings, ["transformer"])
    with pytest.raises(CheckpointError, match="transformer"):
        describe(str(copy))
    (copy / "modular_model_index.json").unlink()
    with pytest.raises(CheckpointError, match="modular_model_index"):
        load(settings, ["scheduler"])
    with pytest.raises(CheckpointError, match=r"tools\.tiny_checkpoint --out checkpoints/none"):
        describe("checkpoints/none")
