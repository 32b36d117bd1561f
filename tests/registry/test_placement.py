"""Where a job goes: pools, named samplers, limits, and measured times."""

from functools import partial
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import RunEvent, Stage
from services.registry.placement import Board, Candidate, remaining_s, smooth, work_of
from services.registry.records.instances import suspect
from services.registry.schema import InstanceRow, RunRow
from tests.registry.mesh import Client, Mesh, until
from tests.registry.queue import Queue

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED


def everywhere(_: Candidate) -> bool:
    """Every job fits everywhere."""
    return True


def test_a_job_goes_to_the_instance_that_finishes_it_first() -> None:
    """Free and slow loses against busy and fast, if that is done earlier: the job waits."""
    fast, slow = Candidate("fast", 1.0, [30.0]), Candidate("slow", 10.0, [0.0])
    assert Board([fast, slow], Stage.SAMPLE).assign(10, everywhere) is None
    fast, slow = Candidate("fast", 1.0, [200.0]), Candidate("slow", 10.0, [0.0])
    assert Board([fast, slow], Stage.SAMPLE).assign(10, everywhere) is slow


def test_a_job_does_not_wait_for_next_to_nothing() -> None:
    """A busy instance that is hardly faster and nearly done is not worth an idle one."""
    busy, free = Candidate("busy", 0.99, [0.05]), Candidate("free", 1.0, [0.0])
    assert Board([busy, free], Stage.SAMPLE).assign(10, everywhere) is free


def test_an_instance_that_was_never_measured_is_taken_to_be_like_the_others() -> None:
    """So that it is tried."""
    new, known = Candidate("a-new", None, [0.0]), Candidate("b-known", 2.0, [0.0])
    found = Board([known, new], Stage.SAMPLE)
    assert found.assign(10, everywhere) is new
    assert found.assign(10, everywhere) is known


def test_of_instances_alike_the_least_busy_is_taken() -> None:
    """By slots that are held."""
    busy, idle = Candidate("a", 1.0, [0.0, 5.0]), Candidate("b", 1.0, [0.0, 0.0])
    assert Board([busy, idle], Stage.SAMPLE).assign(1, everywhere) is idle


def is_not(name: str, candidate: Candidate) -> bool:
    """Whether it is another."""
    return candidate.instance_id != name


def scan(candidates: list[Candidate], work: float, barred: str) -> Candidate | None:
    """The rule of `Board.assign` as it is said: look at every candidate for every job."""
    ranks = []
    for index, one in enumerate(candidates):
        if one.instance_id == barred:
            continue
        free_in_s = min(one.slots_free_in_s)
        takes_s = work * (one.unit_time_s or 1.0)
        took = sum(1 for slot in one.slots_free_in_s if slot > 0)
        reckoned_s = free_in_s + takes_s + (0.05 * takes_s if free_in_s else 0.0)
        ranks.append((reckoned_s, free_in_s, took, one.instance_id, index))
    if not ranks:
        return None
    _, free_in_s, _, _, index = min(ranks)
    chosen = candidates[index]
    slots = chosen.slots_free_in_s
    slots[slots.index(free_in_s)] = free_in_s + work * (chosen.unit_time_s or 1.0)
    return None if free_in_s else chosen


@settings(max_examples=200, deadline=None)
@given(
    slots=st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 1.0, 3.0]),
            st.lists(st.sampled_from([0.0, 0.0, 2.0, 7.0]), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=6,
    ),
    jobs=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=12),
)
def test_what_is_found_is_what_a_look_at_every_candidate_finds(
    slots: list[tuple[float, list[float]]], jobs: list[tuple[int, int]]
) -> None:
    """For jobs of any length, with any instance barred, until all slots are held."""
    ours, theirs = (
        [Candidate(str(index), unit, list(free)) for index, (unit, free) in enumerate(slots)]
        for _ in range(2)
    )
    board = Board(ours, Stage.SAMPLE)
    for work, barred in jobs:
        found = board.assign(float(work), partial(is_not, str(barred)))
        expected = scan(theirs, float(work), str(barred))
        assert (found and found.instance_id) == (expected and expected.instance_id)
        free = [one.slots_free_in_s.count(0.0) for one in ours]
        assert (board.count_free(), board.free) == (sum(free), any(free))
    assert ours == theirs


