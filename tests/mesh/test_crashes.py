"""kill -9 of every process: no job is lost, none runs twice, each ends or says what was."""

import asyncio
import json
import signal

import psutil
import pytest

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.errors import Reason
from tests.mesh.harness import Mesh, finish, spec, wait_for
from tests.mesh.test_generate import runs_of

STAGES = ("encoder", "sampler", "decoder")


async def assert_each_stage_ran_once(mesh: Mesh, job: jobs_pb2.Job) -> None:
    """Every stage's own journal holds one accepted run for the job."""
    for service in STAGES:
        lines = (mesh.home / f"{service}-1" / "journal.jsonl").read_text().splitlines()
        runs = {
            record["run_id"]
            for record in map(json.loads, lines[1:])
            if record["run"].get("jobId") == job.job_id
            and record["run"]["state"] != "RUN_STATE_REFUSED"
        }
        assert len(runs) == 1, (service, runs)


async def test_stage_killed_between_runs_loses_nothing(own_mesh: Mesh) -> None:
    """Encoder and decoder die while idle; `up` starts them again and the next job succeeds."""
    async with own_mesh.client() as client:
        first = await finish(client, (await client.create_job(spec())).job_id)
        assert first.state == jobs_pb2.JOB_STATE_SUCCEEDED
        killed = {service: own_mesh.kill(service) for service in ("encoder", "decoder")}
        for service, pid in killed.items():
            own_mesh.wait_for_restart(service, pid)

        async def accepted() -> jobs_pb2.Job | None:
            try:
                return await client.create_job(spec(seed=8))
            except Exception as error:  # noqa: BLE001 - checked on the next line
                assert getattr(error, "reason", None) == Reason.NO_ENCODER
                return None

        job = await wait_for(accepted, "the encoder to be registered again")
        second = await finish(client, job.job_id)
        assert second.state == jobs_pb2.JOB_STATE_SUCCEEDED, second
        await assert_each_stage_ran_once(own_mesh, second)
        again = await client.get_artifact(first.artifact_id)
        assert again.size_bytes > 0


@pytest.mark.parametrize("service", ["sampler", "decoder"])
async def test_stage_killed_in_a_run_fails_it_as_interrupted(own_mesh: Mesh, service: str) -> None:
    """The job says INTERRUPTED: no hang, and no silent second run."""
    stage = {"sampler": stage_pb2.STAGE_SAMPLE, "decoder": stage_pb2.STAGE_DECODE}[service]
    phases = {"sampler": ("evaluate",), "decoder": ("decode_audio", "decode_video", "mux")}
    async with own_mesh.client() as client:
        job = await client.create_job(spec(evaluations=40 if service == "sampler" else 2))
        async for now in client.watch_job(job.job_id):
            if now.stage == stage and now.progress.phase in phases[service]:
                break
        ranks = own_mesh.process(service).children(recursive=True)
        pid = own_mesh.kill(service)
        async with asyncio.timeout(60):
            ended = await finish(client, job.job_id)
        assert ended.state == jobs_pb2.JOB_STATE_FAILED
        assert ended.failure.reason == Reason.INTERRUPTED
        assert ended.failure.stage == stage
        assert psutil.wait_procs(ranks, timeout=20)[1] == []
        own_mesh.wait_for_restart(service, pid)
        after = await finish(client, (await client.create_job(spec(seed=9))).job_id)
        assert after.state == jobs_pb2.JOB_STATE_SUCCEEDED
        assert await client.get_job(job.job_id) == ended


async def test_killed_sample_goes_on_where_it_was(own_mesh: Mesh) -> None:
    """Resumed after kill -9: the evaluations up to the last snapshot are not done again, and the
    latents are those of a run that nobody killed."""
    evaluations, every = 40, 5
    async with own_mesh.client() as client:
        job = await client.create_job(spec(evaluations=evaluations))
        async for now in client.watch_job(job.job_id):
            if now.progress.phase == "evaluate" and now.progress.done > 2 * every:
                break
        pid = own_mesh.kill("sampler")
        failed = await finish(client, job.job_id)
        assert failed.failure.reason == Reason.INTERRUPTED and failed.failure.resumable
        own_mesh.wait_for_restart("sampler", pid)
        resumed = await client.resume_job(job.job_id)
        begun = [
            seen.progress.done
            async for seen in client.watch_job(resumed.job_id)
            if seen.stage == stage_pb2.STAGE_SAMPLE and seen.progress.phase == "evaluate"
        ]
        assert min(begun) >= 2 * every
        went_on = await client.get_job(resumed.job_id)
        assert went_on.state == jobs_pb2.JOB_STATE_SUCCEEDED, went_on
        sample, _ = went_on.attempts
        assert "resume" in {time.phase for time in sample.timings}
        whole = await finish(
            client, (await client.create_job(spec(evaluations=evaluations))).job_id
        )
        assert whole.attempts[1].output_sha256 == sample.output_sha256


