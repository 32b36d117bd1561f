"""What operators decide: verdicts on runs in doubt, and removed hosts. What they rule holds."""

from collections.abc import Awaitable, Callable

import pytest
from sqlmodel import Session, col, select

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.registry.schema import RulingRow, RunRow
from tests.registry.mesh import Client, Mesh, begun_at, until
from tests.registry.stages import FakeStage, Journal, publish
from tests.registry.test_instances import Stage, states
from tests.registry.test_publish import lease_of
from tests.registry.test_resume import SAMPLER, remove

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED
VERIFYING = jobs_pb2.JOB_STATE_VERIFYING
NEVER_RAN = instances_pb2.VERDICT_NEVER_RAN
RULED_FAILED = instances_pb2.VERDICT_FAILED
KEEP_WAITING = instances_pb2.VERDICT_KEEP_WAITING


async def rule(
    client: Client, run_id: str, verdict: int, note: str = ""
) -> instances_pb2.ResolveRunResponse:
    """A verdict."""
    request = instances_pb2.ResolveRunRequest(run_id=run_id, note=note)
    request.verdict = verdict  # type: ignore[assignment]
    answer: instances_pb2.ResolveRunResponse = await client.call(
        client.instances.ResolveRun, request
    )
    return answer


async def rulings(mesh: Mesh) -> list[tuple[str, str, str, str]]:
    """(who, action, target, note) of all that was decided, oldest first."""

    def read(session: Session) -> list[tuple[str, str, str, str]]:
        rows = session.exec(select(RulingRow).order_by(col(RulingRow.create_time)))
        return [(row.owner_id, row.action, row.target, row.note) for row in rows]

    return await mesh.registry.database.read(read)


async def doubted(mesh: Mesh, sampler: FakeStage, *, lost: str) -> jobs_pb2.Job:
    """A job whose sample is UNKNOWN: the start or its answer was lost, then the whole sampler."""
    await sampler.hold()
    sampler.lose_start, sampler.mute = lost, True
    job = await mesh.local.create()
    doubt = await mesh.local.until(job.job_id, lambda one: one.state == VERIFYING)
    await go_away(sampler)
    return doubt


async def go_away(sampler: FakeStage) -> None:
    """It is not reached any more and does not beat, but what it does goes on."""
    assert sampler._beat is not None
    assert sampler._server is not None
    sampler._beat.cancel()
    await sampler._server.stop(0)


async def come_back(sampler: FakeStage) -> None:
    """The same process is reached again."""
    sampler.lose_start, sampler.mute = "", False
    await sampler.serve(int(sampler.endpoint.rpartition(":")[2]))


def buried(mesh: Mesh, run_id: str) -> Callable[[], Awaitable[bool]]:
    """Whether nothing is owed of the run any more."""

    async def is_buried() -> bool:
        run = await mesh.registry.database.read(lambda session: session.get(RunRow, run_id))
        return run is not None and not run.burial_owed

    return is_buried


async def test_a_run_that_never_ran_is_bound_again_and_buried_when_its_host_is_back(
    mesh: Mesh,
) -> None:
    """The job keeps its place; the late start is refused for ever by its tombstone."""
    _, sampler, _ = await mesh.add_all()
    job = await doubted(mesh, sampler, lost="before")
    run_id = job.attempts[-1].run_id
    answer = await rule(mesh.local, run_id, NEVER_RAN, "it was off")
    assert (answer.job_id, answer.state) == (job.job_id, stage_pb2.RUN_STATE_REFUSED)
    other = await mesh.add(SAMPLER, "sampler-1")
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(other.journal.begun) == 1
    await come_back(sampler)
    await until(buried(mesh, run_id))
    assert sampler.journal.runs[run_id].state == stage_pb2.RUN_STATE_CANCELLED
    assert not sampler.journal.begun
    assert await mesh.local.get(job.job_id) == ended
    assert await rulings(mesh) == [(mesh.local.owner_id, "NEVER_RAN", run_id, "it was off")]


