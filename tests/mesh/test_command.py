"""The command as a person meets it: help, exit codes, Ctrl-C, and nothing lost."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.cli import display, exits, options, up
from services.cli.access import find_access
from services.cli.client import Client
from services.cli.commands import services
from services.cli.up import SERVICES
from tests.mesh.harness import Mesh, finish, spec, wait_for
from tests.mesh.test_generate import reelmesh
from tools.demo import free_port, wait_until_serving

COMMANDS = (
    "up", "serve", "migrate", "generate", "jobs", "show", "watch", "cancel", "download", "resume",
    "receipt", "instances", "drain", "remove", "resolve", "owners", "quota", "keys create",
    "keys list", "keys revoke",
)  # fmt: skip


def test_every_command_has_help_with_an_example() -> None:
    """A reader of --help can act on it."""
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "services.cli", *command.split(), "--help"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "Example: " in done.stdout, command


def test_key_file_is_private(mesh: Mesh) -> None:
    """The key that `up` makes is readable by its user only."""
    for name in ("client.json", "mesh-tokens.json"):
        assert (mesh.home / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "job_" + "0" * 32], exits.NOT_FOUND, "JOB_NOT_FOUND"),
        (["cancel", "nonsense"], exits.NOT_FOUND, "JOB_NOT_FOUND"),
        (["generate", "", "-o", "x.mp4"], exits.REFUSED, "spec.prompt"),
        (["generate", "a kite", "-o", "x.mp4", "--frames", "7"], exits.REFUSED, "124"),
        (["generate", "a kite", "-o", "x.mp4", "--canvas", "wide"], exits.USAGE, "WIDTHxHEIGHT"),
        (["generate", "a kite", "-o", "x.mp4", "--canvas", "128x100"], exits.REFUSED, "height"),
        (["generate", "a kite", "-o", "x.mp4", "--seed", "-1"], exits.USAGE, "cannot be sent"),
        (
            ["generate", "a kite", "-o", "x.mp4", "--canvas", "420x100"],
            exits.REFUSED,
            "the nearest canvas is 384x96 (width x height)",
        ),
        (["generate", "a \udcd8", "-o", "x.mp4"], exits.USAGE, "cannot be sent"),
        (["generate", "a kite", "-o", "no/such/x.mp4"], exits.USAGE, "does not exist"),
        (["serve", "toaster"], exits.USAGE, "registry, encoder"),
    ],
)
def test_mistakes_are_told_with_a_code(mesh: Mesh, words: list[str], code: int, says: str) -> None:
    """Each kind of mistake has its exit code and says what to do; nothing is a traceback."""
    home = [] if words[0] == "serve" else ["--home", str(mesh.home)]
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *words, *home],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_no_key_and_no_mesh_are_told_apart(mesh: Mesh, tmp_path: Path) -> None:
    """Without a key file: 4. With one, but nobody there: 6."""
    done = reelmesh("jobs", home=tmp_path)
    assert (done.returncode, "reelmesh up" in done.stderr) == (exits.NO_KEY, True)
    key = json.loads((mesh.home / "client.json").read_text())
    (tmp_path / "client.json").write_text(json.dumps({**key, "address": "127.0.0.1:1"}))
    assert reelmesh("jobs", home=tmp_path).returncode == exits.AWAY
    (tmp_path / "client.json").write_text(json.dumps({**key, "key": "rmk_wrong"}))
    assert reelmesh("jobs", home=tmp_path).returncode == exits.NO_KEY
    (tmp_path / "client.json").write_text("nonsense")
    assert reelmesh("jobs", home=tmp_path).returncode == exits.NO_KEY


def test_existing_file_is_kept_unless_forced(mesh: Mesh, tmp_path: Path) -> None:
    """Nobody's file is overwritten by accident, and no job is made for nothing."""
    (tmp_path / "mine.mp4").write_text("mine")
    before = len(reelmesh("jobs", "-n", "500", home=mesh.home).stdout.splitlines())
    done = reelmesh("generate", "a kite", "-o", str(tmp_path / "mine.mp4"), home=mesh.home)
    assert (done.returncode, "--force" in done.stderr) == (exits.USAGE, True)
    assert (tmp_path / "mine.mp4").read_text() == "mine"
    assert len(reelmesh("jobs", "-n", "500", home=mesh.home).stdout.splitlines()) == before


def test_job_can_be_left_watched_shown_and_downloaded(mesh: Mesh, tmp_path: Path) -> None:
    """--detach prints the id alone; every other command takes it from there."""
    made = reelmesh(
        "generate", "a kite", "-o", str(tmp_path / "unused.mp4"), "--evaluations", "2", "--detach",
        home=mesh.home,
    )  # fmt: skip
    job_id = made.stdout.strip()
    assert re.fullmatch(r"job_[0-9a-f]{32}", job_id)
    assert reelmesh("watch", job_id, home=mesh.home).returncode == exits.OK
    assert job_id in reelmesh("jobs", home=mesh.home).stdout
    shown = json.loads(reelmesh("show", job_id, "--json", home=mesh.home).stdout)
    assert shown["state"] == "JOB_STATE_SUCCEEDED"
    assert "SUCCEEDED on sampler-1" in reelmesh("show", job_id, home=mesh.home).stdout
    target = tmp_path / "clip.mp4"
    assert reelmesh("download", job_id, "-o", str(target), home=mesh.home).returncode == exits.OK
    assert target.stat().st_size > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4"]
    listed = reelmesh("instances", home=mesh.home).stdout
    assert all(f"{name}-1" in listed for name in SERVICES if name != "registry")