async def test_registry_killed_at_any_time_loses_no_job(own_mesh: Mesh) -> None:
    """Killed at every stage of a job, the registry picks the job up where its stage is."""
    async with own_mesh.client() as client:
        for seed, (stage, evaluations) in enumerate(
            (
                (stage_pb2.STAGE_ENCODE, 2),
                (stage_pb2.STAGE_SAMPLE, 30),
                (stage_pb2.STAGE_DECODE, 2),
            )
        ):
            job = await client.create_job(spec(seed=seed, evaluations=evaluations))
            async for now in client.watch_job(job.job_id):
                if now.stage >= stage and now.state == jobs_pb2.JOB_STATE_RUNNING:
                    break
            pid = own_mesh.kill("registry")
            own_mesh.wait_for_restart("registry", pid)
            async with asyncio.timeout(90):
                ended = await finish(client, job.job_id)
            assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED, ended
            assert [attempt.state for attempt in ended.attempts] == [
                stage_pb2.RUN_STATE_SUCCEEDED
            ] * 3
            await assert_each_stage_ran_once(own_mesh, ended)
            assert (await client.get_artifact(ended.artifact_id)).size_bytes > 0


async def test_everything_survives_a_restart_of_every_process(own_mesh: Mesh) -> None:
    """All four killed at once while one job is queued behind another: both come to an end."""
    async with own_mesh.client() as client:
        jobs = [await client.create_job(spec(seed=seed, evaluations=30)) for seed in (1, 2)]
        async for now in client.watch_job(jobs[0].job_id):
            if now.progress.phase == "evaluate":
                break
        killed = {service: own_mesh.kill(service) for service in ("registry", *STAGES)}
        for service, pid in killed.items():
            own_mesh.wait_for_restart(service, pid)
        async with asyncio.timeout(120):
            ended = [await finish(client, job.job_id) for job in jobs]
    assert ended[0].state == jobs_pb2.JOB_STATE_FAILED
    assert ended[0].failure.reason == Reason.INTERRUPTED
    assert ended[1].state == jobs_pb2.JOB_STATE_SUCCEEDED or (
        ended[1].failure.reason == Reason.INTERRUPTED
    )
    runs = await runs_of(own_mesh, "sampler")
    assert runs[jobs[0].job_id].state == stage_pb2.RUN_STATE_FAILED


async def test_stopped_stage_is_unknown_and_comes_back(own_mesh: Mesh) -> None:
    """A paused sampler's job is VERIFYING, never failed nor sent again; it ends after SIGCONT."""
    async with own_mesh.client() as client:
        job = await client.create_job(spec(evaluations=20))
        async for now in client.watch_job(job.job_id):
            if now.progress.phase == "evaluate":
                break
        paused = own_mesh.process("sampler")
        paused.send_signal(signal.SIGSTOP)
        try:

            async def verifying() -> bool:
                now = await client.get_job(job.job_id)
                return now.state == jobs_pb2.JOB_STATE_VERIFYING

            await wait_for(verifying, "the lease to expire")
        finally:
            paused.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            ended = await finish(client, job.job_id)
        assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED, ended
        await assert_each_stage_ran_once(own_mesh, ended)


async def test_up_stops_all_on_ctrl_c_and_when_it_is_killed(own_mesh: Mesh) -> None:
    """Neither way leaves a process behind."""
    children = psutil.Process(own_mesh.up.pid).children(recursive=True)
    assert len(children) >= 5
    own_mesh.up.send_signal(signal.SIGKILL)
    own_mesh.up.wait(10)
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    assert len(gone) == len(children)