async def test_a_run_that_was_ruled_over_is_stopped_where_it_works_on(mesh: Mesh) -> None:
    """The operator was wrong: its reports are dropped and counted, and it is told to stop."""
    _, sampler, _ = await mesh.add_all()
    job = await doubted(mesh, sampler, lost="after")
    run_id = job.attempts[-1].run_id
    await rule(mesh.local, run_id, NEVER_RAN)
    other = await mesh.add(SAMPLER, "sampler-1")
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert (sampler.journal.begun, len(other.journal.begun)) == ([run_id], 1)
    await come_back(sampler)
    await until(buried(mesh, run_id))
    assert sampler.journal.runs[run_id].state == stage_pb2.RUN_STATE_CANCELLED
    assert mesh.registry.follower.dropped_reports > 0
    assert await mesh.local.get(job.job_id) == ended


async def test_a_run_that_was_heard_cannot_be_said_never_to_have_run(mesh: Mesh) -> None:
    """Binding it again could run it twice at once."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    doubt = await mesh.local.until(job.job_id, lambda one: one.state == VERIFYING)
    with pytest.raises(MeshError) as refused:
        await rule(mesh.local, doubt.attempts[-1].run_id, NEVER_RAN)
    assert refused.value.field == "verdict"
    assert await rulings(mesh) == []


async def test_a_run_that_was_ruled_failed_ends_its_job(mesh: Mesh) -> None:
    """FAILED, resumable, with the operator's words; a late publish is refused."""
    _, _, decoder = await mesh.add_all()
    await decoder.hold()
    job = await mesh.local.create(automatic_resumes=3)
    running = await mesh.local.until(job.job_id, begun_at(decoder))
    run_id = running.attempts[-1].run_id
    lease = await lease_of(mesh, run_id)
    await go_away(decoder)
    await mesh.local.until(job.job_id, lambda one: one.state == VERIFYING)
    answer = await rule(mesh.local, run_id, RULED_FAILED, "it smells of smoke")
    assert answer.state == stage_pb2.RUN_STATE_FAILED
    ended = await mesh.local.get(job.job_id)
    assert (ended.state, ended.resumes) == (jobs_pb2.JOB_STATE_FAILED, 0)
    assert "it smells of smoke" in ended.failure.message
    assert ended.failure.resumable
    peer = Stage(mesh).peer
    with pytest.raises(MeshError) as refused:
        await publish(peer, lease, "up_" + "0" * 32)
    assert refused.value.reason in (Reason.STALE_RUN, Reason.JOB_ENDED)
    await come_back(decoder)
    await until(buried(mesh, run_id))
    assert decoder.journal.runs[run_id].state == stage_pb2.RUN_STATE_CANCELLED
    assert await mesh.local.get(job.job_id) == ended


async def test_keep_waiting_is_recorded_and_changes_nothing(mesh: Mesh) -> None:
    """And the run ends as soon as its instance answers."""
    _, sampler, _ = await mesh.add_all()
    job = await doubted(mesh, sampler, lost="after")
    answer = await rule(mesh.local, job.attempts[-1].run_id, KEEP_WAITING, "reboot takes an hour")
    assert answer.state == stage_pb2.RUN_STATE_UNKNOWN
    assert (await mesh.local.get(job.job_id)).state == VERIFYING
    assert [one[1] for one in await rulings(mesh)] == ["KEEP_WAITING"]
    await come_back(sampler)
    await sampler.release()
    assert (await mesh.local.ended(job.job_id)).state == SUCCEEDED
    assert len(sampler.journal.begun) == 1


