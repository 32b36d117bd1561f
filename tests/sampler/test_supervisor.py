"""The supervisor with a real rank process: same verb as the engine, and it outlives its rank."""

import errno
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, Watch
from services.encoder.engine import EncodeOrder, EncoderEngine
from services.sampler.engine import SamplerEngine
from services.sampler.order import SampleOrder
from services.sampler.ranks.complaint import explain
from services.sampler.ranks.plan import Limits, Plan
from services.sampler.ranks.supervisor import Supervisor

THREADS = 1


def order(seed: int = 7, evaluations: int = 2) -> SampleOrder:
    return SampleOrder("t2va", 128, 128, 124, seed, evaluations)


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path) -> ModelSettings:
    """The tiny checkpoint on one thread."""
    return ModelSettings(str(tiny_checkpoint), "cpu", threads=THREADS)


@pytest.fixture(scope="module")
def conditioning(settings: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the encoder made of a prompt."""
    path = tmp_path_factory.mktemp("conditioning") / "c"
    encoder = EncoderEngine(settings)
    encoder.load()
    encoder.encode(EncodeOrder("t2va", "a red ball", 128, 128, 124), path, Watch())
    return path


@pytest.fixture(scope="module")
def supervisor(settings: ModelSettings) -> Iterator[Supervisor]:
    """A supervisor whose rank has loaded."""
    made = Supervisor(Plan(settings, "sampler-test", limits=Limits(load_s=240)))
    made.load()
    yield made
    made.close()
    assert not rank_processes()


def rank_processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()  # a mesh of other tests may have ranks of its own
        if "spawn_main" in " ".join(child.cmdline())
    ]


def test_rank_gives_what_the_engine_gives(
    supervisor: Supervisor, settings: ModelSettings, conditioning: Path, tmp_path: Path
) -> None:
    """Through the pipe and in this process: the same bits, and each evaluation reported."""
    seen: list[tuple[str, int, int]] = []
    watch = Watch(lambda *report: seen.append(report))
    supervisor.sample(order(), conditioning, tmp_path / "rank", watch)
    engine = SamplerEngine(settings)
    engine.load()
    before = torch.get_num_threads()
    engine.sample(order(), conditioning, tmp_path / "here", Watch())
    torch.set_num_threads(before)
    ranks, here = load_file(tmp_path / "rank"), load_file(tmp_path / "here")
    assert all(torch.equal(ranks[name], here[name]) for name in here)
    assert [done for phase, done, _ in seen if phase == "evaluate"] == [0, 1, 2]


def test_cancel_reaches_the_rank_and_the_next_run_is_untouched(
    supervisor: Supervisor, conditioning: Path, tmp_path: Path
) -> None:
    """It stops within one evaluation; the run after it equals a run without it."""
    supervisor.sample(order(), conditioning, tmp_path / "before", Watch())
    done: list[int] = []
    watch = Watch()

    def report(_phase: str, evaluation: int, _total: int) -> None:
        done.append(evaluation)
        if evaluation == 3:
            watch.cancel()

    watch._on_report = report
    with pytest.raises(Cancelled):
        supervisor.sample(order(evaluations=50), conditioning, tmp_path / "cancelled", watch)
    assert max(done) <= 5  # the word crosses a pipe: one evaluation may begin meanwhile
    supervisor.sample(order(), conditioning, tmp_path / "after", Watch())
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_engines_error_crosses_the_pipe(supervisor: Supervisor, tmp_path: Path) -> None:
    """Reason and words of the rank's own error arrive, and the rank lives on."""
    (tmp_path / "broken").write_bytes(b"nonsense")
    with pytest.raises(EngineError, match="safetensors") as caught:
        supervisor.sample(order(), tmp_path / "broken", tmp_path / "out", Watch())
    assert caught.value.reason == "BAD_CONDITIONING"
    assert len(rank_processes()) == 1


def test_killed_rank_fails_the_run_and_the_next_one_has_a_new_rank(
    supervisor: Supervisor, conditioning: Path, tmp_path: Path
) -> None:
    """SIGKILL in the middle: WORKER_DIED with the exit code, then business as usual."""
    started = threading.Event()
    errors: list[EngineError] = []

    def run() -> None:
        watch = Watch(lambda *_: started.set())
        try:
            supervisor.sample(order(evaluations=60), conditioning, tmp_path / "dead", watch)
        except EngineError as error:
            errors.append(error)

    running = threading.Thread(target=run)
    running.start()
    assert started.wait(60)
    (rank,) = rank_processes()
    rank.send_signal(signal.SIGKILL)
    running.join(60)
    assert [error.reason for error in errors] == ["WORKER_DIED"]
    assert "rank 0 was ended by SIGKILL" in errors[0].message
    supervisor.sample(order(), conditioning, tmp_path / "next", Watch())
    assert load_file(tmp_path / "next")["latents"].isfinite().all()


def test_checkpoint_that_does_not_load_is_told(tmp_path: Path) -> None:
    """The rank's error is the supervisor's, and no process stays."""
    before = len(rank_processes())
    broken = Supervisor(Plan(ModelSettings(str(tmp_path / "none"), "cpu"), "sampler-test"))
    with pytest.raises(EngineError, match="no checkpoint folder"):
        broken.load()
    assert len(rank_processes()) == before
    broken.close()


def test_ranks_are_given_up_after_so_many_starts(
    settings: ModelSettings, conditioning: Path, tmp_path: Path
) -> None:
    """Then the process is told to end, and nobody waits for ranks that never come."""
    health: queue.Queue[bool | None] = queue.Queue()
    mortal = Supervisor(Plan(settings, "sampler-test", limits=Limits(load_s=240, restarts=0)))
    mortal.load()
    mortal.follow(health.put)
    assert health.get(timeout=10) is True
    psutil.Process(mortal.pids[0]).kill()
    assert health.get(timeout=10) is False
    assert health.get(timeout=10) is None
    with pytest.raises(EngineError, match="no ranks") as caught:
        mortal.sample(order(), conditioning, tmp_path / "out", Watch())
    assert caught.value.reason == "WORKER_DIED"
    mortal.close()


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (MemoryError("asked for 3 GiB"), "OUT_OF_MEMORY", "MemoryError: asked for 3 GiB"),
        (
            RuntimeError("[alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 99 bytes"),
            "OUT_OF_MEMORY",
            "99 bytes",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "DISK_FULL", "No space left"),
        (
            SafetensorError("Error while serializing: No space left on device (os error 28)"),
            "DISK_FULL",
            "No space left",
        ),
        (ValueError(f"not {torch.ones(90, 90)!r}, sorry"), "ENGINE_FAILED", "not tensor(…), sorry"),
        (ValueError("x" * 99_999), "ENGINE_FAILED", "…"),
    ],
)
def test_complaints_are_short_and_in_the_errors_own_words(
    error: Exception, reason: str, words: str
) -> None:
    """Memory's figures stay, tensors go, and a long message is cut."""
    complaint = explain(error)
    assert complaint.reason == reason
    assert words in complaint.words
    assert len(complaint.words) <= 3000
