"""What cannot run is refused at the door, with its reason and field, before any slot is taken."""

import uuid
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from reelmesh.v1 import artifacts_pb2, artifacts_pb2_grpc, jobs_pb2, jobs_pb2_grpc, transfer_pb2
from services.cli.client import Client
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from tests.mesh.harness import Mesh, finish, spec
from tests.mesh.test_generate import runs_of

CASES: list[tuple[dict[str, Any], Reason, str]] = [
    ({"prompt": ""}, Reason.PROMPT_EMPTY, "spec.prompt"),
    ({"prompt": " \n\t "}, Reason.PROMPT_EMPTY, "spec.prompt"),
    ({"prompt": "a\0b"}, Reason.INVALID_FIELD, "spec.prompt"),
    ({"prompt": "kite " * 20000}, Reason.PROMPT_TOO_LONG, "spec.prompt"),
    ({"mode": 77}, Reason.UNSUPPORTED_MODE, "spec.mode"),
    ({"mode": transfer_pb2.MODE_REF2VA}, Reason.UNSUPPORTED_MODE, "spec.mode"),
    ({"frames": 0}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
    ({"frames": -5}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
    ({"frames": 107}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
    ({"frames": 346}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
    ({"frames": 2**31 - 1}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames"),
    ({"duration": Duration(seconds=2)}, Reason.FRAMES_OUT_OF_RANGE, "spec.duration"),
    ({"fps": 25.0}, Reason.FPS_UNSUPPORTED, "spec.fps"),
    ({"evaluations": 0}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations"),
    ({"evaluations": -1}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations"),
    ({"evaluations": 10**6}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations"),
    (
        {"canvas": jobs_pb2.Canvas(height=128, width=496 + 1)},
        Reason.CANVAS_OFF_GRID,
        "spec.canvas.width",
    ),
    (
        {"canvas": jobs_pb2.Canvas(height=130, width=128)},
        Reason.CANVAS_OFF_GRID,
        "spec.canvas.height",
    ),
    (
        {"canvas": jobs_pb2.Canvas(height=0, width=128)},
        Reason.CANVAS_OUT_OF_RANGE,
        "spec.canvas.height",
    ),
]


@pytest.mark.parametrize(("fields", "reason", "field"), CASES)
async def test_bad_job_is_refused_naming_its_field(
    mesh: Mesh, fields: dict[str, Any], reason: Reason, field: str
) -> None:
    """CreateJob and ValidateJob say the same, and no job is made."""
    wanted = jobs_pb2.JobSpec(**{"prompt": "a kite", **fields})
    peer = Peer(f"127.0.0.1:{mesh.port}", mesh.client()._peer._token)
    stub = jobs_pb2_grpc.JobServiceStub(peer.channel)
    errors = []
    for method, request in (
        (stub.CreateJob, jobs_pb2.CreateJobRequest(spec=wanted)),
        (stub.ValidateJob, jobs_pb2.ValidateJobRequest(spec=wanted)),
    ):
        with pytest.raises(MeshError) as caught:
            async with calling():
                await method(request, metadata=peer.metadata(), timeout=10)
        errors.append(caught.value)
    await peer.close()
    for error in errors:
        assert (error.reason, error.field) == (reason, field), error.message
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert errors[0].message == errors[1].message


async def test_bad_jobs_leave_a_valid_one_alone(mesh: Mesh) -> None:
    """Sent between bad ones, a valid job gives what it gives alone; the sampler saw only it."""
    before = len(await runs_of(mesh, "sampler"))
    async with mesh.client() as client:
        solo = await finish(client, (await client.create_job(spec(seed=11))).job_id)
        for fields, _, _ in CASES[:5]:
            with pytest.raises(MeshError):
                await client.create_job(jobs_pb2.JobSpec(**{"prompt": "a kite", **fields}))
        mixed = await finish(client, (await client.create_job(spec(seed=11))).job_id)
    assert len(await runs_of(mesh, "sampler")) == before + 2
    assert [a.output_sha256 for a in solo.attempts] == [a.output_sha256 for a in mixed.attempts]


async def test_text_is_kept_exactly(mesh: Mesh) -> None:
    """What people write in any script comes back as it was sent."""
    prompt = (
        "  \u00e9t\u00e9 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u202eabc\u202c\r\nline two\t"
    )
    async with mesh.client() as client:
        job = await client.create_job(spec(prompt))
        assert (await client.get_job(job.job_id)).spec.prompt == prompt
        await client.cancel_job(job.job_id)


async def test_frames_are_snapped_up_and_told(mesh: Mesh) -> None:
    """The answer says what was resolved: the next length on the grid, both counts of steps."""
    async with mesh.client() as client:
        wanted = spec(evaluations=1)
        wanted.frames = 125
        job = await client.create_job(wanted)
        assert job.spec.clip.frames == 141
        assert (job.spec.evaluations, job.spec.inference_steps) == (1, 2)
        await client.cancel_job(job.job_id)


@pytest.mark.parametrize("key", ["", "rmk_wrong", "x" * 5000])
async def test_missing_or_wrong_key_is_unauthenticated(mesh: Mesh, key: str) -> None:
    """Nothing is looked up for a caller without a valid key."""
    async with Client(f"127.0.0.1:{mesh.port}", key) as client:
        for call in (
            client.list_jobs(1),
            client.get_job("job_" + "0" * 32),
            client.create_job(spec()),
        ):
            with pytest.raises(MeshError) as caught:
                await call
            assert caught.value.reason is Reason.UNAUTHENTICATED


async def test_foreign_unknown_and_malformed_ids_get_one_answer(mesh: Mesh) -> None:
    """For every method that takes an id, byte for byte."""
    async with mesh.client() as client:
        job = await finish(client, (await client.create_job(spec())).job_id)
        other = await client.operator.create_owner(f"stranger-{uuid.uuid4().hex[:8]}")
        secret = (await client.operator.create_key(other.owner_id, "test")).secret
    peer = Peer(f"127.0.0.1:{mesh.port}", secret)
    jobs = jobs_pb2_grpc.JobServiceStub(peer.channel)
    artifacts = artifacts_pb2_grpc.ArtifactServiceStub(peer.channel)
    unknown_job, unknown_artifact = "job_" + "0" * 32, "art_" + "0" * 32

    async def answer(call: Any) -> tuple[object, ...]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
        error = caught.value
        return (error.code(), error.details(), tuple(error.trailing_metadata()))

    methods: list[tuple[Any, Any, str, str, str]] = [
        (jobs.GetJob, jobs_pb2.GetJobRequest, "job_id", job.job_id, unknown_job),
        (jobs.WatchJob, jobs_pb2.WatchJobRequest, "job_id", job.job_id, unknown_job),
        (jobs.CancelJob, jobs_pb2.CancelJobRequest, "job_id", job.job_id, unknown_job),
        (
            artifacts.GetArtifact,
            artifacts_pb2.GetArtifactRequest,
            "artifact_id",
            job.artifact_id,
            unknown_artifact,
        ),
        (
            artifacts.Download,
            artifacts_pb2.DownloadRequest,
            "artifact_id",
            job.artifact_id,
            unknown_artifact,
        ),
    ]
    for method, make, field, foreign, unknown in methods:
        answers = {
            await answer(method(make(**{field: text}), metadata=peer.metadata(), timeout=5))
            for text in (foreign, unknown, "../../etc/passwd", "")
        }
        assert len(answers) == 1, answers
    await peer.close()
