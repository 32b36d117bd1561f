"""Submits and bindings at a long queue, beside a plain table that does nothing else.

Real: the database, what writes CreateJob (quota, pool limit, turn, job, event, place in the queue
and answer; submits that are under way together share a transaction, as in the service), the
dispatcher with its signal, its claims (up to 32 bindings a transaction), and the transaction in
which a run's success is taken in. Simulated: the instances are rows without sockets (so no start
is sent, and prompts are not counted), and every encode succeeds at once. 900 samplers and 100
encoders of one slot each are busy all the time, the encoded jobs that may wait do, and behind them
the queue that is measured.

The plain table has a transaction for each submit, by as many callers at once as ours, and one for
each claim, by eight: an UPDATE of `FOR UPDATE SKIP LOCKED` on PostgreSQL, and one UPDATE ..
RETURNING on SQLite, through the same connections.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import insert, text
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.ids import new_id
from services.registry.backoff import Backoff
from services.registry.columns import utc_now
from services.registry.database import Database, make_engine
from services.registry.dispatcher import Dispatcher
from services.registry.following import Following
from services.registry.lifecycle import RUN_LIVE, InstanceState, JobState, RunEvent, RunState, Stage
from services.registry.limits import Limits
from services.registry.migration import migrate
from services.registry.peers import Peers
from services.registry.records.changes import change_run, lock_run
from services.registry.records.claims import Rules
from services.registry.records.submissions import Draft
from services.registry.resolution import Resolution
from services.registry.roster import Roster
from services.registry.schema import InstanceRow, JobRow, OwnerRow, RunRow
from services.registry.signals import Signals
from services.registry.submitting import Submitting

SIZES = (100, 1_000, 10_000)
_OWNERS, _SAMPLERS, _ENCODERS, _AHEAD = 1_000, 900, 100, 2
_FREED, _SUBMITS, _CLAIMS = 200, 800, 800
# Submits under way at the same time; and plain ones.
_FEW, _MANY = 8, 64
# Raised for this, and checked all the same.
_LIMITS = Limits(max_running=100, max_waiting=10_000, waiting_per_sampler=100.0)
_SPEC = Resolution(
    prompt="a red ball rolls slowly over the sand",
    mode="T2VA",
    height=416,
    width=736,
    frames=124,
    evaluations=49,
    checkpoint_digest="d" * 64,
    off_distribution=False,
    seed=None,
)


def measure(url: str) -> dict[str, Any]:
    """Figures by length of the queue, in seconds and per second."""
    migrate(url)
    return asyncio.run(_measure(url))


async def _measure(url: str) -> dict[str, Any]:
    signals = Signals()
    database = Database(make_engine(url), signals.notify)
    try:
        mesh = _Mesh(database, signals)
        await database.write(_fill)
        sizes = {}
        for size in SIZES:
            await mesh.grow(size)
            sizes[size] = await mesh.measure(size)
        kind = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
        return {"database": kind, "sizes": sizes}
    finally:
        await asyncio.to_thread(database.close)


class _Everyone(Peers):
    """All channels are open."""

    def __init__(self) -> None:
        super().__init__("", lambda: None)

    def reachable(self, instances: Any) -> set[str]:
        return {one.instance_id for one in instances}


class _Noted(Following):
    """Notes when a run was bound instead of following it."""

    def __init__(self, bound: Callable[[str], None]) -> None:
        self._bound = bound
        self.binding = asyncio.Lock()

    def follow(self, run_id: str, *, may_send: bool = False) -> None:
        self._bound(run_id)


class _Mesh:
    """The registry's binding half on rows."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self.database = database
        self.bound_at: dict[str, float] = {}
        self.news = asyncio.Event()
        self.encoding: asyncio.Queue[str] = asyncio.Queue()
        self.may_encode = asyncio.Event()
        self.may_encode.set()
        self.submitting = Submitting(database, _LIMITS)
        self.dispatcher = Dispatcher(
            database,
            signals,
            Roster(database, signals),
            _Everyone(),
            _Noted(self._note),
            Backoff(1.0),
            Rules(_AHEAD, _LIMITS, "rep_bench", sends=True),
        )

    def _note(self, run_id: str) -> None:
        self.bound_at[run_id] = time.perf_counter()
        self.encoding.put_nowait(run_id)
        self.news.set()

    async def grow(self, size: int) -> None:
        """As many queued jobs as `size`."""

        def add(session: Session) -> None:
            queued = session.execute(
                text("SELECT count(*) FROM job WHERE stage = 'ENCODE' AND waiting = :yes"),
                {"yes": True},
            ).scalar_one()
            rows = [_job_row(index, Stage.ENCODE) for index in range(size - queued)]
            if rows:
                session.execute(insert(JobRow), rows)
            session.execute(
                text(
                    "UPDATE owner SET in_turn = EXISTS(SELECT 1 FROM job WHERE job.owner_id = "
                    "owner.owner_id AND stage = 'ENCODE' AND waiting = :yes)"
                ),
                {"yes": True},
            )
            if session.get_bind().dialect.name == "postgresql":
                session.execute(text("ANALYZE"))

        await self.database.write(add)

    async def measure(self, size: int) -> dict[str, float]:
        """All figures at this length of the queue."""
        figures = await _measure_plain(self.database, size)
        tasks = [asyncio.create_task(self.dispatcher.run()), asyncio.create_task(self._encode())]
        try:
            await self._settle()
            for at_once in (_FEW, _MANY):
                figures[f"submits_{at_once}_per_s"] = await self._measure_submits(at_once)
                await self._settle()
            figures |= await self._measure_freed()
            figures |= await self._measure_bindings()
            await self._settle()
            await self.encoding.join()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return figures

    async def _encode(self) -> None:
        """Every encode succeeds at once, and for each that does a job is submitted."""
        while True:
            run_id = await self.encoding.get()
            await self.may_encode.wait()
            work = partial(_succeed, run_id=run_id, stage=Stage.ENCODE)
            if await self.database.write(work):
                await self._submit()
            self.encoding.task_done()

    async def _settle(self) -> None:
        """Until nothing was bound for a while."""
        while True:
            self.news.clear()
            try:
                async with asyncio.timeout(0.7):
                    await self.news.wait()
            except TimeoutError:
                return

    async def _submit(self) -> None:
        owner_id = _owner_id(random.randrange(_OWNERS))
        request = jobs_pb2.CreateJobRequest(request_id=new_id("job"))
        await self.submitting.submit(Draft(owner_id, _SPEC, 1, 9, request))

    async def _measure_submits(self, at_once: int) -> float:
        rate = await _rate(self._submit, _SUBMITS, at_once)

        def undo(session: Session) -> None:
            newest = (
                "SELECT job_id FROM job WHERE stage = 'ENCODE' AND waiting = :yes "
                "ORDER BY create_time DESC LIMIT :count"
            )
            values = {"yes": True, "count": _SUBMITS}
            session.execute(text(f"DELETE FROM event WHERE job_id IN ({newest})"), values)
            session.execute(text(f"DELETE FROM job WHERE job_id IN ({newest})"), values)

        await self.database.write(undo)
        return rate

    async def _measure_freed(self) -> dict[str, float]:
        """One slot at a time: from the commit that freed it to the commit that bound it again."""
        waits = []
        for _ in range(_FREED):
            live = await self.database.read(_live_samples)
            run_id, instance_id = random.choice(live)
            known = set(self.bound_at)
            await self.database.write(partial(_succeed, run_id=run_id, stage=Stage.SAMPLE))
            freed = time.perf_counter()
            waits.append(await self._bound_on(instance_id, known) - freed)
            await self.encoding.join()
        waits.sort()
        return {
            "freed_p50_s": statistics.median(waits),
            "freed_p99_s": waits[int(len(waits) * 0.99) - 1],
        }

    async def _bound_on(self, instance_id: str, known: set[str]) -> float:
        while True:
            self.news.clear()
            for run_id in set(self.bound_at) - known:
                run = await self.database.read(partial(_find_run, run_id=run_id))
                if run.instance_id == instance_id and run.stage is Stage.SAMPLE:
                    return self.bound_at[run_id]
                known.add(run_id)
            await self.news.wait()

    async def _measure_bindings(self) -> dict[str, float]:
        """Many slots freed at once, in one transaction: how soon all are bound again.

        A job that is sampled makes room for one that is encoded, so encoders are bound too.
        """
        live = (await self.database.read(_live_samples))[:_FREED]
        begun, wanted = len(self.bound_at), _FREED + min(_FREED, _ENCODERS)

        def free(session: Session) -> None:
            for run_id, _ in live:
                _succeed(session, run_id, Stage.SAMPLE)

        await self.database.write(free)
        self.may_encode.clear()
        began = time.perf_counter()
        while len(self.bound_at) < begun + wanted:
            self.news.clear()
            await self.news.wait()
        spent = time.perf_counter() - began
        self.may_encode.set()
        return {"bindings_per_s": wanted / spent}


