"""Resumes: a new job redoes only what is missing, and nothing that exists is made again."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.schema import RunRow
from tests.registry.mesh import Client, Mesh, until
from tests.registry.stages import FakeStage, Journal

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED
FAILED = jobs_pb2.JOB_STATE_FAILED
VERIFYING = jobs_pb2.JOB_STATE_VERIFYING
DECODER, SAMPLER = stage_pb2.STAGE_DECODE, stage_pb2.STAGE_SAMPLE


async def resume(client: Client, job_id: str, request_id: str = "") -> jobs_pb2.Job:
    """The new job."""
    request = jobs_pb2.ResumeJobRequest(job_id=job_id, request_id=request_id)
    job: jobs_pb2.Job = (await client.call(client.jobs.ResumeJob, request)).job
    return job


async def remove(mesh: Mesh, instance_id: str) -> None:
    """Its host is off."""
    client = mesh.local
    request = instances_pb2.RemoveRequest(instance_id=instance_id, note="the host burned down")

    async def removed() -> bool:
        try:
            await client.call(client.instances.Remove, request)
        except MeshError as error:
            assert error.reason is Reason.INSTANCE_ALIVE
            return False
        return True

    await until(removed)


def copied(mesh: Mesh, run_id: str) -> Callable[[], Awaitable[bool]]:
    """Whether the registry has the run's output."""

    async def is_copied() -> bool:
        run = await mesh.registry.database.read(lambda session: session.get(RunRow, run_id))
        return run is not None and run.copy_bundle_id is not None

    return is_copied


def counts(*stages: FakeStage) -> list[int]:
    """How many runs each has begun."""
    return [len(stage.journal.begun) for stage in stages]


async def registered(stage: FakeStage) -> None:
    """Until the registry knows this start of it."""

    async def is_known() -> bool:
        return stage.generation > 0

    await until(is_known)


async def fail_at(mesh: Mesh, stage: FakeStage) -> jobs_pb2.Job:
    """A job that has failed at this stage; the next one will not."""
    stage.fail = Reason.ENGINE_FAILED
    job = await mesh.local.create(seed=7)
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == FAILED
    stage.fail = ""
    return ended


async def test_latents_that_exist_are_decoded_and_not_sampled_again(mesh: Mesh) -> None:
    """The sampler is not called; the old job stays as it ended."""
    stages = await mesh.add_all()
    client = mesh.local
    failed = await fail_at(mesh, stages[2])
    resumed = await resume(client, failed.job_id)
    assert resumed.resumed_from == failed.job_id
    assert resumed.state == jobs_pb2.JOB_STATE_QUEUED
    assert resumed.stage == DECODER
    ended = await client.ended(resumed.job_id)
    assert ended.state == SUCCEEDED, ended
    assert ended.spec == failed.spec
    assert [one.stage for one in ended.attempts] == [DECODER]
    assert counts(*stages) == [1, 1, 2]
    assert await client.get(failed.job_id) == failed


async def test_conditioning_that_exists_is_not_encoded_again(mesh: Mesh) -> None:
    """The job begins with the sample."""
    stages = await mesh.add_all()
    failed = await fail_at(mesh, stages[1])
    resumed = await resume(mesh.local, failed.job_id)
    assert resumed.stage == SAMPLER
    assert (await mesh.local.ended(resumed.job_id)).state == SUCCEEDED
    assert counts(*stages) == [1, 2, 1]


async def test_a_resumed_job_that_fails_too_is_resumed_from_what_it_inherited(mesh: Mesh) -> None:
    """Through any number of jobs the latents are made once."""
    stages = await mesh.add_all()
    failed = await fail_at(mesh, stages[2])
    stages[2].fail = Reason.MUX_FAILED
    again = await mesh.local.ended((await resume(mesh.local, failed.job_id)).job_id)
    assert again.state == FAILED
    stages[2].fail = ""
    last = await mesh.local.ended((await resume(mesh.local, again.job_id)).job_id)
    assert last.state == SUCCEEDED
    assert last.resumed_from == again.job_id
    assert counts(*stages) == [1, 1, 3]


async def test_a_half_done_sample_goes_on_where_it_was(mesh: Mesh) -> None:
    """The new run names the last one that was begun there, through any number of jobs."""
    _, sampler, _ = await mesh.add_all()
    failed = await fail_at(mesh, sampler)
    (first,) = sampler.journal.begun
    sampler.fail = Reason.ENGINE_FAILED
    again = await mesh.local.ended((await resume(mesh.local, failed.job_id)).job_id)
    sampler.fail = ""
    second = sampler.journal.begun[-1]
    last = await mesh.local.ended((await resume(mesh.local, again.job_id)).job_id)
    assert last.state == SUCCEEDED
    third = sampler.journal.begun[-1]
    assert sampler.halves == {first: "", second: first, third: second}


