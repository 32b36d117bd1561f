"""Everything dies, stands still and loses answers; at the end every promise was kept.

REELMESH_CHAOS_SEED replays a run's plan, REELMESH_CHAOS_JOBS changes how many jobs there are.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from services.registry.database import make_engine
from tests.chaos.fleet import LEASE_S, Fleet
from tests.chaos.journals import ENDED, Entry, find_double_work, read_journal
from tests.chaos.owners import Owner, digest, make_owners
from tests.chaos.stage import EVALUATIONS, conditioning_of, latents_of, video_of
from tests.conftest import require_postgres
from tests.postgres import Server

OWNERS = 6
CHAOS_S = 50.0
SETTLE_S = 100.0
TERMINAL = (
    jobs_pb2.JOB_STATE_SUCCEEDED,
    jobs_pb2.JOB_STATE_FAILED,
    jobs_pb2.JOB_STATE_CANCELLED,
)
# The host that never comes back.
LOST = "sampler-3"
# What may not be in any log: a fault of ours.
CRASHES = ("call_crashed", "background_task_crashed", "follower_crashed", "Traceback")


@dataclass(frozen=True)
class Deed:
    """One thing that happens to the mesh."""

    at_s: float
    kind: str
    member: str
    seconds: float = 0.0


def make_plan(chance: random.Random, names: list[str]) -> list[Deed]:
    """What will happen when: the seed's alone, whatever else is going on."""
    stages = [name for name in names if not name.startswith("registry")]
    registries = [name for name in names if name.startswith("registry")]
    deeds = [Deed(CHAOS_S * chance.uniform(0.4, 0.7), "lose", LOST)]
    at_s = 1.0
    while at_s < CHAOS_S:
        kind = chance.choices(
            ["kill", "pause", "cut", "mute"],
            weights=[4, 2, 3, 3],
        )[0]
        member = chance.choice(registries if chance.random() < 0.25 else stages)
        seconds = {"pause": LEASE_S * chance.uniform(1.2, 1.8), "mute": chance.uniform(0.2, 1.5)}
        deeds.append(Deed(at_s, kind, member, seconds.get(kind, 0.0)))
        at_s += chance.uniform(0.5, 1.8)
    return sorted(deeds, key=lambda deed: deed.at_s)


class Mayhem:
    """Does what the plan says."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tasks: list[asyncio.Task[None]] = []
        self.lost_at: datetime | None = None

    async def run(self, plan: list[Deed]) -> None:
        """The whole plan, to its end."""
        began = time.monotonic()
        for deed in plan:
            await asyncio.sleep(max(0.0, deed.at_s - (time.monotonic() - began)))
            self._do(deed)
        await asyncio.gather(*self._tasks)

    def _do(self, deed: Deed) -> None:
        member = self._fleet.members[deed.member]
        match deed.kind:
            case "kill":
                member.send(signal.SIGKILL)
            case "lose":
                member.removed = True
                member.end()
                self.lost_at = datetime.now(UTC)
            case "pause":
                self._start(self._fleet.pause(deed.member, deed.seconds))
            case "cut":
                member.proxies[0].cut()
            case "mute":
                self._start(member.proxies[0].lose_answers(deed.seconds))

    def _start(self, deed: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(deed))


async def submit(owner: Owner, chance: random.Random, number: int, jobs: int) -> None:
    """The owner's jobs, over the first half of the time; every sixth one is cancelled."""
    for at in range(jobs):
        await asyncio.sleep(chance.uniform(0, CHAOS_S / 2 / jobs))
        job_id = await owner.create(
            f"request-{number}-{at}",
            prompt=f"boat {at} of owner {number}",
            seed=100 * number + at,
            evaluations=EVALUATIONS,
            automatic_resumes=chance.choice((0, 5, 5)),
        )
        if chance.random() < 1 / 6:
            await asyncio.sleep(chance.uniform(0, 3))
            await owner.cancel(job_id)