def _find_run(session: Session, run_id: str) -> RunRow:
    return session.get_one(RunRow, run_id)


def _succeed(session: Session, run_id: str, stage: Stage) -> bool:
    locked = lock_run(session, run_id)
    if locked is None or locked[0].stage is not stage:
        return False
    run, job = locked
    run.output_bundle_id, run.output_kept = new_id("bun"), True
    timings = stage_pb2.Run()
    timings.timings.add(phase="evaluate").duration.FromMilliseconds(100_000)
    run.timings = timings.SerializeToString()
    change_run(session, run, job, RunEvent.REPORTED_SUCCEEDED)
    return True


def _live_samples(session: Session) -> list[tuple[str, str]]:
    query = select(RunRow.run_id, RunRow.instance_id).where(
        col(RunRow.stage) == Stage.SAMPLE, col(RunRow.state).in_(RUN_LIVE)
    )
    return list(session.exec(query).all())


async def _rate(work: Callable[[], Coroutine[Any, Any, None]], count: int, at_once: int) -> float:
    """How often a second, so many at once."""
    left = count

    async def go_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work()

    began = time.perf_counter()
    await asyncio.gather(*(go_on() for _ in range(at_once)))
    return count / (time.perf_counter() - began)


async def _measure_plain(database: Database, size: int) -> dict[str, float]:
    """A table of jobs and nothing else."""

    def make(session: Session) -> None:
        session.execute(text("DROP TABLE IF EXISTS plain"))
        session.execute(
            text("CREATE TABLE plain (id VARCHAR(40) PRIMARY KEY, waiting BOOLEAN, place INTEGER)")
        )
        session.execute(text("CREATE INDEX ix_plain ON plain (waiting, place)"))
        rows = [
            {"id": new_id("job"), "yes": True, "place": place} for place in range(size + _CLAIMS)
        ]
        session.execute(text("INSERT INTO plain VALUES (:id, :yes, :place)"), rows)

    await database.write(make)
    place = size + _CLAIMS

    async def submit() -> None:
        nonlocal place
        place += 1
        values = {"id": new_id("job"), "yes": True, "place": place}
        insertion = text("INSERT INTO plain VALUES (:id, :yes, :place)")
        await database.write(lambda session: session.execute(insertion, values))

    dialect = await database.read(lambda session: session.get_bind().dialect.name)
    lock = "FOR UPDATE SKIP LOCKED" if dialect == "postgresql" else ""
    claim = text(
        "UPDATE plain SET waiting = :no WHERE id = (SELECT id FROM plain WHERE waiting = :yes "
        f"ORDER BY place LIMIT 1 {lock}) RETURNING id"
    )

    async def bind() -> None:
        values = {"yes": True, "no": False}
        await database.write(lambda session: session.execute(claim, values).scalar_one())

    return {
        f"plain_submits_{_FEW}_per_s": await _rate(submit, _SUBMITS, _FEW),
        f"plain_submits_{_MANY}_per_s": await _rate(submit, _SUBMITS, _MANY),
        "plain_bindings_per_s": await _rate(bind, _CLAIMS, _FEW),
    }


