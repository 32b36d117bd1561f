"""The main job through four processes: a prompt goes in, the right video comes out."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from reelmesh.v1 import jobs_pb2, stage_pb2, stage_pb2_grpc, transfer_pb2
from services.cli.client import Client
from services.common.rpc.channel import Peer, calling
from services.common.rpc.identity import Role
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from services.common.work import Watch
from services.decoder.mux import AAC_FRAME_SAMPLES, SAMPLE_RATE_HZ, Picture, write_mp4
from tests.mesh.harness import THREADS, Mesh, finish, spec, wait_for
from tests.reference import SIZE, generate

PROMPT = "a red ball rolls slowly over the sand, waves and wind"
SEED, EVALUATIONS = 7, 3


def reelmesh(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command, run as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *words, "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


async def runs_of(mesh: Mesh, service: str) -> dict[str, stage_pb2.Run]:
    """A stage's runs by their jobs."""
    peer = mesh.peer(service)
    async with calling():
        answer = await stage_pb2_grpc.RunServiceStub(peer.channel).ListRuns(
            stage_pb2.ListRunsRequest(page_size=200), metadata=peer.metadata()
        )
    await peer.close()
    return {run.job_id: run for run in answer.runs}


async def copy_of_latents(mesh: Mesh, job_id: str) -> transfer_pb2.BundleRef | None:
    """The registry's copy of a job's latents, once it is there."""
    with closing(sqlite3.connect(mesh.home / "registry" / "registry.db")) as database:
        query = "SELECT copy_bundle_id, copy_token FROM run WHERE job_id = ? AND stage = 'SAMPLE'"
        bundle_id, token = database.execute(query, (job_id,)).fetchone()
    return transfer_pb2.BundleRef(bundle_id=bundle_id, read_token=token) if bundle_id else None


def decoded(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """All frames of an MP4, RGB."""
    with av.open(str(path)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])