@settings(max_examples=100, deadline=None)
@given(
    units=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    jobs=st.integers(1, 6),
)
def test_for_jobs_alike_no_schedule_ends_earlier(units: list[int], jobs: int) -> None:
    """The makespan is that of the best of all assignments."""
    candidates = [Candidate(str(index), float(unit), [0.0]) for index, unit in enumerate(units)]
    found = Board(candidates, Stage.SAMPLE)
    for _ in range(jobs):
        found.assign(1.0, everywhere)
    makespan = max(one.slots_free_in_s[0] for one in candidates)
    best = min(
        max(chosen.count(index) * unit for index, unit in enumerate(units))
        for chosen in product(range(len(units)), repeat=jobs)
    )
    assert makespan == pytest.approx(best)


def test_a_run_that_is_late_is_waited_for_only_as_long_again() -> None:
    """And no clock that jumps makes it longer than a run."""
    assert remaining_s(100, 30) == 70
    assert remaining_s(100, 130) == 30
    assert remaining_s(100, 101) == 10
    assert remaining_s(100, -1e9) == 100


def test_times_are_smoothed_and_work_is_rows_times_evaluations() -> None:
    """(5n + 2)(H/32)(W/32) + 2 x audio + text."""
    rows = (5 * 7 + 2) * 13 * 23 + 2 * 207 + 9
    assert work_of(Stage.DECODE, 416, 736, 124, 49, 9) == rows
    assert work_of(Stage.SAMPLE, 416, 736, 124, 49, 9) == rows * 49
    assert smooth(None, 5.0) == 5.0
    assert 5.0 < smooth(5.0, 10.0) < 10.0


# In the database.


def speed(queue: Queue, **unit_times: float) -> None:
    """As measured before."""

    def work(session: Session) -> None:
        for name, unit_s in unit_times.items():
            row = session.get_one(InstanceRow, name)
            row.unit_time_s = unit_s
            session.add(row)

    queue.database.transact(work)


def encoded(queue: Queue, count: int) -> list[str]:
    """Jobs that wait for a sampler."""
    queue.instance("encoder-0", Stage.ENCODE, slots=16)
    return encoded_more(queue, count, "bob")


def encoded_more(queue: Queue, count: int, name: str = "ben") -> list[str]:
    """Another owner's."""
    jobs = queue.jobs(queue.owner(name), count)
    queue.claim(Stage.ENCODE)
    for job_id in jobs:
        queue.end(job_id)
    return jobs


def where(queue: Queue) -> dict[str, str]:
    """The instance of each job's newest run."""

    def read(session: Session) -> dict[str, str]:
        runs = session.exec(select(RunRow).order_by("bind_time")).all()
        return {run.job_id: run.instance_id for run in runs}

    return queue.database.inspect(read)


def test_the_faster_of_two_free_ones_gets_the_job(queue: Queue) -> None:
    """Its name does not matter."""
    jobs = encoded(queue, 1)
    queue.instance("a", Stage.SAMPLE)
    queue.instance("b", Stage.SAMPLE)
    speed(queue, a=2e-3, b=1e-3)
    queue.claim(Stage.SAMPLE)
    assert where(queue)[jobs[0]] == "b"