async def test_an_automatic_resume_goes_on_too(mesh: Mesh) -> None:
    """Within one job."""
    _, sampler, _ = await mesh.add_all()
    sampler.fail, sampler.resumable = Reason.WORKER_DIED, True
    job = await mesh.local.create(seed=7, automatic_resumes=1)
    assert (await mesh.local.ended(job.job_id)).state == FAILED
    first, second = sampler.journal.begun
    assert sampler.halves == {first: "", second: first}


async def test_no_other_disk_is_asked_for_the_half(mesh: Mesh) -> None:
    """Another instance, or the same one with another disk, begins at zero."""
    _, sampler, _ = await mesh.add_all()
    failed = await fail_at(mesh, sampler)
    await sampler.crash()
    other = await mesh.replace(sampler, Journal())
    await registered(other)
    assert (
        await mesh.local.ended((await resume(mesh.local, failed.job_id)).job_id)
    ).state == SUCCEEDED
    assert set(other.halves.values()) == {""}


async def test_a_cancelled_job_of_which_nothing_is_kept_starts_from_the_beginning(
    mesh: Mesh,
) -> None:
    """That is what is missing: all of it."""
    stages = await mesh.add_all()
    await stages[0].hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(stages[0].journal.begun))
    await mesh.local.cancel(job.job_id)
    await mesh.local.ended(job.job_id)
    await stages[0].release()
    resumed = await resume(mesh.local, job.job_id)
    assert resumed.stage == stage_pb2.STAGE_ENCODE
    assert (await mesh.local.ended(resumed.job_id)).state == SUCCEEDED


async def test_what_cannot_be_resumed_is_refused_with_why(mesh: Mesh) -> None:
    """A job that succeeded, one that lives, and another owner's."""
    stages = await mesh.add_all()
    client = mesh.local
    done = await client.create()
    await client.ended(done.job_id)
    await stages[1].hold()
    alive = await client.create("a second boat")
    for job_id, words in ((done.job_id, "nothing to resume"), (alive.job_id, "has not ended")):
        with pytest.raises(MeshError) as refused:
            await resume(client, job_id)
        assert refused.value.reason is Reason.NOT_RESUMABLE
        assert words in refused.value.message
    stranger = await mesh.owner("stranger")
    for job_id in (done.job_id, "job_" + "0" * 32):
        with pytest.raises(MeshError) as refused:
            await resume(stranger, job_id)
        assert refused.value.reason is Reason.JOB_NOT_FOUND
    await stages[1].release()


async def test_a_job_whose_checkpoint_is_gone_is_not_resumed(mesh: Mesh) -> None:
    """Its latents would be decoded by another model."""
    stages = await mesh.add_all()
    failed = await fail_at(mesh, stages[2])
    await stages[2].crash()
    other = stages[2].reborn(mesh.home / "stages")
    other.digest = "e" * 64
    mesh.stages[2] = other
    await other.start(int(stages[2].endpoint.rpartition(":")[2]))

    async def registered() -> bool:
        return other.generation > 0

    await until(registered)
    with pytest.raises(MeshError) as refused:
        await resume(mesh.local, failed.job_id)
    assert refused.value.reason is Reason.NOT_RESUMABLE
    assert "checkpoint" in refused.value.message


async def test_a_repeated_resume_makes_one_job(mesh: Mesh) -> None:
    """With the same request id; another body is refused."""
    stages = await mesh.add_all()
    failed = await fail_at(mesh, stages[2])
    first = await resume(mesh.local, failed.job_id, "once")
    assert (await resume(mesh.local, failed.job_id, "once")).job_id == first.job_id
    with pytest.raises(MeshError) as refused:
        await resume(mesh.local, first.job_id, "once")
    assert refused.value.reason is Reason.REQUEST_ID_REUSED
    await mesh.local.ended(first.job_id)