@pytest.fixture(scope="module")
def generated(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A video made by the command, and what it said."""
    path = tmp_path_factory.mktemp("generated") / "clip.mp4"
    done = reelmesh(
        "generate", PROMPT, "-o", str(path), "--seed", str(SEED),
        "--evaluations", str(EVALUATIONS), home=mesh.home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(path)
    return path, done.stderr


def test_command_shows_what_is_measured(generated: tuple[Path, str]) -> None:
    """What was resolved comes first, then every stage and each evaluation of how many."""
    _, said = generated
    assert "128x128, 124 frames (5.17 s), seed 7, 3 evaluations" in said
    assert f"evaluate {EVALUATIONS} of {EVALUATIONS}" in said or "evaluate 2 of 3" in said


def test_video_is_what_was_asked_for(generated: tuple[Path, str]) -> None:
    """H.264 yuv420p at 24 fps with exactly the frames, AAC stereo at 32 kHz just as long."""
    path, _ = generated
    with av.open(str(path)) as video:
        picture, sound = video.streams.video[0], video.streams.audio[0]
        assert (picture.codec_context.name, picture.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert picture.average_rate == 24
        assert (picture.width, picture.height) == (SIZE["width"], SIZE["height"])
        assert (sound.codec_context.name, sound.rate, sound.channels) == ("aac", 32000, 2)
        frames = sum(1 for _ in video.decode(video=0))
    assert frames == SIZE["frames"]
    with av.open(str(path)) as video:
        samples = sum(frame.samples for frame in video.decode(audio=0))
    assert abs(samples - round(frames * SAMPLE_RATE_HZ / 24)) <= AAC_FRAME_SAMPLES


async def test_mesh_gives_what_diffusers_gives(
    mesh: Mesh, generated: tuple[Path, str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Latents through four processes are bit-equal to one process; so are the frames."""
    async with mesh.client() as client:
        job = next(job for job in await client.list_jobs(50) if job.spec.prompt == PROMPT)
    # The sampler's own bundle is gone once the registry has its copy; that is what a decode would
    # be given if the sampler were lost.
    ref = await wait_for(lambda: copy_of_latents(mesh, job.job_id), "the latents to be copied")
    store = BundleStore(tmp_path / "store")
    store.open()
    peer = Peer(f"127.0.0.1:{mesh.port + 1}", mesh.tokens.of(Role.STAGE))
    bundle = await pull(peer, ref, store)
    await peer.close()
    latents = load_file(store.path(bundle.bundle_id))
    threads = torch.get_num_threads()
    try:
        whole = generate(tiny_checkpoint, PROMPT, SEED, EVALUATIONS, THREADS)
    finally:
        torch.set_num_threads(threads)
    for name in ("latents", "audio_latents"):
        assert torch.equal(latents[name], whole[name]), name

    images = np.stack([np.asarray(image) for image in whole["videos"][0]])
    picture = Picture(SIZE["frames"], SIZE["height"], SIZE["width"])
    silence = np.zeros((2, picture.samples), np.float32)
    write_mp4(tmp_path / "reference.mp4", picture, iter(images), silence, Watch())
    # H.264 is lossy but the same for the same frames: equal after it means equal before it.
    assert np.array_equal(decoded(generated[0]), decoded(tmp_path / "reference.mp4"))


async def test_job_tells_what_every_stage_took(mesh: Mesh, generated: tuple[Path, str]) -> None:
    """The measured phases of all three stages are in the job, with the outputs' digests."""
    async with mesh.client() as client:
        job = next(job for job in await client.list_jobs(50) if job.spec.prompt == PROMPT)
    phases = [{timing.phase for timing in attempt.timings} for attempt in job.attempts]
    assert {"encode_text", "commit"} <= phases[0]
    assert {"pull", "evaluate", "commit"} <= phases[1]
    assert {"pull", "decode_video", "decode_audio", "mux", "verify", "upload"} <= phases[2]
    assert all(len(attempt.output_sha256) == 32 for attempt in job.attempts)


async def test_sampling_overlaps_the_previous_decoding(mesh: Mesh) -> None:
    """The second job's sampling starts before the first one's decoding ends."""
    async with mesh.client() as client:
        made = [await client.create_job(spec(seed=seed, evaluations=8)) for seed in (1, 2)]
        ended = [await finish(client, job.job_id) for job in made]
    assert [job.state for job in ended] == [jobs_pb2.JOB_STATE_SUCCEEDED] * 2
    samplings, decodings = await runs_of(mesh, "sampler"), await runs_of(mesh, "decoder")
    first, second = (job.job_id for job in made)
    second_sampling = samplings[second].start_time.ToDatetime()
    assert second_sampling >= samplings[first].end_time.ToDatetime()
    assert second_sampling < decodings[first].end_time.ToDatetime()


async def test_artifact_is_its_owners_alone(mesh: Mesh) -> None:
    """Another owner, with a valid key, gets byte for byte what an unknown id gets."""
    async with mesh.client() as client:
        job = await client.create_job(spec())
        job = await finish(client, job.job_id)
        other = await client.operator.create_owner(f"other-{job.job_id[-6:]}")
        secret = (await client.operator.create_key(other.owner_id, "test")).secret
    async with Client(f"127.0.0.1:{mesh.port}", secret) as stranger:
        answers = set()
        for artifact_id in (job.artifact_id, "art_" + "0" * 32):
            try:
                await stranger.get_artifact(artifact_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
                answers.add(repr(error) + str(getattr(error, "info", "")))
        assert len(answers) == 1
        assert list(await stranger.list_jobs(10)) == []


async def test_logs_name_job_and_run_in_every_process_and_no_secret(
    mesh: Mesh, generated: tuple[Path, str]
) -> None:
    """One job can be followed through all logs by its id; no key or token is in any of them."""
    async with mesh.client() as client:
        job = next(job for job in await client.list_jobs(50) if job.spec.prompt == PROMPT)
    logs = {name: mesh.log(name) for name in ("registry", "encoder", "sampler", "decoder")}
    for name, text in logs.items():
        assert job.job_id in text, name
    for name, run in (("encoder", 0), ("sampler", 1), ("decoder", 2)):
        lines = [line for line in logs[name].splitlines() if job.attempts[run].run_id in line]
        assert any("run_started" in line for line in lines)
        assert all(job.job_id in line for line in lines if '"run_' in line and "Start" in line)
    for secret in ("rmk_", "rmt_", "rmb_", "rml_"):
        assert not any(secret in text for text in logs.values())


async def test_cancel_stops_within_one_evaluation(mesh: Mesh) -> None:
    """A cancelled job ends CANCELLED, no artifact is made, and the next job starts at once."""
    async with mesh.client() as client:
        job = await client.create_job(spec(evaluations=60))
        async for now in client.watch_job(job.job_id):
            if now.progress.phase == "evaluate" and now.progress.done >= 2:
                break
        done = now.progress.done
        await client.cancel_job(job.job_id)
        ended = await finish(client, job.job_id)
        assert ended.state == jobs_pb2.JOB_STATE_CANCELLED
        assert not ended.artifact_id
        run = (await runs_of(mesh, "sampler"))[job.job_id]
        assert run.state == stage_pb2.RUN_STATE_CANCELLED
        assert run.progress.done < 60 and done < 60
        after = await finish(client, (await client.create_job(spec())).job_id)
        assert after.state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_stage_reports_every_evaluation_as_it_happens(mesh: Mesh) -> None:
    """A watch of the job sees the evaluations count up to all of them."""
    async with mesh.client() as client:
        job = await client.create_job(spec(evaluations=6))
        seen = []
        async for now in client.watch_job(job.job_id):
            if now.progress.phase == "evaluate" and now.progress.done not in seen:
                seen.append(now.progress.done)
    assert seen == sorted(seen)
    assert len(seen) >= 3