def test_a_job_waits_for_a_fast_instance_but_not_for_one_that_is_not_heard(queue: Queue) -> None:
    """The second would be done by the slow one later than by the fast one after the first."""
    jobs = encoded(queue, 2)
    queue.instance("fast", Stage.SAMPLE)
    queue.instance("slow", Stage.SAMPLE)
    speed(queue, fast=1e-3, slow=1.0)
    assert queue.claim(Stage.SAMPLE) == jobs[:1]
    assert where(queue)[jobs[0]] == "fast"
    assert queue.claim(Stage.SAMPLE) == []
    queue.database.transact(lambda session: suspect(session, "fast"))
    # Its binding was not sent yet, so the first job is back at its place.
    assert queue.claim(Stage.SAMPLE) == jobs[:1]
    assert where(queue)[jobs[0]] == "slow"


def test_a_slow_instance_is_not_left_idle_by_a_queue_that_needs_it(queue: Queue) -> None:
    """Five times faster is not enough for seven jobs, though only one of them is encoded."""
    jobs = encoded(queue, 1)
    queue.instance("fast", Stage.SAMPLE)
    queue.instance("slow", Stage.SAMPLE)
    speed(queue, fast=1e-3, slow=5e-3)
    busy = encoded_more(queue, 1)
    assert queue.claim(Stage.SAMPLE, most=1) == jobs
    assert where(queue)[jobs[0]] == "fast"
    assert queue.claim(Stage.SAMPLE) == []
    queue.jobs(queue.owner("alice"), 2)
    assert queue.claim(Stage.SAMPLE) == []
    queue.jobs(queue.owner("carol"), 3)
    assert queue.claim(Stage.SAMPLE) == busy
    assert where(queue)[busy[0]] == "slow"


def test_what_succeeded_is_measured_in_its_own_transaction(queue: Queue) -> None:
    """Seconds for a unit of work; what failed says nothing of it."""
    jobs = encoded(queue, 2)
    queue.instance("sampler-0", Stage.SAMPLE)

    def unit_s(session: Session) -> float | None:
        return session.get_one(InstanceRow, "sampler-0").unit_time_s

    assert queue.claim(Stage.SAMPLE) == jobs[:1]
    queue.end(jobs[0], RunEvent.REPORTED_FAILED)
    assert queue.database.inspect(unit_s) is None
    assert queue.claim(Stage.SAMPLE) == jobs[1:]
    queue.end(jobs[1])
    measured = queue.database.inspect(unit_s)
    assert measured is not None
    assert 0 < measured < 1


# Through the registry.


async def refused(client: Client, **spec: Any) -> MeshError:
    """What CreateJob and ValidateJob alike answer."""
    with pytest.raises(MeshError) as made:
        await client.create(**spec)
    request = jobs_pb2.ValidateJobRequest(spec=jobs_pb2.JobSpec(**{"prompt": "a boat", **spec}))
    with pytest.raises(MeshError) as validated:
        await client.call(client.jobs.ValidateJob, request)
    assert validated.value.reason is made.value.reason
    assert validated.value.field == made.value.field
    return made.value