def _owner_id(index: int) -> str:
    return f"own_{index:032x}"


def _job_row(index: int, stage: Stage, *, waiting: bool = True) -> dict[str, Any]:
    state = JobState.QUEUED if stage is Stage.ENCODE else JobState.RUNNING
    return {
        "job_id": new_id("job"),
        "owner_id": _owner_id(index % _OWNERS),
        "state": state,
        "stage": stage,
        "waiting": waiting,
        "prompt": _SPEC.prompt,
        "mode": _SPEC.mode,
        "height": _SPEC.height,
        "width": _SPEC.width,
        "frames": _SPEC.frames,
        "seed": "1",
        "evaluations": _SPEC.evaluations,
        "checkpoint_digest": _SPEC.checkpoint_digest,
        "charged_s": 0.0 if stage is Stage.ENCODE else 100.0,
        "create_time": utc_now() - timedelta(seconds=3600) + timedelta(microseconds=index),
    }


def _run_row(job_id: str, stage: Stage, instance_id: str, state: RunState) -> dict[str, Any]:
    return {
        "run_id": new_id("run"),
        "job_id": job_id,
        "stage": stage,
        "instance_id": instance_id,
        "generation": 1,
        "journal_id": "jrn_" + "0" * 32,
        "lease_token": "t",
        "state": state,
        "output_bundle_id": new_id("bun"),
        "output_kept": state is RunState.SUCCEEDED,
    }


