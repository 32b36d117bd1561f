"""How much an owner may have and how much may wait, and what a refusal says."""

import asyncio
import threading
from typing import Any

import pytest
from sqlmodel import Session, select

from reelmesh.v1 import jobs_pb2, owners_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import RunEvent, Stage
from services.registry.limits import Limits
from services.registry.records.claims import Rules
from services.registry.records.submissions import submit_all
from services.registry.schema import InstanceRow, JobRow
from tests.registry.mesh import Client, Mesh
from tests.registry.queue import Queue, draft

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED


async def set_quota(mesh: Mesh, owner: Client, **quota: Any) -> owners_pb2.Owner:
    """By the local owner, an admin."""
    admin = mesh.local
    request = owners_pb2.SetQuotaRequest(
        owner_id=owner.owner_id, quota=owners_pb2.Quota(**{"weight": 1.0, **quota})
    )
    answer = await admin.call(admin.owners.SetQuota, request)
    made: owners_pb2.Owner = answer.owner
    return made


async def refused(client: Client) -> MeshError:
    """What one more job is answered."""
    with pytest.raises(MeshError) as error:
        await client.create("one too many")
    return error.value


async def test_an_owner_has_one_running_and_two_waiting_by_default(mesh: Mesh) -> None:
    """The fourth is refused with a time, charges nothing, and fits when the first is sampled."""
    _, sampler, _ = await mesh.add_all()
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1")
    await sampler.hold()
    await mesh.stages[-1].hold()
    bob = await mesh.owner("bob")
    jobs = [await bob.create(f"boat {number}") for number in range(3)]
    await bob.until(jobs[0].job_id, lambda one: one.stage == stage_pb2.STAGE_SAMPLE)
    error = await refused(bob)
    assert error.reason is Reason.QUOTA_EXCEEDED
    assert error.retry_after_s == 30
    assert error.info["limit"] == "3"
    assert len((await bob.call(bob.jobs.ListJobs, jobs_pb2.ListJobsRequest())).jobs) == 3
    # The second sampler is free, and yet only one job of the owner may hold one.
    begun = [len(one.journal.begun) for one in mesh.stages if one.stage == stage_pb2.STAGE_SAMPLE]
    assert sum(begun) <= 1
    words = "another job of its owner to be sampled"
    waits = await bob.until(
        jobs[1].job_id,
        lambda one: one.stage == stage_pb2.STAGE_SAMPLE and one.waiting_for == words,
    )
    assert waits.state == jobs_pb2.JOB_STATE_RUNNING
    alice = await mesh.owner("alice")
    await alice.create("others are not held up")
    await sampler.release()
    await mesh.stages[-1].release()
    assert (await bob.ended(jobs[0].job_id)).state == SUCCEEDED
    await bob.create("now there is room")
    for job in jobs:
        assert (await bob.ended(job.job_id)).state == SUCCEEDED


async def test_limits_are_an_owners_own(mesh: Mesh) -> None:
    """-1 is none; they are told with the owner; the local one has none."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    admin, bob = mesh.local, await mesh.owner("bob")
    owners = await admin.call(admin.owners.ListOwners, owners_pb2.ListOwnersRequest())
    told = {one.name: (one.quota.max_running, one.quota.max_waiting) for one in owners.owners}
    assert told == {"bob": (1, 2), "local": (-1, -1)}
    set_to = await set_quota(mesh, bob, max_running=1, max_waiting=0, weight=2.5)
    assert set_to.quota.weight == 2.5
    await bob.create()
    assert (await refused(bob)).reason is Reason.QUOTA_EXCEEDED
    await set_quota(mesh, bob, max_running=-1, max_waiting=-1)
    for number in range(6):
        await bob.create(f"boat {number}")


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        ({"max_running": -2}, "quota.max_running"),
        ({"max_waiting": -7}, "quota.max_waiting"),
        ({"weight": 0.0}, "quota.weight"),
        ({"weight": 101.0}, "quota.weight"),
        ({"weight": float("nan")}, "quota.weight"),
    ],
)
async def test_a_limit_that_cannot_be_is_refused_by_its_field(
    mesh: Mesh, quota: dict[str, Any], field: str
) -> None:
    """And nothing is set."""
    bob = await mesh.owner("bob")
    with pytest.raises(MeshError) as error:
        await set_quota(mesh, bob, **quota)
    assert (error.value.reason, error.value.field) == (Reason.INVALID_FIELD, field)


async def test_only_an_admin_sets_limits_and_only_of_an_owner(mesh: Mesh) -> None:
    """NOT_ADMIN; OWNER_NOT_FOUND."""
    bob = await mesh.owner("bob")
    request = owners_pb2.SetQuotaRequest(owner_id=bob.owner_id)
    with pytest.raises(MeshError) as error:
        await bob.call(bob.owners.SetQuota, request)
    assert error.value.reason is Reason.NOT_ADMIN
    with pytest.raises(MeshError) as error:
        await set_quota(mesh, Client("127.0.0.1:1", "", "own_nobody"))
    assert error.value.reason is Reason.OWNER_NOT_FOUND


async def test_of_submits_that_race_for_the_last_place_one_wins(mesh: Mesh) -> None:
    """Eight at once, for three places."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    bob = await mesh.owner("bob")
    await mesh.stages[0].hold()
    answers = await asyncio.gather(
        *(bob.create(f"boat {number}") for number in range(8)), return_exceptions=True
    )
    reasons = [one.reason for one in answers if isinstance(one, MeshError)]
    # Two may wait for a sampler that is not there: the pool's places are fewer than the owner's.
    assert reasons == [Reason.QUEUE_FULL] * 6


