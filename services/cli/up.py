"""`reelmesh up`: all four services on one machine, and each started again when it dies."""

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from services.cli.access import KEY_FILE
from services.cli.leaving import farewell, unfinished

console = Console(stderr=True, highlight=False, soft_wrap=True)

_EXAMPLE = "a large purple star moves from left to right, a high tone"  # in the demo's small world
SERVICES = ("registry", "encoder", "sampler", "decoder")
DEMO = Path(__file__).parents[2] / "weights" / "demo"
"""The demo checkpoint, where this runs from a checkout of the sources."""
_RESTARTS = 5
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 8.0
_STEADY_S = 60.0  # a service that ran this long has its restarts back
_STOP_S = 20.0
_EXIT_CONFIGURATION = 2  # the services' own code for "cannot start like this"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class GaveUp(Exception):
    """A service cannot be kept running; says why and where its log is."""


@dataclass(frozen=True)
class Child:
    """One service: how it is started, where it listens, where it logs."""

    name: str
    endpoint: str
    environment: dict[str, str]
    log: Path


def default_checkpoint() -> str | None:
    """What a mesh serves where nobody chose: the demo, not a download of the released model.

    None where a configuration file has the word, or this is no checkout of the sources.
    """
    return str(DEMO) if DEMO.is_dir() and not os.environ.get("REELMESH_CONFIG") else None


def plan(home: Path, port: int, checkpoint: str | None) -> list[Child]:
    """The four services of a mesh at `home`, on ports that follow from the clients' one."""
    listeners = {
        "registry": ("REELMESH_REGISTRY_CLIENT_LISTEN", port),
        "encoder": ("REELMESH_ENCODER_LISTEN", port + 10),
        "sampler": ("REELMESH_SAMPLER_LISTEN", port + 20),
        "decoder": ("REELMESH_DECODER_LISTEN", port + 30),
    }
    shared = {
        **os.environ,
        "REELMESH_HOME": str(home),
        "REELMESH_REGISTRY": f"127.0.0.1:{port + 1}",
        "REELMESH_REGISTRY_MESH_LISTEN": f"127.0.0.1:{port + 1}",
        "PYTHONUNBUFFERED": "1",
    }
    if checkpoint:
        # A folder is named from here, wherever a service works.
        folder = Path(checkpoint).expanduser()
        shared["REELMESH_CHECKPOINT"] = str(folder.resolve()) if folder.is_dir() else checkpoint
    return [
        Child(
            name,
            f"127.0.0.1:{own}",
            {**shared, variable: f"127.0.0.1:{own}"},
            home / "logs" / f"{name}.log",
        )
        for name, (variable, own) in listeners.items()
    ]


async def run(home: Path, port: int, checkpoint: str | None) -> None:
    """Keep a mesh up until Ctrl-C or SIGTERM. Exits with 1 if a service cannot be kept up."""
    children = plan(home, port, checkpoint)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "logs").mkdir(exist_ok=True)
    _check_ports(port)
    asked, stop = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    began = time.monotonic()
    console.print(f"home {home}, logs in {home / 'logs'}")
    keepers = [asyncio.create_task(_keep(child, stop), name=child.name) for child in children]
    ready = asyncio.create_task(_announce(children, home, port, began))
    stopping = asyncio.create_task(asked.wait())
    await asyncio.wait({*keepers, stopping}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    for line in farewell(await unfinished(home)):
        console.print(line)
    stop.set()
    failed = [
        result
        for result in await asyncio.gather(*keepers, return_exceptions=True)
        if isinstance(result, BaseException)
    ]
    for error in failed:
        if not isinstance(error, GaveUp):
            raise error
        console.print(f"[red]{error}[/]")
    console.print("stopped")
    sys.exit(1 if failed else 0)


async def _announce(children: list[Child], home: Path, port: int, began: float) -> None:
    async def wait_for(child: Child) -> None:
        async with grpc.aio.insecure_channel(child.endpoint) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                try:
                    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break
                except grpc.aio.AioRpcError:
                    pass
                await asyncio.sleep(0.1)
        console.print(f"  {child.name:9} SERVING on {child.endpoint}")

    await asyncio.gather(*map(wait_for, children))
    console.print(
        f"[green]up[/] after {time.monotonic() - began:.1f} s: clients at 127.0.0.1:{port}, "
        f"key in {home / KEY_FILE}\n"
        f'try: reelmesh generate "{_EXAMPLE}" -o star.mp4 --home {home}'
    )


async def _keep(child: Child, stop: asyncio.Event) -> None:
    """Run a service; start it again when it ends, until it died too often or `stop` is set."""
    deaths = 0
    while True:
        began = time.monotonic()
        code = await _run_once(child, stop)
        if stop.is_set():
            return
        if code == _EXIT_CONFIGURATION:
            raise GaveUp(f"{child.name} cannot start: {_last_line(child.log)}")
        if code == 0:
            # It was drained, or stopped in order by somebody else: an upgrade, not a death.
            console.print(f"{child.name} was drained (exit code 0); started again")
            continue
        deaths = 1 if time.monotonic() - began > _STEADY_S else deaths + 1
        if deaths > _RESTARTS:
            raise GaveUp(f"{child.name} died {deaths} times; its log: {child.log}")
        pause_s = min(_FIRST_PAUSE_S * 2 ** (deaths - 1), _LAST_PAUSE_S)
        console.print(
            f"[yellow]{child.name} died (exit code {code}); start {deaths} of {_RESTARTS} "
            f"in {pause_s:.1f} s[/]"
        )
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping}, timeout=pause_s)
        stopping.cancel()
        if stop.is_set():
            return


async def _run_once(child: Child, stop: asyncio.Event) -> int:
    with child.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"services.{child.name}",
            env=child.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A session of its own: a terminal's Ctrl-C reaches `up` alone, which stops in order.
            start_new_session=True,
            preexec_fn=_ending_with(os.getpid()),
        )
    ended = asyncio.create_task(process.wait())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not ended.done():
        process.terminate()
        await asyncio.wait({ended}, timeout=_STOP_S)
        if not ended.done():
            process.kill()
    return await ended


def _ending_with(parent: int) -> Callable[[], None]:
    """Have the kernel end a child when `up` itself is killed, so that none is left behind."""
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _check_ports(port: int) -> None:
    """OSError if somebody listens on one of our ports: their answers must not look like ours."""
    for own in (port, port + 1, port + 10, port + 20, port + 30):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", own))
            except OSError as error:
                raise OSError(f"port {own} is in use; choose others with --port") from error


def _last_line(log: Path) -> str:
    """The last thing that a service said, in words: its logs are JSON."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if not lines:
        return "it said nothing"
    try:
        return str(json.loads(lines[-1])["error"])
    except (ValueError, KeyError, TypeError):
        return lines[-1]
