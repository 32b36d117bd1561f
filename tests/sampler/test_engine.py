"""The sampler engine."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, NonFinite, Watch
from services.sampler.engine import SamplerEngine
from services.sampler.order import SampleOrder

TOKENS = 5


def _order(seed: int = 7, evaluations: int = 2, **other: int) -> SampleOrder:
    size: dict[str, Any] = {"height": 64, "width": 96, "frames": 124, **other}
    return SampleOrder(mode="t2va", seed=seed, evaluations=evaluations, **size)


def _load(checkpoint: Path) -> SamplerEngine:
    engine = SamplerEngine(ModelSettings(str(checkpoint), device="cpu", threads=2))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> SamplerEngine:
    return _load(tiny_checkpoint)


@pytest.fixture
def conditioning(tmp_path: Path) -> Path:
    return _conditioning(tmp_path / "conditioning")


def _conditioning(path: Path, seed: int = 1, **replaced: Any) -> Path:
    tensors = {
        "prompt_embeds": torch.randn(1, TOKENS, 64, generator=torch.Generator().manual_seed(seed)),
        "text_token_tags": torch.ones(TOKENS, dtype=torch.long),
    }
    save_file({**tensors, **replaced}, path)
    return path


def _equal(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_writes_latents(engine: SamplerEngine, conditioning: Path, tmp_path: Path) -> None:
    """The latents are fp32 in the clip's shapes, and every evaluation is reported."""
    reports: list[tuple[str, int, int]] = []
    watch = Watch(lambda phase, done, total: reports.append((phase, done, total)))
    timings = engine.sample(_order(evaluations=3), conditioning, tmp_path / "out", watch)
    tensors = load_file(tmp_path / "out")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "latents": (1, 24, 37, 4, 6),
        "audio_latents": (2, 32, 207),
    }
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert reports == [("evaluate", done, 3) for done in range(4)]
    assert set(timings) == {"prepare", "evaluate", "write"}


def test_362_frames_run_to_the_end(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path
) -> None:
    """Beyond the trained 345 frames nothing of the engine stands in the way."""
    order = _order(evaluations=1, height=64, width=64, frames=362)
    engine.sample(order, conditioning, tmp_path / "out", Watch())
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "out").items()}
    assert shapes == {"latents": (1, 24, 107, 4, 4), "audio_latents": (2, 32, 603)}


def test_memory_stays_over_many_jobs(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path
) -> None:
    """Twenty jobs that keep snapshots, some of them cancelled, take no more memory than ten."""
    process = psutil.Process()
    resident = []
    for number in range(20):
        order = replace(
            _order(seed=number, evaluations=2, height=64, width=64, frames=22),
            snapshot=tmp_path / "half",
        )
        watch = Watch()
        if number % 4 == 3:
            watch.cancel()
        with suppress(Cancelled):
            engine.sample(order, conditioning, tmp_path / "out", watch)
        resident.append(process.memory_info().rss)
    assert resident[-1] - resident[9] < 8 << 20