def _fill(session: Session) -> None:
    """Owners, instances, the jobs that are sampled and those that are encoded."""
    owners = [{"owner_id": _owner_id(n), "name": f"owner {n}"} for n in range(_OWNERS)]
    session.execute(insert(OwnerRow), owners)
    stages = {f"encoder-{n}": Stage.ENCODE for n in range(_ENCODERS)}
    stages |= {f"sampler-{n}": Stage.SAMPLE for n in range(_SAMPLERS)}
    instances = []
    for name, stage in stages.items():
        capabilities = stage_pb2.Capabilities(
            stage=f"STAGE_{stage}", checkpoint_digest="d" * 64, slots=1
        )
        instances.append(
            {
                "instance_id": name,
                "stage": stage,
                "endpoint": f"{name}:1",
                "generation": 1,
                "boot_id": "boot_" + "0" * 32,
                "journal_id": "jrn_" + "0" * 32,
                "state": InstanceState.READY,
                "capabilities": capabilities.SerializeToString(),
            }
        )
    session.execute(insert(InstanceRow), instances)
    jobs, runs = [], []
    for n in range(_SAMPLERS * (1 + _AHEAD)):
        sampled = n < _SAMPLERS
        job = _job_row(n, Stage.SAMPLE, waiting=not sampled)
        jobs.append(job)
        runs.append(
            _run_row(job["job_id"], Stage.ENCODE, f"encoder-{n % _ENCODERS}", RunState.SUCCEEDED)
        )
        if sampled:
            runs.append(_run_row(job["job_id"], Stage.SAMPLE, f"sampler-{n}", RunState.RUNNING))
    session.execute(insert(JobRow), jobs)
    session.execute(insert(RunRow), runs)


def report(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    sizes = figures["sizes"]
    lines = [
        f"{figures['database']}, {_OWNERS} owners, {_SAMPLERS + _ENCODERS} instances as rows",
        "",
        f"| queued | freed slot to bound, p50 | p99 | submits/s, {_FEW} at once | plain "
        f"| {_MANY} at once | plain | bindings/s | plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {size} | {one['freed_p50_s'] * 1000:.1f} ms | {one['freed_p99_s'] * 1000:.1f} ms "
        f"| {one[f'submits_{_FEW}_per_s']:.0f} | {one[f'plain_submits_{_FEW}_per_s']:.0f} "
        f"| {one[f'submits_{_MANY}_per_s']:.0f} | {one[f'plain_submits_{_MANY}_per_s']:.0f} "
        f"| {one['bindings_per_s']:.0f} | {one['plain_bindings_per_s']:.0f} |"
        for size, one in sizes.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="", help="a URL; default: a temporary SQLite file")
    database = parser.parse_args().database
    with tempfile.TemporaryDirectory() as folder:
        print(report(measure(database or f"sqlite:///{Path(folder) / 'registry.db'}")))


if __name__ == "__main__":
    main()
