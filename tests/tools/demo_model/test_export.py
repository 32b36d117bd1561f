"""An exported run is a checkpoint that the stages load, with a card that names its bytes."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from services.common.checkpoint.components import ModelSettings, load
from services.common.checkpoint.files import component_folder
from services.sampler.parallel.weights import Files
from tools.demo_model import card, export, restart, shipping
from tools.demo_model.presentation import REFERENCE_FRAMES, present
from tools.tiny_models import untyped


def test_stages_load_it(random_checkpoint: Path) -> None:
    """Every component of the real layout loads, in fp32 on a CPU, at most 48 MB together."""
    names = ("text_encoder", "tokenizer", "processor", "transformer", "transformer_ref")
    parts = load(ModelSettings(str(random_checkpoint), device="cpu"), (*names, "vae", "audio_vae"))
    assert parts["vae"].dtype == parts["transformer"].dtype == torch.float32
    one, other = parts["transformer"].state_dict(), parts["transformer_ref"].state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    size = sum(path.stat().st_size for path in random_checkpoint.rglob("*") if path.is_file())
    assert size <= export.MOST_BYTES


def test_parts_of_the_reference_partition_come_from_the_shared_files(
    random_checkpoint: Path,
) -> None:
    """Ranks that read single tensors find those of `transformer_ref` where the index says."""
    folder = component_folder(str(random_checkpoint), None, "transformer_ref")
    with Files(folder) as files:
        assert files.tensor("proj_in.weight").dtype == torch.float16


def test_a_run_comes_back_in_small_files(random_checkpoint: Path, tmp_path: Path) -> None:
    """Packed and unpacked, a run is what it was, and no tar is larger than 16 MiB."""
    run = random_checkpoint.parent / "run"
    packed = shipping.pack(run, tmp_path / "packed")
    assert len(packed) <= 6
    for path in packed:
        assert path.stat().st_size < 16 * 2**20
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path / "back", filter="data")
    for path in run.rglob("*"):
        if path.is_file():
            back = tmp_path / "back" / path.relative_to(run)
            assert back.read_bytes() == path.read_bytes()


def test_card_names_the_bytes(random_checkpoint: Path) -> None:
    """The card's digests are the files'; one changed byte is found."""
    assert card.differing(random_checkpoint) == []
    weights = random_checkpoint / "vae" / "diffusion_pytorch_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert card.differing(random_checkpoint) == ["vae/diffusion_pytorch_model.safetensors"]
    weights.write_bytes(content)


def test_references_are_read_as_in_training(random_checkpoint: Path) -> None:
    """A picture and a video of 39 frames take the text and latent rows that training gave them."""
    classes = untyped("diffusers.modular_pipelines.minimax_h3.references")
    picture = np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8)
    video = np.repeat(picture[None], REFERENCE_FRAMES, axis=0)
    parts = load(
        ModelSettings(str(random_checkpoint), device="cpu"),
        ("text_encoder", "tokenizer", "processor"),
    )
    encoders = untyped("diffusers.modular_pipelines.minimax_h3.encoders")
    step = encoders.MiniMaxH3Ref2VATextEncoderStep()
    for mode, given in (
        ("image", [classes.MiniMaxH3ImageReference(Image.fromarray(picture))]),
        ("video", [classes.MiniMaxH3VideoReference(video, 24.0)]),
    ):
        _, images, videos, times = step._gather_vision_features(parts["processor"], given, 24)
        ids, _ = step._build_presentation(
            parts["tokenizer"], "a red ball", given, images, videos, times
        )
        assert ids == present(parts["tokenizer"], "a red ball", mode)[0]


def test_the_shipped_card_names_the_shipped_bytes() -> None:
    """The weights in the repository are those that the model card describes."""
    assert card.differing(card.SHIPPED) == []


def test_a_checkpoint_can_be_trained_on(random_checkpoint: Path, tmp_path: Path) -> None:
    """Taken apart and exported again, a checkpoint has the same weights and statistics."""
    restart.restart(random_checkpoint, tmp_path / "run")
    export.export(tmp_path / "run", tmp_path / "again")
    for path in random_checkpoint.glob("*/*.safetensors"):
        name = path.relative_to(random_checkpoint)
        assert card.digest(tmp_path / "again" / name) == card.digest(path), name
    with pytest.raises(SystemExit, match="holds a training already"):
        restart.restart(random_checkpoint, tmp_path / "run")


def test_scores_are_kept_beside_others(tmp_path: Path) -> None:
    """A row measured again replaces itself alone; rows lie in the order of the groups."""

    def row(what: str, evaluations: int, colour: str) -> dict[str, str]:
        return {"what": what, "evaluations": str(evaluations), "colour": colour}

    english, both = "t2va, one object, English", "fl2va, both"
    card.add_scores(tmp_path, [row(both, 8, "a"), row(english, 12, "b")])
    card.add_scores(tmp_path, [row(english, 8, "c"), row(both, 8, "d")])
    kept = [row(english, 8, "c"), row(english, 12, "b"), row(both, 8, "d")]
    assert json.loads((tmp_path / card.SCORES).read_text()) == kept
    assert card.table(kept) in (tmp_path / card.CARD).read_text()
