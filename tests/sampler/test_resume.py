"""A run that was cut short goes on where it was, or says why it cannot."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, Watch
from services.sampler.engine import SamplerEngine
from services.sampler.loop import snapshot
from services.sampler.order import SampleOrder
from services.sampler.recipe import PARTITIONS, Recipe
from tests.sampler.orders import conditionings, order

EVALUATIONS, EVERY = 6, 2
# A process that dies by SIGKILL in the middle of the report of evaluation 3.
DYING = """
import os, signal, sys
from pathlib import Path
from services.common.work import Watch
from tests.sampler.test_resume import load, half_order
checkpoint, mode, conditioning, folder = sys.argv[1:]
watch = Watch(lambda _, done, __: done == 3 and os.kill(os.getpid(), signal.SIGKILL))
load(Path(checkpoint)).sample(
    half_order(mode, Path(folder) / "half"), Path(conditioning), Path(folder) / "never", watch
)
"""


def load(checkpoint: Path, **recipe: Any) -> SamplerEngine:
    """An engine with both partitions that keeps a snapshot every other evaluation."""
    settings = ModelSettings(str(checkpoint), device="cpu", threads=2)
    engine = SamplerEngine(settings, Recipe(PARTITIONS, snapshot_every=EVERY, **recipe))
    engine.load()
    return engine


def half_order(mode: str, half: Path | None = None) -> SampleOrder:
    """A run that keeps its snapshots at `half`."""
    return replace(order(evaluations=EVALUATIONS, mode=mode), snapshot=half)


def index_of(path: Path) -> int:
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["index"])


def cut(engine: SamplerEngine, asked: SampleOrder, given: Path, after: int) -> None:
    """Cancel a run after some evaluations."""
    watch = Watch(lambda _phase, done, _total: watch.cancel() if done == after else None)
    with pytest.raises(Cancelled):
        engine.sample(asked, given, given.with_name("never"), watch)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> SamplerEngine:
    return load(tiny_checkpoint)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A conditioning file of every mode."""
    return conditionings(tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def half(
    engine: SamplerEngine, given: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The snapshot of a t2va run after 4 of 6 evaluations."""
    path = tmp_path_factory.mktemp("half") / "half"
    cut(engine, half_order("t2va", path), given["t2va"], after=4)
    return path


@pytest.mark.parametrize("mode", ["t2va", "fl2va", "ref2va"])
def test_killed_run_goes_on(
    engine: SamplerEngine, tiny_checkpoint: Path, given: dict[str, Path], tmp_path: Path, mode: str
) -> None:
    """Killed at evaluation 3 and gone on with in another process: an unbroken run's bits."""
    words = [str(tiny_checkpoint), mode, str(given[mode]), str(tmp_path)]
    died = subprocess.run([sys.executable, "-c", DYING, *words], capture_output=True, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert [path.name for path in tmp_path.iterdir()] == ["half"]
    assert index_of(tmp_path / "half") == 2

    seen: list[int] = []
    watch = Watch(lambda _phase, done, _total: seen.append(done))
    resumed = replace(half_order(mode), resume=tmp_path / "half")
    timings = engine.sample(resumed, given[mode], tmp_path / "resumed", watch)
    assert seen == [2, 3, 4, 5, 6]
    assert timings.keys() == {"prepare", "resume", "evaluate", "write"}

    timings = engine.sample(half_order(mode), given[mode], tmp_path / "whole", Watch())
    assert "resume" not in timings
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_cancelled_run_loses_no_evaluation(
    engine: SamplerEngine, given: dict[str, Path], tmp_path: Path
) -> None:
    """What was evaluated between the last snapshot and the cancel is kept as well, once."""
    path = tmp_path / "half"
    cut(engine, half_order("t2va", path), given["t2va"], after=3)
    assert index_of(path) == 3
    again = replace(half_order("t2va", path), resume=path)
    cut(engine, again, given["t2va"], after=5)
    assert index_of(path) == 5
    engine.sample(again, given["t2va"], tmp_path / "resumed", Watch())
    engine.sample(half_order("t2va"), given["t2va"], tmp_path / "whole", Watch())
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_snapshot_holds_conditions_and_tables(
    engine: SamplerEngine, given: dict[str, Path], tmp_path: Path
) -> None:
    """It holds the noised conditions, both sigma tables and the rows, in full precision."""
    path = tmp_path / "half"
    cut(engine, half_order("ref2va", path), given["ref2va"], after=2)
    tensors = load_file(path)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "video": (37 * 2 * 3, 96),
        "audio": (2 * 207, 32),
        "condition": (2 * 3, 96),
        "audio_condition": (0, 32),
        "video_sigmas": (EVALUATIONS + 1,),
        "audio_sigmas": (EVALUATIONS + 1,),
    }
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 8}, "another request"),
        ({"evaluations": 7}, "another request"),
        ({"width": 64}, "another request"),
        ({"resume": Path("/nowhere")}, "no such snapshot"),
    ],
)
def test_other_request_is_refused(
    engine: SamplerEngine,
    given: dict[str, Path],
    half: Path,
    tmp_path: Path,
    change: dict[str, Any],
    words: str,
) -> None:
    """A snapshot of another request is refused before any evaluation, with what differs."""
    asked = replace(replace(half_order("t2va"), resume=half), **change)
    reports: list[int] = []
    watch = Watch(lambda _phase, done, _total: reports.append(done))
    with pytest.raises(EngineError, match=words) as caught:
        engine.sample(asked, given["t2va"], tmp_path / "out", watch)
    assert caught.value.reason == "SNAPSHOT_REFUSED"
    assert reports == []
    assert list(tmp_path.iterdir()) == []


