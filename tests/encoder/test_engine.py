"""The encoder engine."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings
from services.common.checkpoint.files import CheckpointError
from services.common.work import Cancelled, EngineError, NonFinite, Watch
from services.encoder.engine import EncodeOrder, EncoderEngine

PROMPT = "a red ball rolls on the beach"


def _order(prompt: str = PROMPT, mode: str = "t2va") -> EncodeOrder:
    return EncodeOrder(mode, prompt, 128, 128, 124)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> EncoderEngine:
    engine = EncoderEngine(ModelSettings(str(tiny_checkpoint), device="cpu", threads=1))
    engine.load()
    return engine


def test_encodes_a_prompt(engine: EncoderEngine, tmp_path: Path) -> None:
    """A prompt becomes one row of embeddings and one text tag for each counted token."""
    reports: list[tuple[str, int, int]] = []
    watch = Watch(lambda phase, done, total: reports.append((phase, done, total)))
    timings = engine.encode(_order(), tmp_path / "c.safetensors", watch)
    tensors = load_file(tmp_path / "c.safetensors")
    tokens = engine.count_tokens(PROMPT)
    assert set(tensors) == {"prompt_embeds", "text_token_tags"}
    assert tensors["prompt_embeds"].shape == (1, tokens, 64)
    assert bool(torch.isfinite(tensors["prompt_embeds"]).all())
    assert tensors["text_token_tags"].tolist() == [1] * tokens
    assert reports == [("encode_text", 0, 1), ("encode_text", 1, 1)]
    assert set(timings) == {"encode_text", "write"}


def test_prompts_differ(engine: EncoderEngine, tmp_path: Path) -> None:
    """Another prompt of the same length has other embeddings, and the same prompt the same file."""
    engine.encode(_order(), tmp_path / "red", Watch())
    engine.encode(_order(PROMPT.replace("red", "blue")), tmp_path / "blue", Watch())
    engine.encode(_order(), tmp_path / "again", Watch())
    red, blue = (load_file(tmp_path / name)["prompt_embeds"] for name in ("red", "blue"))
    assert red.shape == blue.shape and not torch.allclose(red, blue, atol=0.1)
    assert (tmp_path / "red").read_bytes() == (tmp_path / "again").read_bytes()


def test_counts_any_text(engine: EncoderEngine) -> None:
    """Words of the vocabulary are one token, other text is one token a byte, nothing is none."""
    assert engine.count_tokens(PROMPT) == 7
    assert engine.count_tokens("\u00e9\u00e9\U0001f3ac") == 8
    assert engine.count_tokens("") == 0


def test_refuses_what_it_cannot_encode(engine: EncoderEngine, tmp_path: Path) -> None:
    """Another mode and an empty prompt are refused by name, and nothing is written."""
    for order, reason in (
        (_order(mode="ref2va"), "UNSUPPORTED_MODE"),
        (_order(""), "EMPTY_PROMPT"),
    ):
        with pytest.raises(EngineError) as caught:
            engine.encode(order, tmp_path / "c", Watch())
        assert caught.value.reason == reason
    assert list(tmp_path.iterdir()) == []


def test_cancel_before_start(engine: EncoderEngine, tmp_path: Path) -> None:
    """A cancelled watch stops the work before anything is written."""
    watch = Watch()
    watch.cancel()
    with pytest.raises(Cancelled):
        engine.encode(_order(), tmp_path / "c", watch)
    assert list(tmp_path.iterdir()) == []


def test_nonfinite_embeddings_are_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Embeddings that are not numbers never leave the encoder."""
    engine = EncoderEngine(ModelSettings(str(tiny_checkpoint), device="cpu", threads=1))
    engine.load()
    layers = engine._parts["text_encoder"].model.language_model.layers
    layers[3].mlp.down_proj.weight.data.fill_(float("nan"))
    with pytest.raises(NonFinite) as caught:
        engine.encode(_order(), tmp_path / "c", Watch())
    assert caught.value.reason == "NON_FINITE"
    assert list(tmp_path.iterdir()) == []


def test_missing_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    """A folder that is not there is named, with the command that builds one."""
    engine = EncoderEngine(ModelSettings(str(tmp_path / "none")))
    with pytest.raises(CheckpointError, match=r"none.*tools\.tiny_checkpoint"):
        engine.load()
