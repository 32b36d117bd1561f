"""Doubt: lost answers, lost starts, other journals, expired leases. Nothing ever runs twice."""

from collections import Counter

import pytest
from sqlalchemy import text
from sqlmodel import Session

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from reelmesh.v1.stage_pb2 import Run
from reelmesh.v1.transfer_pb2 import BundleRef
from services.common.rpc.channel import Peer
from services.common.rpc.errors import Reason
from services.registry.database import Database, make_engine
from services.registry.lifecycle import Stage
from services.registry.records.bindings import Binding, live_runs, mark_sent, withdraw_unsent
from services.registry.records.claims import Rules, claim
from tests.registry.mesh import Mesh, until
from tests.registry.queue import Queue, create_job
from tests.registry.stages import FakeStage, Journal

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED
LIST = instances_pb2.ListInstancesRequest()
VERIFYING = jobs_pb2.JOB_STATE_VERIFYING


def begun_once(*stages: FakeStage) -> bool:
    """Whether no worker began a run twice, nor two runs of one job on one stage."""
    for stage in stages:
        jobs = Counter(job_id for _, job_id, what in stage.journal.diary if what == "begin")
        assert max(Counter(stage.journal.begun).values(), default=0) <= 1
        assert max(jobs.values(), default=0) <= 3  # one for each stage: they share the diary
    return True


async def test_a_lost_answer_to_a_start_does_not_start_twice(mesh: Mesh) -> None:
    """The stage has the run: it is found there by asking, and only followed."""
    stages = await mesh.add_all()
    sampler = stages[1]
    sampler.lose_start = "after"
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(ended.attempts) == 3
    assert len(sampler.starts) == len(sampler.journal.begun) == 1
    assert begun_once(*stages)


async def test_a_start_that_never_arrived_is_buried_before_it_is_bound_again(mesh: Mesh) -> None:
    """A tombstone under the binding's journal, then a new run id; no attempt is counted."""
    _, sampler, _ = await mesh.add_all()
    sampler.lose_start = "before"
    client = mesh.local
    job = await client.create()

    async def buried() -> bool:
        runs = sampler.journal.runs.values()
        return any(run.state == stage_pb2.RUN_STATE_CANCELLED for run in runs)

    await until(buried)
    sampler.lose_start = ""
    ended = await client.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(ended.attempts) == 3
    tombstones = [run for run in sampler.journal.runs.values() if not run.job_id]
    assert tombstones
    assert len(sampler.journal.begun) == 1
    assert sampler.journal.begun[0] not in {run.run_id for run in tombstones}


async def test_absence_under_another_journal_proves_nothing(mesh: Mesh) -> None:
    """The job stays VERIFYING and the slot held, until its owner cancels; the slot even then."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    other = await mesh.replace(sampler, Journal(diary=mesh.diary))
    # Refused while the old lease lives; after that it takes over, and still proves nothing.
    verifying = await client.until(job.job_id, lambda one: one.state == VERIFYING)
    assert verifying.attempts[-1].state == stage_pb2.RUN_STATE_UNKNOWN
    await until(lambda: _is_registered(other))
    second = await client.create("another boat")
    await client.until(second.job_id, lambda one: one.waiting_for == "a sampler to be free")
    assert not other.starts
    cancelled = await client.cancel(job.job_id)
    assert cancelled.state == jobs_pb2.JOB_STATE_CANCELLED
    instances = await client.call(client.instances.ListInstances, LIST)
    held = {one.instance_id: list(one.run_ids) for one in instances.instances}
    assert held["sampler-0"] == [verifying.attempts[-1].run_id]


async def test_a_start_that_meets_another_journal_is_taken_back(mesh: Mesh) -> None:
    """It was refused for certain: no doubt; the job goes on when the instance is known again."""
    _, sampler, _ = await mesh.add_all()
    await sampler.crash()
    other = await mesh.replace(sampler, Journal(diary=mesh.diary))
    client = mesh.local
    job = await client.create()
    ended = await client.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(other.journal.begun) == 1


async def test_an_expired_lease_requeues_nothing_and_a_heartbeat_heals(mesh: Mesh) -> None:
    """SUSPECT and VERIFYING while it is silent, RUNNING again when it is heard."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    server, sampler._server = sampler._server, None
    assert server is not None
    await server.stop(0)  # it neither answers nor beats, but it works on
    sampler.beating = False
    await client.until(job.job_id, lambda one: one.state == VERIFYING)
    sampler._server = None
    sampler.beating = True
    port = int(sampler.endpoint.rpartition(":")[2])
    if sampler._beat is not None:
        sampler._beat.cancel()
    await sampler.serve(port)
    await client.until(job.job_id, lambda one: one.state == jobs_pb2.JOB_STATE_RUNNING)
    await sampler.release()
    ended = await client.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(sampler.journal.begun) == 1


