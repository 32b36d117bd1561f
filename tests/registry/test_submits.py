"""Submits that share a transaction: each has a verdict of its own."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.database import Database
from services.registry.lifecycle import Stage
from services.registry.limits import Limits
from services.registry.records.owners import lock_owner
from services.registry.records.queues import describe_job
from services.registry.records.submissions import Draft, Verdict, submit_all
from services.registry.schema import EventRow, JobRow, OwnerRow
from services.registry.submitting import Submitting
from tests.registry.queue import RESOLUTION, Queue, draft

LIMITS = Limits(max_running=1, max_waiting=2, waiting_per_sampler=20, retry_s=30)


def submit(queue: Queue, *drafts: Draft, limits: Limits = LIMITS) -> Sequence[Verdict | None]:
    """All of them in one transaction."""
    return queue.database.transact(lambda session: submit_all(session, drafts, limits))[0]


def reasons(verdicts: Sequence[Verdict | None]) -> list[Reason | None]:
    """Why each was refused; none: it was not."""
    return [one.reason if isinstance(one, MeshError) else None for one in verdicts]


def job_id(verdict: Verdict | None) -> str:
    """Of one that was admitted."""
    assert isinstance(verdict, jobs_pb2.CreateJobResponse)
    return verdict.job.job_id


def jobs_of(queue: Queue, owner_id: str) -> list[str]:
    """Its jobs in the order of their revisions."""
    query = select(JobRow.job_id).where(col(JobRow.owner_id) == owner_id)
    query = query.order_by(col(JobRow.revision))
    return queue.database.inspect(lambda session: list(session.exec(query)))


def test_one_that_is_refused_leaves_the_others_as_they_are(queue: Queue) -> None:
    """The fourth of an owner; what another owner asked for between them is admitted."""
    queue.instance("sampler-0", Stage.SAMPLE)
    bob, ann = queue.owner("bob"), queue.owner("ann")
    verdicts = submit(queue, *(draft(bob) for _ in range(4)), draft(ann))
    assert reasons(verdicts) == [None, None, None, Reason.QUOTA_EXCEEDED, None]
    assert jobs_of(queue, bob) == [job_id(one) for one in verdicts[:3]]
    assert jobs_of(queue, ann) == [job_id(verdicts[4])]


def test_the_pools_last_places_go_to_those_who_were_first(queue: Queue) -> None:
    """One slot and two places; a job of an owner without limits counts and is not refused."""
    queue.instance("sampler-0", Stage.SAMPLE)
    limits = replace(LIMITS, waiting_per_sampler=2)
    names = [queue.owner(f"owner {number}") for number in range(5)]
    free = queue.owner("free", max_waiting=-1)
    order = [names[0], free, names[1], names[2], free, names[3]]
    verdicts = submit(queue, *map(draft, order), limits=limits)
    full = Reason.QUEUE_FULL
    assert reasons(verdicts) == [None, None, None, full, None, full]
    assert reasons(submit(queue, draft(names[4]), limits=limits)) == [full]


def test_a_pool_and_a_sampler_are_full_each_for_itself(queue: Queue) -> None:
    """Whoever asked for any other sampler is not refused with them."""
    for name in ("sampler-0", "sampler-1", "sampler-2"):
        queue.instance(name, Stage.SAMPLE)
    limits = replace(LIMITS, waiting_per_sampler=1)
    one = replace(RESOLUTION, sampler_id="sampler-0")
    names = [queue.owner(f"owner {number}") for number in range(6)]
    asked = [one, one, one, one, RESOLUTION, one]
    drafts = [draft(owner, wanted) for owner, wanted in zip(names, asked, strict=True)]
    full = Reason.QUEUE_FULL
    assert reasons(submit(queue, *drafts, limits=limits)) == [None, None, None, full, None, full]


def test_the_same_request_twice_at_once_is_one_job(queue: Queue) -> None:
    """Another body with its id is refused; of another owner it is another request."""
    queue.instance("sampler-0", Stage.SAMPLE)
    bob, ann = queue.owner("bob"), queue.owner("ann")
    other = replace(RESOLUTION, prompt="another boat")
    first = draft(bob, request_id="one")
    verdicts = submit(
        queue, first, draft(bob, other, "one"), first, draft(ann, request_id="one"), draft(bob)
    )
    assert reasons(verdicts) == [None, Reason.REQUEST_ID_REUSED, None, None, None]
    assert verdicts[2] == verdicts[0]
    assert len({job_id(verdicts[index]) for index in (0, 3, 4)}) == 3
    assert len(jobs_of(queue, bob)) == 2
    again = submit(queue, draft(bob, other, "one"), first)
    assert reasons(again) == [Reason.REQUEST_ID_REUSED, None]
    assert again[1] == verdicts[0]


def test_a_refused_request_is_no_first_answer(queue: Queue) -> None:
    """The same id is admitted when there is room, though it was refused before, twice at once."""
    queue.instance("sampler-0", Stage.SAMPLE)
    bob = queue.owner("bob", max_waiting=0)
    late = draft(bob, request_id="late")
    exceeded = Reason.QUOTA_EXCEEDED
    assert reasons(submit(queue, draft(bob), late, late)) == [None, exceeded, exceeded]

    def raise_limit(session: Session) -> None:
        lock_owner(session, bob).max_waiting = 1

    queue.database.transact(raise_limit)
    verdicts = submit(queue, late, late)
    assert reasons(verdicts) == [None, None]
    assert verdicts[0] == verdicts[1]


def test_every_job_has_its_event_its_number_and_its_place(queue: Queue) -> None:
    """Revisions grow by one in the order of asking, and Get tells what was answered."""
    queue.instance("encoder-0", Stage.ENCODE)
    queue.instance("sampler-0", Stage.SAMPLE)
    bob, ann = queue.owner("bob"), queue.owner("ann")
    verdicts = submit(queue, draft(bob), draft(ann), draft(bob), draft(bob))
    told = [one.job for one in verdicts if isinstance(one, jobs_pb2.CreateJobResponse)]
    assert [one.revision for one in told] == [1, 1, 2, 3]
    assert [one.queue_position for one in told] == [0, 1, 2, 3]

    def read(session: Session) -> None:
        for one in told:
            assert describe_job(session, session.get_one(JobRow, one.job_id)) == one
            event = session.exec(select(EventRow).where(col(EventRow.job_id) == one.job_id)).one()
            assert event.revision == one.revision
            kept = jobs_pb2.Job.FromString(event.body)
            assert (kept.spec.prompt, kept.job_id) == ("", one.job_id)
        assert session.get_one(OwnerRow, bob).revision == 3

    queue.database.inspect(read)
    assert queue.claim(Stage.ENCODE)[0] == told[0].job_id


def test_owners_that_begin_together_begin_at_the_same_time(queue: Queue) -> None:
    """At the least of those in turn, whoever of them is written first."""
    queue.instance("encoder-0", Stage.ENCODE, slots=4)
    queue.instance("sampler-0", Stage.SAMPLE, slots=4)
    old = queue.owner("old")
    queue.jobs(old, 3)
    queue.claim(Stage.ENCODE, most=2)
    names = [queue.owner(f"owner {number}") for number in range(3)]
    submit(queue, *map(draft, names))
    times = queue.times()
    assert times[old] > 0
    assert {times[name] for name in names} == {times[old]}


def test_an_owner_that_is_held_is_left_out_of_several_and_waited_for_alone(queue: Queue) -> None:
    """On PostgreSQL; nobody else waits for it, and no place is lost or given twice."""
    if queue.database._engine.dialect.name == "sqlite":
        pytest.skip("it takes one writer at a time")
    queue.instance("sampler-0", Stage.SAMPLE, slots=9)
    bob, ann = queue.owner("bob"), queue.owner("ann")
    held, go_on = threading.Event(), threading.Event()

    def hold(session: Session) -> None:
        lock_owner(session, bob)
        held.set()
        go_on.wait(10)

    holder = threading.Thread(target=queue.database.transact, args=(hold,))
    holder.start()
    assert held.wait(10)
    verdicts = submit(queue, draft(bob), draft(ann), draft(bob))
    assert [one is None for one in verdicts] == [True, False, True]
    alone = threading.Thread(target=submit, args=(queue, draft(bob), draft(bob)))
    alone.start()
    go_on.set()
    for thread in (holder, alone):
        thread.join()
    assert len(jobs_of(queue, bob)) == 2
    assert len(jobs_of(queue, ann)) == 1


@pytest.fixture
def submitting(queue: Queue) -> Submitting:
    """What the service submits with."""
    queue.instance("sampler-0", Stage.SAMPLE, slots=500)
    return Submitting(queue.database, LIMITS)


async def test_each_of_many_that_come_at_once_hears_its_own(
    queue: Queue, submitting: Submitting
) -> None:
    """100 of 20 owners with three places each; one that gave up takes nobody along."""
    names = [queue.owner(f"owner {number}") for number in range(20)]
    tasks = [asyncio.create_task(submitting.submit(draft(names[n % 20]))) for n in range(100)]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(), asyncio.CancelledError)
    made = [one.job.job_id for one in answers if isinstance(one, jobs_pb2.CreateJobResponse)]
    refused = [one.reason for one in answers if isinstance(one, MeshError)]
    assert len(set(made)) == 60
    assert refused == [Reason.QUOTA_EXCEEDED] * 39
    assert sorted(made) == sorted(one for name in names for one in jobs_of(queue, name))


async def test_one_that_cannot_be_written_takes_nobody_along(
    queue: Queue, submitting: Submitting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are written alone, once each."""
    bob, ann = queue.owner("bob"), queue.owner("ann")
    broken = replace(draft(ann), seed="not a number")  # type: ignore[arg-type]
    sizes: list[int] = []

    async def write(self: Database, work: Any) -> Any:
        sizes.append(len(work.keywords["drafts"]))
        return await original(self, work)

    original = Database.write
    monkeypatch.setattr(Database, "write", write)
    asked = (draft(bob), draft(bob), broken, draft(bob))
    answers = await asyncio.gather(*map(submitting.submit, asked), return_exceptions=True)
    assert sizes == [4, 1, 1, 1, 1]
    made = [one.job.job_id for one in answers if isinstance(one, jobs_pb2.CreateJobResponse)]
    assert made == jobs_of(queue, bob)
    assert len(made) == 3
    assert isinstance(answers[2], ValueError)
    assert not jobs_of(queue, ann)