async def test_a_job_resumes_by_itself_as_often_as_it_may(mesh: Mesh) -> None:
    """It stays RUNNING between its runs, and the failures are its attempts."""
    stages = await mesh.add_all()
    sampler = stages[1]
    sampler.fail, sampler.resumable = Reason.INTERRUPTED, True
    job = await mesh.local.create(automatic_resumes=2)
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == FAILED
    assert ended.resumes == 2
    assert ended.failure.reason == Reason.INTERRUPTED
    assert counts(*stages) == [1, 3, 0]
    request = jobs_pb2.WatchJobRequest(job_id=job.job_id, start_revision=1)
    told = await mesh.local.read_all(mesh.local.jobs.WatchJob, request)
    states = [one.job.state for one in told if one.job.attempts and not one.job.HasField("failure")]
    assert set(states) == {jobs_pb2.JOB_STATE_RUNNING}


async def test_a_job_that_resumed_by_itself_succeeds(mesh: Mesh) -> None:
    """After a stage that died under it came back on its journal."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    sampler.resumable = True
    job = await mesh.local.create(automatic_resumes=1)
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    for run in sampler.journal.runs.values():
        run.failure.resumable = True
    await mesh.replace(sampler)
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert ended.resumes == 1
    states = [one.state for one in ended.attempts if one.stage == SAMPLER]
    assert states == [stage_pb2.RUN_STATE_FAILED, stage_pb2.RUN_STATE_SUCCEEDED]


@pytest.mark.parametrize(("resumable", "allowed"), [(False, 3), (True, 0)])
async def test_a_failure_that_would_come_again_ends_the_job(
    mesh: Mesh, resumable: bool, allowed: int
) -> None:
    """And so does every failure of a job that asked for no resumes."""
    stages = await mesh.add_all()
    stages[1].fail, stages[1].resumable = Reason.OUT_OF_MEMORY, resumable
    job = await mesh.local.create(automatic_resumes=allowed)
    ended = await mesh.local.ended(job.job_id)
    assert (ended.state, ended.resumes) == (FAILED, 0)
    assert counts(*stages) == [1, 1, 0]


async def test_a_doubt_is_never_resumed_but_a_removed_host_is(mesh: Mesh) -> None:
    """While the instance may still work nothing is sent again; Remove settles it."""
    _, sampler, _ = await mesh.add_all()
    other = await mesh.add(SAMPLER, "sampler-1")
    other.refuse = True
    await sampler.hold()
    job = await mesh.local.create(automatic_resumes=1)
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    other.refuse = False
    await sampler.crash()
    await mesh.local.until(job.job_id, lambda one: one.state == VERIFYING)
    assert not other.journal.begun
    await remove(mesh, "sampler-0")
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert ended.resumes == 1
    assert counts(sampler, other) == [1, 1]


async def test_a_sampler_that_is_lost_after_sampling_loses_nothing(mesh: Mesh) -> None:
    """The registry has copied the latents, and the decoder is given the copy."""
    encoder = await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    sampler = await mesh.add(SAMPLER, "sampler-0")
    job = await mesh.local.create()
    waiting = await mesh.local.until(job.job_id, lambda one: one.stage == DECODER)
    await until(copied(mesh, waiting.attempts[-1].run_id))
    await sampler.crash()
    decoder = await mesh.add(DECODER, "decoder-0")
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == SUCCEEDED, ended
    assert counts(encoder, sampler, decoder) == [1, 1, 1]


async def test_a_copy_holds_no_slot_and_survives_a_restart_of_the_registry(mesh: Mesh) -> None:
    """What is to be copied follows from the rows; the sampler is free as soon as it is done."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    sampler = await mesh.add(SAMPLER, "sampler-0")
    await sampler.hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await mesh.registry.stop()
    await sampler.release()

    async def done() -> bool:
        states = [run.state for run in sampler.journal.runs.values()]
        return states == [stage_pb2.RUN_STATE_SUCCEEDED]

    await until(done)
    await mesh.resume()
    waiting = await mesh.local.until(job.job_id, lambda one: one.stage == DECODER)
    client = mesh.local
    found = await client.call(client.instances.ListInstances, instances_pb2.ListInstancesRequest())
    assert not any(one.run_ids for one in found.instances)
    await until(copied(mesh, waiting.attempts[-1].run_id))