@pytest.fixture
def chaos_seed() -> Iterator[int]:
    """The seed, told if the test fails."""
    seed = int(os.environ.get("REELMESH_CHAOS_SEED") or random.SystemRandom().randrange(10**9))
    print(f"\nreplay with REELMESH_CHAOS_SEED={seed}")
    yield seed


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_whatever_dies_every_promise_is_kept(
    tmp_path: Path, chaos_seed: int, kind: str
) -> None:
    """Every job ends, nothing is done twice or seen by others, nothing is leaked, all agrees."""
    server = Server(require_postgres(), durable=True) if kind == "postgres" else None
    home = tmp_path / "home"
    url = f"sqlite:///{home / 'registry' / 'registry.db'}"
    if server is not None:
        server.start()
        url = server.url(server.create())
    fleet = Fleet(home, url, 2 if server else 1)
    try:
        await fleet.start()
        await live_through(fleet, chaos_seed, url)
    finally:
        await fleet.stop()
        if server is not None:
            server.remove()


async def live_through(fleet: Fleet, seed: int, url: str) -> None:
    """Chaos, then quiet, then the questions."""
    chance = random.Random(seed)
    count = int(os.environ.get("REELMESH_CHAOS_JOBS") or 60)
    plan = make_plan(chance, sorted(fleet.members))
    admin, owners = await make_owners(fleet.home, fleet.clients, OWNERS)
    await until_registered(admin, fleet)
    mayhem = Mayhem(fleet)
    submissions = [
        submit(owner, random.Random(seed + number), number, count // OWNERS)
        for number, owner in enumerate(owners, 1)
    ]
    await asyncio.gather(mayhem.run(plan), *submissions)
    await rule_out(admin, LOST)
    ended = await settle(owners, fleet)
    entries = [
        entry
        for name in fleet.members
        for entry in read_journal(fleet.home / name, mayhem.lost_at if name == LOST else None)
    ]
    assert not find_double_work(entries, LOST)
    check_attempts(ended, {entry.run_id: entry for entry in entries})
    await check_receipts(owners, ended)
    await check_artifacts(owners, ended)
    check_leftovers(url, len(ended))
    check_logs(fleet)
    states = [jobs_pb2.JobState.Name(job.state) for job in ended.values()]
    print({state: states.count(state) for state in set(states)})
    assert len(ended) == count // OWNERS * OWNERS
    assert states.count("JOB_STATE_SUCCEEDED") > len(states) / 3, states


async def until_registered(admin: Owner, fleet: Fleet) -> None:
    """Until every stage has come up once."""
    deadline = time.monotonic() + 120
    while True:
        listed = await admin.instances("ListInstances", instances_pb2.ListInstancesRequest())
        known = {one.instance_id for one in listed.instances}
        missing = {name for name in fleet.members if not name.startswith("registry")} - known
        if not missing:
            return
        assert time.monotonic() < deadline, missing
        await asyncio.sleep(0.1)


async def rule_out(admin: Owner, instance_id: str) -> None:
    """Remove the lost host, as soon as its lease is over."""
    deadline = time.monotonic() + 30
    while True:
        listed = await admin.instances("ListInstances", instances_pb2.ListInstancesRequest())
        states = {one.instance_id: one.state for one in listed.instances}
        if states.get(instance_id) in (None, stage_pb2.INSTANCE_STATE_SUSPECT):
            break
        assert time.monotonic() < deadline, states
        await asyncio.sleep(0.1)
    if instance_id in states:
        request = instances_pb2.RemoveRequest(instance_id=instance_id, note="the host burnt")
        await admin.instances("Remove", request)


async def settle(owners: list[Owner], fleet: Fleet) -> dict[str, jobs_pb2.Job]:
    """All jobs, once each has ended and no run of them is left."""
    ended: dict[str, jobs_pb2.Job] = {}
    deadline = time.monotonic() + SETTLE_S
    live = ("BOUND", "ACCEPTED", "RUNNING", "UNKNOWN")
    for owner in owners:
        for job_id in owner.jobs:
            while True:
                job = await owner.get(job_id)
                states = [stage_pb2.RunState.Name(attempt.state) for attempt in job.attempts]
                if job.state in TERMINAL and not any(state.endswith(live) for state in states):
                    break
                assert time.monotonic() < deadline, f"{job}\n{fleet.home}"
                await asyncio.sleep(0.1)
            ended[job_id] = job
    return ended


def check_attempts(ended: dict[str, jobs_pb2.Job], journal: dict[str, Entry]) -> None:
    """What the registry tells of every run is what its instance wrote, and nothing is untold."""
    told = {attempt.run_id for job in ended.values() for attempt in job.attempts}
    for entry in journal.values():
        assert not entry.worked or entry.run_id in told, entry
        assert entry.state in ENDED or entry.instance_id == LOST, entry
    for job in ended.values():
        for attempt in job.attempts:
            state = stage_pb2.RunState.Name(attempt.state).removeprefix("RUN_STATE_")
            if attempt.instance_id == LOST and state == "LOST":
                continue
            assert attempt.run_id in journal, attempt
            entry = journal[attempt.run_id]
            assert entry.instance_id == attempt.instance_id
            same = state == entry.state
            # It had its output when it was cancelled: the output is thrown away.
            thrown_away = state == "CANCELLED" and entry.state == "SUCCEEDED"
            assert same or (thrown_away and job.state == jobs_pb2.JOB_STATE_CANCELLED), (
                attempt,
                entry,
            )
            if state == "SUCCEEDED" and entry.output_sha256:
                assert attempt.output_sha256 == entry.output_sha256, (attempt, entry)


async def check_receipts(owners: list[Owner], ended: dict[str, jobs_pb2.Job]) -> None:
    """A receipt tells the same runs as its job."""
    for owner in owners:
        for job_id in owner.jobs:
            receipt = await owner.receipt(job_id)
            assert receipt.state == ended[job_id].state
            runs = [run.attempt for run in receipt.runs]
            known = {attempt.run_id: attempt for attempt in ended[job_id].attempts}
            assert {run.run_id for run in runs} >= set(known)
            for run in runs:
                if run.run_id in known:
                    assert run == known[run.run_id]


async def check_artifacts(owners: list[Owner], ended: dict[str, jobs_pb2.Job]) -> None:
    """Every artifact is its owner's, whole, and made from its own prompt and seed."""
    for owner in owners:
        for job_id in owner.jobs:
            job = ended[job_id]
            if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
                assert not job.artifact_id
                continue
            content, sha256 = await owner.download(job.artifact_id)
            latents = latents_of(conditioning_of(job.spec.prompt), job.spec.seed)
            assert content == video_of(latents)
            assert digest(content) == sha256
            for other in owners:
                if other is not owner:
                    assert [way async for way in other.may_read(job.artifact_id)] == []


def check_leftovers(url: str, jobs: int) -> None:
    """No slot and no quota unit is held, and no job was made twice."""
    engine = make_engine(url)
    with engine.connect() as connection:

        def count(query: str) -> int:
            return int(connection.execute(text(query)).scalar_one())

        terminal = "('SUCCEEDED', 'FAILED', 'CANCELLED')"
        ended_runs = "('SUCCEEDED', 'FAILED', 'CANCELLED', 'REFUSED', 'LOST')"
        assert count("SELECT count(*) FROM job") == jobs
        assert count(f"SELECT count(*) FROM job WHERE state NOT IN {terminal}") == 0
        assert count("SELECT count(*) FROM job WHERE waiting") == 0
        assert count(f"SELECT count(*) FROM run WHERE state NOT IN {ended_runs}") == 0
        artifacts = count("SELECT count(*) FROM artifact")
        assert artifacts == count("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'")
    engine.dispose()


def check_logs(fleet: Fleet) -> None:
    """Nothing crashed that was not killed."""
    for member in fleet.members.values():
        for line in member.log.read_text(encoding="utf-8").splitlines():
            if any(word in line for word in CRASHES):
                event = json.loads(line) if line.startswith("{") else {"event": line}
                raise AssertionError(f"{member.name}: {json.dumps(event, indent=1)}")
