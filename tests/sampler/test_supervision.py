"""Two ranks are cancelled, killed, stopped, left alone: their supervisor lives, and says so."""

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, Watch
from services.sampler.engine import SamplerEngine
from services.sampler.layout import RankLayout
from services.sampler.ranks.plan import Limits, Plan
from services.sampler.ranks.supervisor import Supervisor
from tests.sampler import faults
from tests.sampler.crews import distance
from tests.sampler.host import Host
from tests.sampler.orders import conditionings, order

THREADS = 1
# Short, so that what is broken shows soon; long enough for a machine that does much besides.
LIMITS = Limits(load_s=280, hang_s=8, collective_s=6, settle_s=8, heartbeat_s=0.25)
DEATH_S, START_S = 5.0, 250.0
MEMORY_BYTES = 24 << 20


@dataclass
class Crew:
    """A supervisor of two ranks, and what it said of its health."""

    supervisor: Supervisor
    conditioning: Path
    health: "queue.Queue[bool | None]" = field(default_factory=queue.Queue)

    def sample(self, path: Path, seed: int = 7, evaluations: int = 2) -> bytes:
        """The bytes of a run's latents."""
        self.supervisor.sample(order(seed, evaluations), self.conditioning, path, Watch())
        return path.read_bytes()

    def wait_for(self, able: bool, limit_s: float) -> None:
        """Until its health turns to this."""
        limit = time.monotonic() + limit_s
        while self.health.get(timeout=max(limit - time.monotonic(), 0.01)) is not able:
            pass


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path) -> ModelSettings:
    """The tiny checkpoint on one thread."""
    return ModelSettings(str(tiny_checkpoint), "cpu", threads=THREADS)


@pytest.fixture(scope="module")
def conditioning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conditioning of a clip from text."""
    return conditionings(tmp_path_factory.mktemp("given"))["t2va"]


@pytest.fixture(scope="module")
def shared(settings: ModelSettings, conditioning: Path) -> Iterator[Crew]:
    """Two ranks with faults in them; whatever a test does to them, they are two again after it."""
    layout = RankLayout(ulysses=2)
    plan = Plan(settings, "sampler-test", layout, limits=LIMITS, prologue=faults.plant)
    crew = Crew(Supervisor(plan), conditioning)
    crew.supervisor.load()
    crew.supervisor.follow(crew.health.put)
    yield crew
    pids = crew.supervisor.pids
    crew.supervisor.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.fixture
def crew(shared: Crew) -> Crew:
    """The shared ranks, with nothing said yet."""
    with contextlib.suppress(queue.Empty):
        while True:
            shared.health.get_nowait()
    return shared


@pytest.fixture(scope="module")
def solo(shared: Crew, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The latents of a run that nothing disturbed."""
    return shared.sample(tmp_path_factory.mktemp("solo") / "latents")