@pytest.mark.parametrize("allowed", [0, 1])
async def test_latents_that_are_lost_are_sampled_again_from_their_conditioning(
    mesh: Mesh, allowed: int
) -> None:
    """Nobody waits for ever for what is nowhere: the job fails, or goes on by itself."""
    encoder = await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    sampler = await mesh.add(SAMPLER, "sampler-0")
    sampler.loses_output = True
    await sampler.hold()
    job = await mesh.local.create(automatic_resumes=allowed)
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.release()

    async def lost() -> bool:
        states = [run.state for run in sampler.journal.runs.values()]
        return states == [stage_pb2.RUN_STATE_SUCCEEDED]

    await until(lost)
    sampler.loses_output = False
    if allowed:
        await mesh.local.until(job.job_id, lambda one: one.resumes == 1)
        again = job
    else:
        ended = await mesh.local.ended(job.job_id)
        assert ended.state == FAILED
        assert ended.failure.reason == Reason.BUNDLE_NOT_FOUND
        assert ended.failure.resumable
        again = await resume(mesh.local, job.job_id)
        assert again.stage == SAMPLER
    decoder = await mesh.add(DECODER, "decoder-0")
    ended = await mesh.local.ended(again.job_id)
    assert ended.state == SUCCEEDED, ended
    assert counts(encoder, sampler, decoder) == [1, 2, 1]


async def test_a_copy_that_is_gone_is_not_counted_on(mesh: Mesh) -> None:
    """A registry finds it out at its start; with the sampler removed the job has nothing left."""
    await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0")
    sampler = await mesh.add(SAMPLER, "sampler-0")
    job = await mesh.local.create()
    waiting = await mesh.local.until(job.job_id, lambda one: one.stage == DECODER)
    await until(copied(mesh, waiting.attempts[-1].run_id))
    await sampler.crash()
    for file in (mesh.settings.artifact_folder / "copies").iterdir():
        file.unlink()
    await mesh.restart()
    await remove(mesh, "sampler-0")
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == FAILED
    assert ended.failure.reason == Reason.BUNDLE_NOT_FOUND


async def test_bundles_are_deleted_once_nobody_needs_them(
    tmp_path: Path, database_url: str
) -> None:
    """At the stages as soon as they are consumed or copied; latents after their time."""
    mesh = Mesh(tmp_path / "home", database_url=database_url, latents_retention_s=3.0)
    await mesh.start()
    try:
        stages = await mesh.add_all()
        copies = mesh.settings.artifact_folder / "copies"
        failed = await fail_at(mesh, stages[2])
        sampled = next(one for one in failed.attempts if one.stage == SAMPLER)
        await until(copied(mesh, sampled.run_id))
        resumed = await resume(mesh.local, failed.job_id)
        assert (await mesh.local.ended(resumed.job_id)).state == SUCCEEDED

        async def empty() -> bool:
            left = [
                run.output.bundle_id
                for stage in stages
                for run in stage.journal.runs.values()
                if stage.store.find(run.output.bundle_id)
            ]
            return not left and not list(copies.iterdir())

        await until(empty)
        with pytest.raises(MeshError) as refused:
            await resume(mesh.local, resumed.job_id)
        assert refused.value.reason is Reason.NOT_RESUMABLE
        late = await resume(mesh.local, failed.job_id)
        assert late.stage == stage_pb2.STAGE_ENCODE
        assert (await mesh.local.ended(late.job_id)).state == SUCCEEDED
    finally:
        await mesh.stop()


async def test_a_job_in_doubt_is_not_resumed(mesh: Mesh) -> None:
    """It was cancelled while its run may still be at work somewhere."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await sampler.crash()
    await mesh.local.until(job.job_id, lambda one: one.state == VERIFYING)
    cancelled = await mesh.local.cancel(job.job_id)
    assert cancelled.state == jobs_pb2.JOB_STATE_CANCELLED
    with pytest.raises(MeshError) as refused:
        await resume(mesh.local, job.job_id)
    assert refused.value.reason is Reason.NOT_RESUMABLE
    assert "doubt" in refused.value.message
    await remove(mesh, "sampler-0")
    await mesh.add(SAMPLER, "sampler-1")
    resumed = await resume(mesh.local, job.job_id)
    assert (await mesh.local.ended(resumed.job_id)).state == SUCCEEDED


async def test_a_resumed_job_is_charged_anew(mesh: Mesh) -> None:
    """It takes a unit of the quota like any other."""
    stages = await mesh.add_all()
    client = await mesh.owner("one of many")
    stages[2].fail = Reason.ENGINE_FAILED
    job = await client.create()
    await client.ended(job.job_id)
    await stages[2].hold()
    await stages[0].hold()
    made: list[Any] = []
    with pytest.raises(MeshError) as refused:
        for number in range(8):
            made.append(await client.create(f"boat {number}"))
    assert refused.value.code.name == "RESOURCE_EXHAUSTED"
    with pytest.raises(MeshError) as refused:
        await resume(client, job.job_id)
    assert refused.value.code.name == "RESOURCE_EXHAUSTED"
    for one in made:
        await client.cancel(one.job_id)
    await stages[0].release()
    await stages[2].release()