async def test_ctrl_c_leaves_the_job_running(mesh: Mesh, tmp_path: Path) -> None:
    """Without a terminal to ask, Ctrl-C never throws work away: the job goes on and succeeds."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "services.cli", "generate", "left alone", "--evaluations", "20",
            "-o", str(tmp_path / "x.mp4"), "--home", str(mesh.home),
        ],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "evaluate" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(20) == exits.INTERRUPTED
    job_id = re.findall(r"reelmesh watch (job_\w+)", said)[0]
    async with mesh.client() as client:
        ended = await finish(client, job_id)
    assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert not (tmp_path / "x.mp4").exists()


def start_up(home: Path, port: int, checkpoint: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "services.cli", "up", "--home", str(home),
            "--port", str(port), "--checkpoint", checkpoint,
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "300"},
    )  # fmt: skip


async def test_a_stop_says_what_it_leaves_undone(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Which job is cut short and how to resume it, and how many wait: they go on by themselves."""
    home, port = tmp_path / "home", free_port()
    up = start_up(home, port, str(tiny_checkpoint))
    try:
        await asyncio.to_thread(wait_until_serving, up, home, port)
        access = find_access(home)
        async with Client(access.address, access.key) as client:
            jobs = [await client.create_job(spec(seed=seed, evaluations=90)) for seed in (1, 2)]
            cut, waits = (job.job_id for job in jobs)
            async for now in client.watch_job(cut):
                if now.progress.phase == "evaluate":
                    break
            async for now in client.watch_job(waits):
                if now.stage == stage_pb2.STAGE_SAMPLE:
                    break
    finally:
        up.send_signal(signal.SIGINT)
    _, said = up.communicate(timeout=60)
    assert f"cut short: {cut}; after the next start: reelmesh resume {cut}" in said
    assert "1 waiting job will go on at the next start" in said
    assert said.rstrip().endswith("stopped")


def test_migrate_makes_and_keeps_a_database(mesh: Mesh, tmp_path: Path) -> None:
    """On a fresh home it makes the schema, again it changes nothing, under a mesh it refuses."""
    for _ in range(2):
        done = reelmesh("migrate", home=tmp_path)
        assert done.returncode == exits.OK, done.stderr
        assert (tmp_path / "registry" / "registry.db").stat().st_size > 0
    assert reelmesh("migrate", home=mesh.home).returncode == exits.USAGE
    assert reelmesh("jobs", home=mesh.home).returncode == exits.OK


def test_second_mesh_on_the_same_home_is_refused(mesh: Mesh, tiny_checkpoint: Path) -> None:
    """It says who is there, ends with 1, and the first one is not disturbed."""
    second = start_up(mesh.home, mesh.port + 5, str(tiny_checkpoint))
    _, said = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "cannot start" in said
    assert reelmesh("jobs", home=mesh.home).returncode == exits.OK


def test_the_demo_is_served_unless_something_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option or REELMESH_CHECKPOINT, else a configuration file, else the demo checkpoint."""
    taken: list[str | None] = []

    async def run(_home: Path, _port: int, checkpoint: str | None) -> None:
        taken.append(checkpoint)

    monkeypatch.setattr(up, "run", run)
    app = typer.main.get_command(services.app)
    words = ["up", "--home", str(tmp_path)]

    def chosen(*more: str, **environment: str) -> str | None:
        monkeypatch.delenv("REELMESH_CHECKPOINT", raising=False)
        monkeypatch.delenv("REELMESH_CONFIG", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        app.main([*words, *more], standalone_mode=False)
        return taken.pop()

    assert chosen() == str(up.DEMO)
    assert chosen("--checkpoint", "their/model") == "their/model"
    assert chosen(REELMESH_CHECKPOINT="other/model") == "other/model"
    assert chosen(REELMESH_CONFIG=str(tmp_path / "mesh.toml")) is None


def test_a_pipe_gets_one_line_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reads it wants a row a line; a terminal's own width is asked of the terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    job = jobs_pb2.Job(job_id="job_" + "0" * 32, waiting_for="a sampler that is away " * 9)
    job.state, job.spec.prompt = jobs_pb2.JOB_STATE_QUEUED, "a kite " * 90
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    options.make_console().print(display.jobs_table([job]))
    assert len(pipe.getvalue().splitlines()) == 2


def test_missing_checkpoint_is_told_at_once(tmp_path: Path) -> None:
    """A folder that is not there ends `up` with a sentence, not with five restarts."""
    mesh = start_up(tmp_path, 18440, str(tmp_path / "no-checkpoint"))
    _, said = mesh.communicate(timeout=60)
    assert mesh.returncode == 1
    assert "no-checkpoint" in said


async def test_service_that_keeps_dying_is_given_up(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Five restarts with growing pauses, then `up` says which log to read and stops all."""
    up = start_up(tmp_path, 18490, str(tiny_checkpoint))
    mesh = Mesh(tmp_path, 18490, up)  # type: ignore[arg-type]
    killed: set[int] = set()

    async def given_up() -> bool:
        try:
            process = mesh.process("registry")
            if process.pid not in killed:
                killed.add(process.pid)
                process.kill()
        except (LookupError, OSError):
            pass
        return up.poll() is not None

    await wait_for(given_up, "`up` to give the registry up", 90)
    assert up.returncode == 1
    assert up.stderr is not None
    said = up.stderr.read()
    pauses = [float(found) for found in re.findall(r"registry died .* in ([0-9.]+) s", said)]
    assert pauses == sorted(pauses) == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert "registry died 6 times" in said