@dataclass
class Running:
    """A long run in another thread."""

    thread: threading.Thread
    errors: list[Exception]

    def end(self) -> Exception:
        """The error that it ended with."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.errors[0]


def start_run(crew: Crew, path: Path, watch: Watch | None = None) -> Running:
    """A run of many evaluations that has begun to evaluate."""
    begun = threading.Event()
    watch = watch or Watch()
    watch._on_report = lambda _phase, done, _total: begun.set() if done else None
    errors: list[Exception] = []

    def run() -> None:
        try:
            crew.supervisor.sample(order(evaluations=190), crew.conditioning, path, watch)
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    return Running(thread, errors)


def wait_until(true: Callable[[], bool], limit_s: float) -> None:
    """Poll."""
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_two_ranks_give_what_one_gives(
    solo: bytes, settings: ModelSettings, conditioning: Path, tmp_path: Path
) -> None:
    """Through processes and pipes, within 1e-6 of the magnitude."""
    engine = SamplerEngine(settings)
    engine.load()
    engine.sample(order(), conditioning, tmp_path / "one", Watch())
    (tmp_path / "two").write_bytes(solo)
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert all(distance(two[name], one[name]) <= 1e-6 for name in one)


def test_cancelled_run_leaves_no_trace(crew: Crew, solo: bytes, tmp_path: Path) -> None:
    """All ranks stop within an evaluation or two, and the next run equals its solo run."""
    watch = Watch()
    running = start_run(crew, tmp_path / "cancelled", watch)
    watch.cancel()
    assert isinstance(running.end(), Cancelled)
    assert not (tmp_path / "cancelled").exists()
    assert crew.sample(tmp_path / "next") == solo
    assert crew.supervisor.epoch == 1


def test_killed_ranks_run_goes_on_from_its_snapshot(crew: Crew, tmp_path: Path) -> None:
    """After the loss of a rank both go on from one file: the bits of an unbroken run."""
    evaluations, kept_after = 20, 5
    path, epoch = tmp_path / "half", crew.supervisor.epoch
    keeping = replace(order(evaluations=evaluations), snapshot=path)

    def kill(_phase: str, done: int, _total: int) -> None:
        if done == kept_after + 1:
            psutil.Process(crew.supervisor.pids[1]).kill()

    with pytest.raises(EngineError) as caught:
        crew.supervisor.sample(keeping, crew.conditioning, tmp_path / "never", Watch(kill))
    assert caught.value.reason == "WORKER_DIED"
    wait_until(lambda: crew.supervisor.epoch > epoch, START_S)
    seen: list[int] = []
    watch = Watch(lambda _phase, done, _total: seen.append(done))
    going_on = replace(keeping, resume=path)
    crew.supervisor.sample(going_on, crew.conditioning, tmp_path / "resumed", watch)
    assert seen[0] >= kept_after
    whole = crew.sample(tmp_path / "whole", evaluations=evaluations)
    assert (tmp_path / "resumed").read_bytes() == whole


def test_idling_past_the_collective_timeout_is_harmless(
    crew: Crew, solo: bytes, tmp_path: Path
) -> None:
    """Ranks with nothing to do wait for no collective."""
    idle_until = time.monotonic() + 2.2 * LIMITS.collective_s
    epoch = crew.supervisor.epoch
    wait_until(lambda: time.monotonic() > idle_until, 60)
    assert crew.sample(tmp_path / "late") == solo
    assert crew.supervisor.epoch == epoch


def test_two_samplers_on_one_host(
    crew: Crew, solo: bytes, settings: ModelSettings, conditioning: Path, tmp_path: Path
) -> None:
    """Another sampler of two ranks works at the same time, outlives a stop, and dies with its host.

    Stopped for longer than the hang limit its supervisor blames no rank; killed, it leaves none.
    """
    host = Host(settings.checkpoint, conditioning, tmp_path / "other")
    try:
        pids = host.read_pids(START_S)
        host.ask()
        assert crew.sample(tmp_path / "here") == solo
        assert host.read_epoch(60) == 1
        assert (tmp_path / "other").read_bytes() == solo

        host.process.send_signal(signal.SIGSTOP)
        stopped_until = time.monotonic() + 1.5 * host.HANG_S
        wait_until(lambda: time.monotonic() > stopped_until, 60)
        host.process.send_signal(signal.SIGCONT)
        host.ask()
        assert host.read_epoch(60) == 1

        host.process.send_signal(signal.SIGKILL)
        host.process.wait(10)
        wait_until(lambda: not any(_runs(pid) for pid in pids), DEATH_S)
    finally:
        host.end()


def test_memory_does_not_grow(crew: Crew, tmp_path: Path) -> None:
    """Twenty runs after the first ones need no more than these did."""

    def run(count: int) -> None:
        for seed in range(count):
            crew.sample(tmp_path / "latents", seed, 1)

    processes = [psutil.Process(), *map(psutil.Process, crew.supervisor.pids)]
    run(6)
    before = [process.memory_full_info().uss for process in processes]
    run(20)
    after = [process.memory_full_info().uss for process in processes]
    assert all(now - then < MEMORY_BYTES for now, then in zip(after, before, strict=True))


def test_other_noise_on_one_rank_fails_the_run(crew: Crew, solo: bytes, tmp_path: Path) -> None:
    """It is found before the first evaluation, by what differs and where; the ranks go on."""
    epoch = crew.supervisor.epoch
    done: list[int] = []
    watch = Watch(lambda _phase, count, _total: done.append(count))
    with pytest.raises(EngineError, match="rank 1 has other audio than rank 0") as caught:
        crew.supervisor.sample(
            order(faults.OTHER_NOISE), crew.conditioning, tmp_path / "mixed", watch
        )
    assert caught.value.reason == "RANKS_DISAGREE"
    assert not any(done)
    assert not (tmp_path / "mixed").exists()
    assert crew.sample(tmp_path / "next") == solo
    assert crew.supervisor.epoch == epoch


def test_bad_latents_fail_the_run_alone(crew: Crew, solo: bytes, tmp_path: Path) -> None:
    """NaN is the run's failure on every rank, and the ranks go on."""
    epoch = crew.supervisor.epoch
    with pytest.raises(EngineError, match="evaluation 1 of 2 hold NaN") as caught:
        crew.sample(tmp_path / "nan", faults.NOT_FINITE)
    assert caught.value.reason == "NON_FINITE"
    assert crew.sample(tmp_path / "next") == solo
    assert crew.supervisor.epoch == epoch


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("rank", [0, 1])
def test_lost_rank_fails_the_run(
    crew: Crew, solo: bytes, tmp_path: Path, rank: int, number: signal.Signals
) -> None:
    """It is noticed in time, no process is left, a new epoch begins, and the next run is right."""
    epoch, pids = crew.supervisor.epoch, crew.supervisor.pids
    running = start_run(crew, tmp_path / "lost")
    psutil.Process(pids[rank]).send_signal(number)
    crew.wait_for(False, DEATH_S if number == signal.SIGKILL else LIMITS.hang_s + DEATH_S)
    error = running.end()
    assert isinstance(error, EngineError)
    assert error.reason == "WORKER_DIED"
    assert f"rank {rank}" in error.message
    assert not any(psutil.pid_exists(pid) for pid in pids)
    crew.wait_for(True, START_S)
    assert crew.supervisor.epoch == epoch + 1
    assert crew.sample(tmp_path / "next") == solo