async def test_a_job_goes_to_the_pool_or_the_sampler_that_it_names(mesh: Mesh) -> None:
    """Though another one is free and has the smaller name."""
    await mesh.add_all()
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1", pool="red")
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-2", pool="red")
    client = mesh.local
    for spec, allowed in (
        ({"pool": "red"}, {"sampler-1", "sampler-2"}),
        ({"pool": "red", "sampler_id": "sampler-2"}, {"sampler-2"}),
        ({"sampler_id": "sampler-2"}, {"sampler-2"}),
        ({"pool": "default"}, {"sampler-0"}),
    ):
        job = await client.ended((await client.create(**spec)).job_id)
        assert job.state == SUCCEEDED
        assert job.attempts[1].instance_id in allowed
        assert job.spec.pool == spec.get("pool", "")
        assert job.spec.sampler_id == spec.get("sampler_id", "")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"pool": "blue"}, "spec.pool"),
        ({"sampler_id": "sampler-9"}, "spec.sampler_id"),
        ({"pool": "default", "sampler_id": "sampler-1"}, "spec.sampler_id"),
        ({"sampler_id": "encoder-0"}, "spec.sampler_id"),
        ({"pool": "a\0b"}, "spec.pool"),
    ],
)
async def test_a_pool_or_sampler_that_is_not_there_is_refused_by_its_field(
    mesh: Mesh, spec: dict[str, Any], field: str
) -> None:
    """UNKNOWN_POOL, at both calls alike."""
    await mesh.add_all()
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1", pool="red")
    error = await refused(mesh.local, **spec)
    assert (error.reason, error.field) == (Reason.UNKNOWN_POOL, field)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"priority": 101}, "spec.priority"),
        ({"priority": -101}, "spec.priority"),
        ({"automatic_resumes": 6}, "spec.automatic_resumes"),
        ({"automatic_resumes": -1}, "spec.automatic_resumes"),
    ],
)
async def test_a_number_out_of_its_range_is_refused_by_its_field(
    mesh: Mesh, spec: dict[str, Any], field: str
) -> None:
    """With the nearest that would do."""
    await mesh.add_all()
    error = await refused(mesh.local, **spec)
    assert (error.reason, error.field) == (Reason.INVALID_FIELD, field)
    assert abs(int(error.info["nearest"])) in (100, 5, 0)


async def test_what_the_named_pool_cannot_run_is_refused_though_another_could(mesh: Mesh) -> None:
    """By the field that is too much for it."""
    await mesh.add_all()
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1", pool="small", max_frames=200)
    error = await refused(mesh.local, pool="small", frames=300)
    assert (error.reason, error.field) == (Reason.FRAMES_OUT_OF_RANGE, "spec.frames")
    job = await mesh.local.create(frames=300)
    job = await mesh.local.ended(job.job_id)
    assert job.attempts[1].instance_id == "sampler-0"


async def test_what_no_instance_could_ever_run_is_refused_and_says_why(mesh: Mesh) -> None:
    """One takes the length and not the canvas, the other the canvas and not the length."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    await mesh.add(stage_pb2.STAGE_SAMPLE, "long", max_pixels=256 * 256)
    await mesh.add(stage_pb2.STAGE_SAMPLE, "large", max_frames=124)
    canvas = jobs_pb2.Canvas(height=512, width=512)
    error = await refused(mesh.local, canvas=canvas, frames=300)
    assert error.reason is Reason.NO_INSTANCE_FITS
    assert "pixels" in error.message
    assert "frames" in error.message
    assert not (await mesh.local.call(mesh.local.jobs.ListJobs, jobs_pb2.ListJobsRequest())).jobs


async def test_a_stage_of_another_checkpoint_only_is_no_stage(mesh: Mesh) -> None:
    """A job would wait for ever."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    sampler = await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-0")
    sampler.digest, sampler.boot_id, sampler.generation = "e" * 64, new_id("boot"), 0

    async def known() -> bool:
        return sampler.generation == 2

    await until(known)
    error = await refused(mesh.local)
    assert error.reason is Reason.NO_INSTANCE_FITS
    assert "checkpoint" in error.message


async def test_a_job_whose_sampler_is_away_waits_and_says_what_for(mesh: Mesh) -> None:
    """Others are encoded and sampled meanwhile, however many wait for it."""
    await mesh.add_all()
    away = await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1", pool="red")
    away.beating = False
    client = mesh.local
    words = "the sampler sampler-1: it is not heard"
    await away.hold()
    jobs = [await client.create(f"boat {number}", sampler_id="sampler-1") for number in range(4)]
    job = await client.until(jobs[3].job_id, lambda one: one.waiting_for != "")
    for _ in range(3):
        other = await client.create("another boat")
        assert (await client.ended(other.job_id)).state == SUCCEEDED
    await client.until(jobs[2].job_id, lambda one: one.waiting_for == words)
    away.beating = True
    await away.release()
    for job in jobs:
        assert (await client.ended(job.job_id)).attempts[1].instance_id == "sampler-1"
