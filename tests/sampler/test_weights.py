"""A rank's part comes out of the files of a large checkpoint without a second copy."""

import gc
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel as _Transformer

from services.common.checkpoint.files import CheckpointError
from services.sampler.parallel.weights import Files, Share, build, read_config

CPU = torch.device("cpu")
Transformer: Any = _Transformer  # untyped
HALF = Share(index=1, size=2, group=None)


def bytes_of(module: torch.nn.Module) -> int:
    """Of all its parameters."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


@pytest.fixture(scope="module")
def model() -> Any:
    """A transformer of 240 MB."""
    torch.manual_seed(5)
    return Transformer(
        num_attention_heads=8,
        attention_head_dim=64,
        hidden_size=512,
        num_layers=12,
        num_refiner_layers=1,
        ffn_dim=1024,
        text_dim=64,
        freq_dim=64,
        time_embed_hidden_dim=128,
        time_embed_dim=256,
        rope_freq_dim=8,
    )


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, in several files."""
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path, max_shard_size="50MB")
    assert len(list(path.glob("*.safetensors"))) > 3
    return path


class Peak:
    """The most memory of its own that this process had, sampled."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._before = self.bytes = self._now()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth_bytes(self) -> int:
        """Above what it had before."""
        return self.bytes - self._before

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, self._now())

    def _now(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)  # pages of mapped files are the kernel's to drop


def load(folder: Path, share: Share) -> Any:
    """This rank's share of the folder's transformer."""
    with Files(folder) as files:
        return build(Transformer, read_config(folder), files, torch.float32, CPU, share)


def test_only_what_is_kept_is_copied(folder: Path, model: Any) -> None:
    """Half of a divided checkpoint costs half of it and at most one block besides."""
    with Peak() as peak:
        half = load(folder, HALF)
    block = bytes_of(model.transformer_blocks[0])
    assert bytes_of(half) < 0.6 * bytes_of(model)
    assert peak.growth_bytes < bytes_of(half) + block + (8 << 20)


def test_whole_share_is_the_checkpoint(folder: Path, model: Any) -> None:
    """Every parameter, out of whichever file, and the frequencies that no file holds."""
    whole = load(folder, Share(0, 1, None))
    expected = model.state_dict()
    assert {name: tensor.shape for name, tensor in whole.state_dict().items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole.state_dict().items())
    assert torch.equal(whole.get_buffer("rope.inv_freq"), model.rope.inv_freq)


def test_file_that_is_not_there_is_told(folder: Path, tmp_path: Path) -> None:
    """By its name."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    gone = sorted(tmp_path.glob("*.safetensors"))[2]
    gone.unlink()
    with pytest.raises(CheckpointError, match=gone.name):
        load(tmp_path, HALF)