async def test_only_a_run_in_doubt_takes_a_verdict(mesh: Mesh) -> None:
    """Every other is refused, as are an unknown one, no verdict, and who is no admin."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    running = await mesh.local.until(job.job_id, begun_at(sampler))
    stranger = await mesh.owner("stranger")
    for client, run_id, verdict, reason in (
        (mesh.local, running.attempts[-1].run_id, RULED_FAILED, Reason.RUN_NOT_IN_DOUBT),
        (mesh.local, running.attempts[0].run_id, RULED_FAILED, Reason.RUN_NOT_IN_DOUBT),
        (mesh.local, "run_" + "0" * 32, RULED_FAILED, Reason.RUN_NOT_FOUND),
        (mesh.local, "\0", RULED_FAILED, Reason.RUN_NOT_FOUND),
        (mesh.local, running.attempts[0].run_id, 0, Reason.INVALID_FIELD),
        (stranger, running.attempts[-1].run_id, RULED_FAILED, Reason.NOT_ADMIN),
    ):
        with pytest.raises(MeshError) as refused:
            await rule(client, run_id, verdict)
        assert refused.value.reason is reason
    with pytest.raises(MeshError) as refused:
        await rule(mesh.local, running.attempts[-1].run_id, RULED_FAILED, "x" * 501)
    assert refused.value.field == "note"
    assert await rulings(mesh) == []
    await sampler.release()


async def test_a_removed_host_loses_its_runs_and_its_slots(mesh: Mesh) -> None:
    """GONE, its run LOST, its job FAILED and resumable; recorded with who and why."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    with pytest.raises(MeshError) as refused:
        await mesh.local.call(
            mesh.local.instances.Remove, instances_pb2.RemoveRequest(instance_id="sampler-0")
        )
    assert refused.value.reason is Reason.INSTANCE_ALIVE
    await sampler.crash()
    await remove(mesh, "sampler-0")
    ended = await mesh.local.get(job.job_id)
    assert ended.state == jobs_pb2.JOB_STATE_FAILED
    assert ended.failure.resumable
    assert "the host burned down" in ended.failure.message
    assert ended.attempts[-1].state == stage_pb2.RUN_STATE_LOST
    assert (await states(mesh))["sampler-0"] == stage_pb2.INSTANCE_STATE_GONE
    who = mesh.local.owner_id
    assert await rulings(mesh) == [(who, "REMOVE", "sampler-0", "the host burned down")]


@pytest.mark.parametrize("same_boot", [True, False])
async def test_a_removed_host_that_is_back_begins_anew_and_its_old_runs_are_stopped(
    mesh: Mesh, same_boot: bool
) -> None:
    """Another generation, though its process may be the same; what it still did is not used."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create(automatic_resumes=1)
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    run_id, generation = sampler.journal.begun[0], sampler.generation
    if same_boot:
        await go_away(sampler)
    else:
        await sampler.crash()
    await remove(mesh, "sampler-0")
    if same_boot:
        await come_back(sampler)
        back = sampler
    else:
        back = await mesh.replace(sampler)
    await until(buried(mesh, run_id))

    async def is_new() -> bool:
        return back.generation > generation

    await until(is_new)
    ended_there = (stage_pb2.RUN_STATE_CANCELLED, stage_pb2.RUN_STATE_FAILED)
    assert back.journal.runs[run_id].state in ended_there
    await back.release()
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert len(back.journal.begun) == 2


async def test_another_disk_under_the_same_name_owes_no_burial(mesh: Mesh) -> None:
    """A tombstone in a journal that never saw the run would prove nothing."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    await remove(mesh, "sampler-0")
    other = await mesh.replace(sampler, Journal(diary=mesh.diary))
    await other.release()
    second = await mesh.local.create("another boat")
    assert (await mesh.local.ended(second.job_id)).state == SUCCEEDED
    assert sampler.journal.begun[0] not in other.journal.runs


async def test_a_verdict_frees_the_slot_of_a_job_that_was_cancelled_in_doubt(mesh: Mesh) -> None:
    """The job stays CANCELLED; what a watch replays is what Get says."""
    _, sampler, _ = await mesh.add_all()
    job = await doubted(mesh, sampler, lost="after")
    client = mesh.local
    assert (await client.cancel(job.job_id)).state == jobs_pb2.JOB_STATE_CANCELLED
    await rule(client, job.attempts[-1].run_id, RULED_FAILED)
    after = await client.get(job.job_id)
    assert after.state == jobs_pb2.JOB_STATE_CANCELLED
    assert after.attempts[-1].state == stage_pb2.RUN_STATE_FAILED
    found = await client.call(client.instances.ListInstances, instances_pb2.ListInstancesRequest())
    assert not any(one.run_ids for one in found.instances)
    request = jobs_pb2.WatchJobRequest(job_id=job.job_id, start_revision=1)
    told = await client.read_all(client.jobs.WatchJob, request)
    assert told[-1].job == after
    assert mesh.tokens.of(Role.STAGE) not in str(after)
