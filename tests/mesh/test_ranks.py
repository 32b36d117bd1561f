"""A mesh whose sampler is two ranks: the same clip, and a mesh that outlives a rank."""

import time
from collections.abc import Iterator
from pathlib import Path

import av
import grpc
import psutil
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file

from reelmesh.v1 import jobs_pb2, stage_pb2, stage_pb2_grpc
from services.common.rpc.channel import calling
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from tests.mesh.harness import PORTS, THREADS, Mesh, finish, spec, start_mesh
from tests.reference import SIZE, generate

PROMPT, SEED, EVALUATIONS = "a red ball rolls over the sand", 7, 3
NOTICED_S, BACK_S = 5.0, 120.0
LONG = 362  # frames; the model was trained on at most 345


@pytest.fixture(scope="module")
def mesh(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh whose sampler divides the sequence between two ranks, and that admits longer clips."""
    home = tmp_path_factory.mktemp("ranks")
    wide = {"REELMESH_SAMPLER_ULYSSES": "2", "REELMESH_MAX_FRAMES": str(LONG)}
    started = start_mesh(home, tiny_checkpoint, **wide)
    yield started
    started.stop()


async def instance_of(mesh: Mesh) -> stage_pb2.Instance:
    """What the sampler publishes."""
    peer = mesh.peer("sampler")
    async with calling():
        answer = await stage_pb2_grpc.RunServiceStub(peer.channel).DescribeInstance(
            stage_pb2.DescribeInstanceRequest(), metadata=peer.metadata()
        )
    await peer.close()
    instance: stage_pb2.Instance = answer.instance
    return instance


async def latents_of(mesh: Mesh, job_id: str, folder: Path) -> dict[str, torch.Tensor]:
    """What the sampler made for a job."""
    peer = mesh.peer("sampler")
    async with calling():
        answer = await stage_pb2_grpc.RunServiceStub(peer.channel).ListRuns(
            stage_pb2.ListRunsRequest(page_size=50), metadata=peer.metadata()
        )
    (run,) = [run for run in answer.runs if run.job_id == job_id]
    store = BundleStore(folder)
    store.open()
    bundle = await pull(peer, run.output, store)
    await peer.close()
    tensors: dict[str, torch.Tensor] = load_file(store.path(bundle.bundle_id))
    return tensors


def wait_for_health(mesh: Mesh, state: int, limit_s: float) -> None:
    """Until the sampler's health is this."""
    limit = time.monotonic() + limit_s
    with grpc.insecure_channel(f"127.0.0.1:{mesh.port + PORTS['sampler']}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status != state:
            assert time.monotonic() < limit
            time.sleep(0.02)


def ranks_of(mesh: Mesh) -> list[psutil.Process]:
    """The rank processes, in their order."""
    children = mesh.process("sampler").children()
    return sorted(
        (child for child in children if "spawn_main" in " ".join(child.cmdline())),
        key=lambda child: child.pid,
    )


async def test_two_ranks_make_the_clip(mesh: Mesh, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Latents within 1e-6 of the magnitude of diffusers' own, and an MP4 that plays."""
    assert (await instance_of(mesh)).capabilities.layout == "tp1-ulysses2"
    async with mesh.client() as client:
        created = await client.create_job(spec(PROMPT, seed=SEED, evaluations=EVALUATIONS))
        job = await finish(client, created.job_id)
        assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
        ours = await latents_of(mesh, job.job_id, tmp_path / "store")
        await client.download(job.artifact_id, tmp_path / "clip.mp4")
    threads = torch.get_num_threads()
    try:
        whole = generate(tiny_checkpoint, PROMPT, SEED, EVALUATIONS, THREADS)
    finally:
        torch.set_num_threads(threads)
    for name in ("latents", "audio_latents"):
        difference = float((ours[name] - whole[name]).abs().max())
        assert difference <= 1e-6 * float(whole[name].abs().max()), name
    with av.open(str(tmp_path / "clip.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == SIZE["frames"]


async def test_clip_longer_than_trained_is_made_where_it_is_admitted(mesh: Mesh) -> None:
    """362 frames through all four services, and the job says that it is off distribution."""
    async with mesh.client() as client:
        asked = spec(evaluations=1)
        asked.frames = LONG
        ended = await finish(client, (await client.create_job(asked)).job_id)
        assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED, ended
        assert ended.spec.off_distribution
        path = mesh.home / "long.mp4"
        await client.download(ended.artifact_id, path)
    with av.open(str(path)) as video:
        assert sum(1 for _ in video.decode(video=0)) == LONG


async def test_mesh_outlives_a_rank(mesh: Mesh) -> None:
    """A rank's SIGKILL: NOT_SERVING in time, the run FAILED with its reason, the next job runs."""
    before = await instance_of(mesh)
    ranks = ranks_of(mesh)
    async with mesh.client() as client:
        job = await client.create_job(spec(evaluations=190))
        async for now in client.watch_job(job.job_id):
            if now.progress.phase == "evaluate" and now.progress.done >= 2:
                break
        ranks[1].kill()
        wait_for_health(mesh, health_pb2.HealthCheckResponse.NOT_SERVING, NOTICED_S)
        ended = await finish(client, job.job_id)
        assert ended.state == jobs_pb2.JOB_STATE_FAILED
        assert ended.failure.reason == "WORKER_DIED"
        assert "rank 1 was ended by SIGKILL" in ended.failure.message
        assert ended.failure.resumable
        assert not any(rank.is_running() for rank in ranks)
        wait_for_health(mesh, health_pb2.HealthCheckResponse.SERVING, BACK_S)
        after = await finish(client, (await client.create_job(spec())).job_id)
        assert after.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert (await instance_of(mesh)).generation == before.generation