async def test_a_full_queue_refuses_everybody_and_says_when_to_try(mesh: Mesh) -> None:
    """Two for each sampler besides those that are sampled; a repeat of a first call is answered."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    clients = [await mesh.owner(f"owner {number}") for number in range(4)]
    jobs = [(one, await one.create("boat", request_id="once")) for one in clients[:3]]
    error = await refused(clients[3])
    assert error.reason is Reason.QUEUE_FULL
    assert error.retry_after_s == 30
    assert error.info["limit"] == "2"
    again = await clients[0].create("boat", request_id="once")
    assert again.job_id == jobs[0][1].job_id
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1")
    await clients[3].create("now there is room")
    await sampler.release()
    for client, job in jobs:
        assert (await client.ended(job.job_id)).state == SUCCEEDED


LIMITS = Limits(max_running=1, max_waiting=2, waiting_per_sampler=2, retry_s=30)


def submit(queue: Queue, owner_id: str, limits: Limits = LIMITS) -> str:
    """A job as CreateJob makes it."""

    def work(session: Session) -> str:
        (verdict,) = submit_all(session, [draft(owner_id)], limits)
        assert verdict is not None
        if isinstance(verdict, MeshError):
            raise verdict
        return verdict.job.job_id

    return queue.database.transact(work)[0]


def test_two_threads_that_race_for_an_owners_last_unit(queue: Queue) -> None:
    """Exactly three of sixteen submits are taken, whatever the order of their transactions."""
    queue.instance("sampler-0", Stage.SAMPLE, slots=50)
    owner_id = queue.owner("bob")
    taken: list[str] = []
    reasons: list[Reason] = []

    def work() -> None:
        for _ in range(4):
            try:
                taken.append(submit(queue, owner_id))
            except MeshError as error:
                reasons.append(error.reason)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 3
    assert reasons == [Reason.QUOTA_EXCEEDED] * 13


def test_many_owners_that_race_for_the_pools_last_places(queue: Queue) -> None:
    """One slot and two places: three of eight."""
    queue.instance("sampler-0", Stage.SAMPLE)
    owners = [queue.owner(f"owner {number}") for number in range(8)]
    taken: list[str] = []

    def work(owner_id: str) -> None:
        try:
            taken.append(submit(queue, owner_id))
        except MeshError as error:
            assert error.reason is Reason.QUEUE_FULL

    threads = [threading.Thread(target=work, args=(one,)) for one in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 3


def test_the_time_to_wait_comes_from_measured_times(queue: Queue) -> None:
    """Jobs that wait, times what one takes a sampler, over its slots; a job for one's own limit."""
    queue.instance("sampler-0", Stage.SAMPLE)
    first = queue.owner("owner 0")
    submit(queue, first)
    job_s = 40.0

    def measure(session: Session) -> None:
        sampler = session.get_one(InstanceRow, "sampler-0")
        job = session.exec(select(JobRow)).one()
        rows = (5 * 7 + 2) * 4 * 4 + 2 * 207
        sampler.unit_time_s = job_s / (rows * job.evaluations)
        session.add(sampler)

    queue.database.transact(measure)
    for number in range(1, 3):
        submit(queue, queue.owner(f"owner {number}"))
    with pytest.raises(MeshError) as error:
        submit(queue, queue.owner("late"))
    assert error.value.reason is Reason.QUEUE_FULL
    assert error.value.retry_after_s == pytest.approx(2 * job_s)
    queue.instance("sampler-1", Stage.SAMPLE, slots=9)
    for _ in range(2):
        submit(queue, first)
    with pytest.raises(MeshError) as error:
        submit(queue, first)
    assert error.value.reason is Reason.QUOTA_EXCEEDED
    assert error.value.retry_after_s == pytest.approx(job_s)


def test_no_unit_leaks_whatever_becomes_of_a_job(queue: Queue) -> None:
    """Refused, failed, cancelled in doubt, sampled: the places are there again."""
    queue.instance("encoder-0", Stage.ENCODE, slots=4)
    queue.instance("sampler-0", Stage.SAMPLE, slots=4)
    rules = Rules(encoded_ahead=9, limits=LIMITS)
    owner_id = queue.owner("bob")
    for event in (
        RunEvent.REPORTED_FAILED,
        RunEvent.REPORTED_CANCELLED,
        RunEvent.REPORTED_SUCCEEDED,
        RunEvent.REMOVED,
    ):
        job_id = submit(queue, owner_id)
        assert queue.claim(Stage.ENCODE, rules) == [job_id]
        queue.end(job_id, RunEvent.REPORTED_REFUSED)
        assert queue.claim(Stage.ENCODE, rules) == [job_id]
        queue.end(job_id)
        assert queue.claim(Stage.SAMPLE, rules) == [job_id]
        queue.end(job_id, event)
    jobs = [submit(queue, owner_id) for _ in range(3)]
    with pytest.raises(MeshError):
        submit(queue, owner_id)
    assert queue.claim(Stage.ENCODE, rules) == jobs[:2]