def test_other_conditioning_and_recipe_are_refused(
    engine: SamplerEngine, tiny_checkpoint: Path, given: dict[str, Path], half: Path, tmp_path: Path
) -> None:
    """The same request under other conditioning, or computed otherwise, is another run."""
    asked = replace(half_order("t2va"), resume=half)
    tensors = load_file(given["t2va"])
    tensors["prompt_embeds"][0, 0, 0] += 1
    save_file(tensors, tmp_path / "other")
    with pytest.raises(EngineError, match="another conditioning"):
        engine.sample(asked, tmp_path / "other", tmp_path / "out", Watch())
    otherwise = load(tiny_checkpoint, attention="math")
    with pytest.raises(EngineError, match="another request"):
        otherwise.sample(asked, given["t2va"], tmp_path / "out", Watch())


def test_damaged_snapshot_is_refused(
    engine: SamplerEngine, given: dict[str, Path], half: Path, tmp_path: Path
) -> None:
    """One that is cut off, of another schedule, past the end or not finite begins nothing."""
    with safe_open(half, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(half)
    bent = tensors["video_sigmas"].clone()
    bent[1] += 1e-6
    nan = tensors["video"].clone()
    nan[0, 0] = float("nan")
    save_file({**tensors, "video_sigmas": bent}, tmp_path / "schedule", metadata)
    save_file({**tensors, "video": nan}, tmp_path / "nan", metadata)
    save_file({**tensors, "video": nan[1:]}, tmp_path / "shape", metadata)
    save_file(tensors, tmp_path / "past", {**metadata, "index": "6"})
    save_file(tensors, tmp_path / "format", {**metadata, "format": "0"})
    (tmp_path / "torn").write_bytes(half.read_bytes()[:-9])
    for name in ("schedule", "nan", "shape", "past", "format", "torn"):
        asked = replace(half_order("t2va"), resume=tmp_path / name)
        with pytest.raises(EngineError) as caught:
            engine.sample(asked, given["t2va"], tmp_path / "out", Watch())
        assert caught.value.reason == "SNAPSHOT_REFUSED", name


def test_full_disk_costs_the_snapshot_alone(
    engine: SamplerEngine,
    given: dict[str, Path],
    half: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot that cannot be written leaves the one before whole, and the run goes on."""
    before = half.read_bytes()
    asked = replace(half_order("t2va", tmp_path / "half"), resume=half)
    (tmp_path / "half").write_bytes(before)

    def fail(_tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(snapshot, "save_file", fail)
    cut(engine, asked, given["t2va"], after=5)
    assert (tmp_path / "half").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["half"]


def test_none_are_kept_unless_asked_for(
    tiny_checkpoint: Path, given: dict[str, Path], tmp_path: Path
) -> None:
    """Every 0 evaluations is never, not even at a cancel."""
    settings = ModelSettings(str(tiny_checkpoint), device="cpu", threads=2)
    never = SamplerEngine(settings, Recipe(snapshot_every=0))
    never.load()
    cut(never, half_order("t2va", tmp_path / "half"), given["t2va"], after=3)
    assert list(tmp_path.iterdir()) == []