def test_runs_leave_no_trace(
    engine: SamplerEngine, conditioning: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Runs back to back, of other seeds and lengths, equal the same runs in a fresh engine."""
    orders = [_order(seed=1), _order(seed=2, evaluations=3), _order(seed=1)]
    for index, order in enumerate(orders):
        engine.sample(order, conditioning, tmp_path / f"shared{index}", Watch())
        _load(tiny_checkpoint).sample(order, conditioning, tmp_path / f"solo{index}", Watch())
        assert _equal(tmp_path / f"shared{index}", tmp_path / f"solo{index}")
    assert _equal(tmp_path / "shared0", tmp_path / "shared2")
    assert not _equal(tmp_path / "shared0", tmp_path / "shared1")


def test_any_thread_gives_the_same(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path
) -> None:
    """A run in a worker thread equals the same run in the main thread."""
    engine.sample(_order(), conditioning, tmp_path / "main", Watch())
    worker = threading.Thread(
        target=engine.sample, args=(_order(), conditioning, tmp_path / "worker", Watch())
    )
    worker.start()
    worker.join()
    assert _equal(tmp_path / "main", tmp_path / "worker")


def test_conditioning_matters(engine: SamplerEngine, conditioning: Path, tmp_path: Path) -> None:
    """Other embeddings under the same seed give other latents."""
    engine.sample(_order(), conditioning, tmp_path / "one", Watch())
    engine.sample(_order(), _conditioning(tmp_path / "c2", seed=2), tmp_path / "two", Watch())
    one, two = (load_file(tmp_path / name)["latents"] for name in ("one", "two"))
    assert float((one - two).abs().max()) > 1e-2


@pytest.mark.parametrize("after", [0, 2])
def test_cancel_stops_within_one_evaluation(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path, after: int
) -> None:
    """After a cancel no further evaluation starts, and nothing is written."""
    done: list[int] = []

    def cancel(_phase: str, count: int, _total: int) -> None:
        done.append(count)
        if count == after:
            watch.cancel()

    watch = Watch(cancel)
    with pytest.raises(Cancelled):
        engine.sample(_order(evaluations=6), conditioning, tmp_path / "out", watch)
    assert done == list(range(after + 1))
    assert not (tmp_path / "out").exists()


def test_cancelled_run_harms_no_other(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path
) -> None:
    """A run after a cancelled one equals a run before it."""
    engine.sample(_order(), conditioning, tmp_path / "before", Watch())
    watch = Watch(lambda _phase, count, _total: watch.cancel() if count == 1 else None)
    with pytest.raises(Cancelled):
        engine.sample(_order(seed=3, evaluations=4), conditioning, tmp_path / "cut", watch)
    engine.sample(_order(), conditioning, tmp_path / "after", Watch())
    assert _equal(tmp_path / "before", tmp_path / "after")


def test_nonfinite_latents_are_refused(
    conditioning: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A model that breaks down is caught at the evaluation where it does."""
    engine = _load(tiny_checkpoint)
    engine._parts["transformer"].proj_out.weight.data[0, 0] = float("inf")
    with pytest.raises(NonFinite, match="evaluation 1 of 4"):
        engine.sample(_order(evaluations=4), conditioning, tmp_path / "out", Watch())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"prompt_embeds": torch.full((1, TOKENS, 64), float("nan"))}, "NON_FINITE"),
        ({"prompt_embeds": torch.zeros(1, TOKENS, 32)}, "BAD_CONDITIONING"),
        ({"text_token_tags": torch.ones(TOKENS + 1, dtype=torch.long)}, "BAD_CONDITIONING"),
        ({"text_token_tags": torch.full((TOKENS,), 3)}, "BAD_CONDITIONING"),
        ({"condition_latents.0": torch.zeros(1, 24, 1, 4, 6)}, "BAD_CONDITIONING"),
    ],
)
def test_bad_conditioning_is_refused(
    engine: SamplerEngine, tmp_path: Path, replaced: dict[str, Any], reason: str
) -> None:
    """Conditioning that does not fit the model or the mode is refused before any evaluation."""
    reports: list[str] = []
    watch = Watch(lambda phase, _done, _total: reports.append(phase))
    with pytest.raises(EngineError) as caught:
        engine.sample(_order(), _conditioning(tmp_path / "c", **replaced), tmp_path / "o", watch)
    assert caught.value.reason == reason
    assert reports == []


def test_no_safetensors_is_refused(engine: SamplerEngine, tmp_path: Path) -> None:
    """A file that is no safetensors file is BAD_CONDITIONING."""
    (tmp_path / "c").write_bytes(b"not tensors")
    with pytest.raises(EngineError) as caught:
        engine.sample(_order(), tmp_path / "c", tmp_path / "o", Watch())
    assert caught.value.reason == "BAD_CONDITIONING"


@pytest.mark.parametrize(
    "wrong",
    [
        {"height": 60},
        {"width": 0},
        {"frames": 125},
        {"frames": 5},
        {"evaluations": 0},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_bad_order_is_refused(
    engine: SamplerEngine, conditioning: Path, tmp_path: Path, wrong: dict[str, int]
) -> None:
    """A canvas, a length or a number of evaluations that cannot be is BAD_ORDER."""
    with pytest.raises(EngineError) as caught:
        engine.sample(_order(**wrong), conditioning, tmp_path / "o", Watch())
    assert caught.value.reason == "BAD_ORDER"