def test_rank_that_dies_idle_is_replaced(crew: Crew, solo: bytes, tmp_path: Path) -> None:
    """Nobody needs to ask for it."""
    epoch, pids = crew.supervisor.epoch, crew.supervisor.pids
    psutil.Process(pids[1]).kill()
    crew.wait_for(False, DEATH_S)
    crew.wait_for(True, START_S)
    assert crew.supervisor.epoch == epoch + 1
    assert not set(pids) & set(crew.supervisor.pids)
    assert crew.sample(tmp_path / "next") == solo


@pytest.mark.parametrize(
    ("seed", "reason", "words"),
    [
        (faults.NO_MEMORY, "OUT_OF_MEMORY", faults.FIGURES),
        (faults.DUMP, "ENGINE_FAILED", "a kernel failed over tensor(…) and gave up"),
    ],
)
def test_broken_rank_is_quoted_and_replaced(
    crew: Crew, solo: bytes, tmp_path: Path, seed: int, reason: str, words: str
) -> None:
    """The run fails with the rank's own words, short; its memory goes with its process."""
    epoch, pids = crew.supervisor.epoch, crew.supervisor.pids
    with pytest.raises(EngineError) as caught:
        crew.sample(tmp_path / "broken", seed)
    assert caught.value.reason == reason
    assert words in caught.value.message
    assert caught.value.message.startswith("rank 1: ")
    assert len(caught.value.message) < 4000
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert crew.sample(tmp_path / "next") == solo  # waits for the new ranks
    assert crew.supervisor.epoch == epoch + 1


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
