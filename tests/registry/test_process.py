"""The registry as a process: kill -9 at any moment, clean stops, one file for one registry."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.tokens import load_tokens
from tests.registry.mesh import Client, settings_of, until
from tests.registry.stages import ENDED, FakeStage, Journal

QUICK = {
    "REELMESH_REGISTRY_HEARTBEAT_S": "0.2",
    "REELMESH_REGISTRY_LEASE_S": "5",
    "REELMESH_REGISTRY_CALL_TIMEOUT_S": "2",
    "REELMESH_REGISTRY_ASK_INTERVAL_S": "0.5",
    "REELMESH_REGISTRY_REFUSAL_BACKOFF_S": "0.1",
}


class Process:
    """`python -m services.registry` on one home; the same ports at every start."""

    def __init__(self, home: Path, database_url: str = "", artifacts: Path | None = None) -> None:
        self.home = home
        self.artifacts = artifacts or home / "registry" / "artifacts"
        self.database_url = database_url
        self.clients = self.mesh = "127.0.0.1:0"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it says that it serves."""
        environment = {
            **os.environ,
            **QUICK,
            "REELMESH_HOME": str(self.home),
            "REELMESH_REGISTRY_DATABASE_URL": self.database_url,
            "REELMESH_REGISTRY_REPLICA": str(self.home),
            "REELMESH_REGISTRY_ARTIFACTS": str(self.artifacts),
            "REELMESH_REGISTRY_CLIENT_LISTEN": self.clients,
            "REELMESH_REGISTRY_MESH_LISTEN": self.mesh,
            "TZ": "Asia/Tokyo",
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.registry",
            env=environment,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            async for line in self.process.stderr:
                words = json.loads(line) if line.startswith(b"{") else {}
                if words.get("event") == "serving":
                    self.clients, self.mesh = words["clients"], words["mesh"]
                    break
        self.log = asyncio.create_task(self._read())

    async def _read(self) -> bytes:
        assert self.process is not None
        assert self.process.stderr is not None
        return await self.process.stderr.read()

    async def stop(self, number: signal.Signals) -> int:
        """Send a signal; the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(20):
            code = await self.process.wait()
            self.last_words = await self.log
        return code

    def client(self) -> Client:
        """The local owner."""
        known = json.loads((self.home / "client.json").read_text())
        assert known["address"] == self.clients
        return Client(self.clients, known["key"], known["owner_id"])


@pytest.fixture
async def process(tmp_path: Path, database_url: str) -> AsyncIterator[Process]:
    """A registry process, on each of the databases."""
    process = Process(tmp_path / "home", database_url)
    await process.start()
    yield process
    await process.stop(signal.SIGKILL)


@pytest.fixture
async def on_a_file(tmp_path: Path) -> AsyncIterator[Process]:
    """A registry process on a SQLite file."""
    process = Process(tmp_path / "home")
    await process.start()
    yield process
    await process.stop(signal.SIGKILL)


@pytest.fixture
async def stages(process: Process) -> AsyncIterator[list[FakeStage]]:
    """An encoder, a sampler and a decoder that outlive the registry."""
    tokens = load_tokens(settings_of(process.home).tokens_path)
    diary: list[tuple[str, str, str]] = []
    fakes = [
        FakeStage(stage, name, process.home / "stages", tokens, process.mesh, Journal(diary=diary))
        for stage, name in (
            (stage_pb2.STAGE_ENCODE, "encoder-0"),
            (stage_pb2.STAGE_SAMPLE, "sampler-0"),
            (stage_pb2.STAGE_DECODE, "decoder-0"),
        )
    ]
    for fake in fakes:
        await fake.start()

    async def registered() -> bool:
        return all(fake.generation for fake in fakes)

    await until(registered)
    yield fakes
    for fake in fakes:
        await fake.crash()


Moment = Callable[[list[FakeStage]], bool]
MOMENTS: dict[str, tuple[int, Moment]] = {
    "while the encoder works": (0, lambda fakes: bool(fakes[0].journal.begun)),
    "while the sampler works": (1, lambda fakes: bool(fakes[1].journal.begun)),
    "while the decoder works": (2, lambda fakes: bool(fakes[2].journal.begun)),
    "as soon as the job is made": (0, lambda fakes: True),
}


@pytest.mark.parametrize(
    ("moment", "finish_while_away"),
    [
        ("as soon as the job is made", False),
        ("while the encoder works", False),
        ("while the sampler works", False),
        ("while the sampler works", True),
        ("while the decoder works", True),
    ],
)
async def test_a_killed_registry_loses_no_job_and_starts_nothing_twice(
    process: Process, stages: list[FakeStage], moment: str, finish_while_away: bool
) -> None:
    """The stage works on, or ends, while it is away; after the restart the job completes."""
    index, come = MOMENTS[moment]
    await stages[index].hold()
    job = await process.client().create()

    async def has_come() -> bool:
        return come(stages)

    await until(has_come)
    await process.stop(signal.SIGKILL)
    if finish_while_away:
        await stages[index].release()

        async def ended() -> bool:
            return all(run.state in ENDED for run in stages[index].journal.runs.values())

        await until(ended)
    await process.start()
    await stages[index].release()
    done = await process.client().ended(job.job_id)
    assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
    for stage in stages:
        assert len(stage.journal.begun) == 1
    file = process.home / "registry" / "artifacts" / f"{done.artifact_id}.mp4"
    assert stages[2].journal.begun[0].encode() in file.read_bytes()


async def test_kills_at_random_moments_lose_nothing(
    process: Process, stages: list[FakeStage]
) -> None:
    """Six jobs, kill after kill, while everything works."""
    for stage in stages:
        stage.step_s = 0.05
    client = process.client()
    jobs = [(await client.create(f"boat {number}")).job_id for number in range(6)]
    for lived_s in (0.05, 0.35, 0.2, 0.5):
        began = time.monotonic()

        async def lived(began: float = began, lived_s: float = lived_s) -> bool:
            return time.monotonic() - began > lived_s

        await until(lived)
        await process.stop(signal.SIGKILL)
        await process.start()
    for job_id in jobs:
        done = await process.client().ended(job_id, 30)
        assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
    for stage in stages:
        begun = list(stage.journal.begun)
        assert len(set(begun)) == len(begun)
        of_jobs = [stage.journal.runs[run_id].job_id for run_id in begun]
        assert sorted(of_jobs) == sorted(jobs)
    files = list((process.home / "registry" / "artifacts").glob("*.mp4"))
    assert len(files) == 6


async def test_a_file_that_no_row_names_is_removed_at_the_start(on_a_file: Process) -> None:
    """A crash between file and transaction leaves one; where others publish too, not at once."""
    await on_a_file.stop(signal.SIGKILL)
    stray = on_a_file.home / "registry" / "artifacts" / ("art_" + "0" * 32 + ".mp4")
    stray.write_bytes(b"x")
    await on_a_file.start()
    assert not stray.exists()


async def test_sigterm_ends_it_cleanly(process: Process) -> None:
    """Exit code 0, and no key in the log."""
    key = process.client().key
    assert await process.stop(signal.SIGTERM) == 0
    assert b"stopped" in process.last_words
    assert key.encode() not in process.last_words


async def test_a_second_registry_on_the_same_file_is_refused(on_a_file: Process) -> None:
    """With a message that names the file and what to do."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.registry",
        env={**os.environ, "REELMESH_HOME": str(on_a_file.home)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await child.communicate()
    assert child.returncode == 2
    assert b"another registry is running on" in words
    assert b"registry.db" in words


async def test_migrating_needs_the_file_to_itself(on_a_file: Process) -> None:
    """It is refused while a registry runs on it."""

    async def run(*arguments: str) -> tuple[int | None, bytes]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.registry",
            *arguments,
            env={**os.environ, "REELMESH_HOME": str(on_a_file.home)},
            stderr=asyncio.subprocess.PIPE,
        )
        _, words = await child.communicate()
        return child.returncode, words

    code, words = await run("migrate")
    assert code == 2
    assert b"another registry is running on" in words
    await on_a_file.stop(signal.SIGTERM)
    code, words = await run("migrate")
    assert code == 0
    assert b"migrated" in words


async def test_it_starts_within_three_seconds_and_without_torch(tmp_path: Path) -> None:
    """Nothing that is heavy is imported."""
    code = (
        "import sys, services.registry.__main__\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'av'} & set(sys.modules)\n"
        "sys.exit(1 if heavy else 0)"
    )
    check = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await check.wait() == 0
    process = Process(tmp_path / "home")
    began = time.monotonic()
    await process.start()
    took_s = time.monotonic() - began
    await process.stop(signal.SIGKILL)
    assert took_s < 3.0, took_s