@pytest.mark.parametrize("sent", [False, True])
async def test_a_registry_that_died_around_a_start_sends_it_once(mesh: Mesh, sent: bool) -> None:
    """Before the mark the start is sent as bound; after it only asking can tell."""
    stages = await mesh.add_all()
    encoder, owner_id = stages[0], mesh.local.owner_id
    await mesh.registry.stop()
    database = Database(make_engine(mesh.settings.url), lambda names: None)
    names = ["encoder-0"]

    def bind(session: Session) -> str:
        job = create_job(session, owner_id)
        run_id = claim(session, Stage.ENCODE, names, names, 2)
        assert run_id is not None
        assert not sent or mark_sent(session, run_id)
        assert not sent or not mark_sent(session, run_id)
        return job.job_id

    job_id, _ = database.transact(bind)
    run_id = database.transact(live_runs)[0][0]
    database.close()
    await mesh.resume()
    ended = await mesh.local.ended(job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(ended.attempts) == 3
    assert (ended.attempts[0].run_id == run_id) is not sent
    assert len(encoder.journal.begun) == 1


@pytest.mark.parametrize("sends", [False, True])
def test_only_a_binding_that_is_not_sent_is_taken_back(queue: Queue, sends: bool) -> None:
    """One that its registry sends at once is in doubt from the beginning, for everybody else."""
    queue.instance("encoder-0", Stage.ENCODE)
    queue.jobs(queue.owner("a"), 1)
    queue.claim(Stage.ENCODE, Rules(encoded_ahead=9, sends=sends))
    run_id = queue.database.inspect(live_runs)[0]
    assert queue.database.transact(lambda session: mark_sent(session, run_id))[0] is not sends
    taken_back = queue.database.transact(lambda session: withdraw_unsent(session, run_id))[0]
    assert not taken_back


async def test_a_binding_of_this_registry_is_sent_once_though_its_follower_fails(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right to send is not given back: after a fault one asks, buries, and binds again."""
    stages = await mesh.add_all()
    encoder, follower = stages[0], mesh.registry.follower
    starts: list[str] = []
    start = follower._calls.start

    async def fail_once(peer: Peer, binding: Binding, source: BundleRef | None) -> Run:
        starts.append(binding.run.run_id)
        if len(starts) == 1:
            raise RuntimeError("a fault of ours, before anything was sent")
        return await start(peer, binding, source)

    monkeypatch.setattr(follower._calls, "start", fail_once)
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(set(starts)) == len(starts) == 4
    assert starts[0] not in encoder.starts
    assert begun_once(*stages)


async def test_a_stage_that_died_mid_run_fails_the_job_with_its_own_words(mesh: Mesh) -> None:
    """Its next start settles the journal: INTERRUPTED, never a silent second run."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    again = await mesh.replace(sampler)
    ended = await client.ended(job.job_id)
    assert ended.state == jobs_pb2.JOB_STATE_FAILED
    assert ended.failure.reason == Reason.INTERRUPTED
    assert ended.failure.stage == stage_pb2.STAGE_SAMPLE
    assert again.generation == 2
    assert len(again.journal.begun) == 1


async def test_a_stage_that_died_between_runs_costs_nothing(mesh: Mesh) -> None:
    """The job waits for it and completes; its conditioning is pulled once it is back."""
    encoder, sampler, _ = await mesh.add_all()
    sampler.refuse = True
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: one.stage == stage_pb2.STAGE_SAMPLE)
    await encoder.crash()
    sampler.refuse = False
    await mesh.replace(encoder)
    ended = await client.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(encoder.journal.begun) == 1


async def test_a_refused_start_keeps_the_jobs_place_and_counts_no_attempt(mesh: Mesh) -> None:
    """QUEUED again after the encoder's refusal; later it runs under another run id."""
    encoder = (await mesh.add_all())[0]
    encoder.refuse = True
    client = mesh.local
    job = await client.create()

    async def refused_twice() -> bool:
        return len(encoder.starts) >= 2

    await until(refused_twice)
    waiting = await client.until(job.job_id, lambda one: one.state == jobs_pb2.JOB_STATE_QUEUED)
    assert not waiting.attempts
    assert not waiting.HasField("start_time")
    # Why it still waits is told: a full disk must not look like an idle encoder.
    await client.until(
        job.job_id, lambda one: f"{encoder.instance_id} refused it: " in one.waiting_for
    )
    encoder.refuse = False
    ended = await client.ended(job.job_id)
    assert ended.state == SUCCEEDED
    assert len(ended.attempts) == 3


async def test_reports_of_somebody_else_are_dropped_and_counted(mesh: Mesh) -> None:
    """A report with another instance's name changes nothing."""
    _, sampler, _ = await mesh.add_all()
    sampler.lose_start = "after"  # so that the run is known by asking alone
    sampler.foreign_reports = True
    client = mesh.local
    job = await client.create()

    async def dropped() -> bool:
        return mesh.registry.follower.dropped_reports > 0

    await until(dropped)
    assert (await client.get(job.job_id)).state == VERIFYING
    sampler.foreign_reports = False
    assert (await client.ended(job.job_id)).state == SUCCEEDED


async def test_a_clock_in_another_zone_changes_nothing(mesh: Mesh) -> None:
    """Times are stored in UTC and enums by value, whatever the zone of the process."""
    await mesh.add_all()
    job = await mesh.local.create()
    await mesh.local.ended(job.job_id)
    raw = text("SELECT state, create_time FROM job")
    row = await mesh.registry.database.read(lambda session: session.execute(raw).one())
    assert row[0] == "SUCCEEDED"
    assert str(row[1]).startswith(job.create_time.ToDatetime().strftime("%Y-%m-%d %H:"))


async def _is_registered(stage: FakeStage) -> bool:
    return stage.generation > 0
