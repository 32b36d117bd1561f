"""Weights come into memory once: no second copy of them is made on the way."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from diffusers import MiniMaxH3Transformer3DModel

# Loads in a process of its own, and prints the bytes of the weights and the most anonymous memory
# that was in use at once beyond that before: pages of mapped files are no copy.
LOADING = """
import json, sys, threading, psutil
from services.common.checkpoint.components import ModelSettings, load
checkpoint, dtype = sys.argv[1:]
settings = ModelSettings(checkpoint, "cpu", dtype, 1)
load(settings, ["scheduler"])  # what is imported does not count
process, done, most = psutil.Process(), threading.Event(), [0]

def anonymous():
    memory = process.memory_info()
    return memory.rss - memory.shared

def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], anonymous())

before, watcher = anonymous(), threading.Thread(target=watch)
watcher.start()
model = load(settings, ["transformer"])["transformer"]
done.set()
watcher.join()
weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
print(json.dumps([weights, max(most[0], anonymous()) - before]))
"""
SLACK_BYTES = 32 << 20


@pytest.fixture(scope="module")
def sharded(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a transformer of 240 MB in fp32, in shards of 50."""
    folder = shutil.copytree(tiny_checkpoint, tmp_path_factory.mktemp("sharded") / "checkpoint")
    shutil.rmtree(folder / "transformer")
    model = cast("Any", MiniMaxH3Transformer3DModel)(
        num_attention_heads=8,
        attention_head_dim=64,
        hidden_size=512,
        num_layers=8,
        num_refiner_layers=1,
        ffn_dim=1536,
        text_dim=64,
        freq_dim=64,
        time_embed_hidden_dim=512,
        time_embed_dim=384,
        rope_freq_dim=8,
    )
    model.save_pretrained(folder / "transformer", max_shard_size="50MB")
    assert len(list((folder / "transformer").glob("*.safetensors"))) >= 4
    return folder


@pytest.mark.parametrize(("dtype", "copies"), [("fp32", 0), ("bf16", 1)])
def test_weights_are_never_there_twice(sharded: Path, dtype: str, copies: int) -> None:
    """In the file's own precision they are mapped; in another each is converted once."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(sharded), dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    weights, most = json.loads(done.stdout.splitlines()[-1])
    assert weights > 90 << 20
    assert most < copies * weights + SLACK_BYTES
