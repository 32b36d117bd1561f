"""A whole mesh in real processes for the tests, started as a person starts it: `reelmesh up`."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from reelmesh.v1 import jobs_pb2
from services.cli.access import find_access
from services.cli.client import Client
from services.common.rpc.channel import Peer
from services.common.rpc.identity import Role
from services.common.rpc.tokens import MeshTokens, load_tokens
from tools.demo import free_port, wait_until_serving

Found = TypeVar("Found")
PORTS = {"registry": 0, "encoder": 10, "sampler": 20, "decoder": 30}
# Bits depend on torch's number of threads; one is the same everywhere.
THREADS = 1


@dataclass
class Mesh:
    """Four services at a home, with their processes and a client."""

    home: Path
    port: int
    up: subprocess.Popen[bytes]

    @property
    def tokens(self) -> MeshTokens:
        """The mesh's tokens."""
        return load_tokens(self.home / "mesh-tokens.json")

    def client(self) -> Client:
        """A client with the local owner's key."""
        access = find_access(self.home)
        return Client(access.address, access.key)

    def peer(self, service: str, role: Role = Role.REGISTRY) -> Peer:
        """A stage, spoken to as this role."""
        return Peer(f"127.0.0.1:{self.port + PORTS[service]}", self.tokens.of(role))

    def process(self, service: str) -> psutil.Process:
        """The process of a service that runs now."""
        for child in psutil.Process(self.up.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is one too
                if child.cmdline()[-1:] == [f"services.{service}"]:
                    return child
        raise LookupError(f"no process of {service}")

    def kill(self, service: str) -> int:
        """kill -9 a service; the pid that died. `up` starts it again."""
        process = self.process(service)
        process.send_signal(signal.SIGKILL)
        return process.pid

    def wait_for_restart(self, service: str, old_pid: int) -> None:
        """Until `up` has started the service again and it serves."""
        limit = time.monotonic() + 90
        while True:
            try:
                if self.process(service).pid != old_pid:
                    break
            except (LookupError, psutil.NoSuchProcess):
                pass
            assert time.monotonic() < limit, f"{service} was not started again"
            time.sleep(0.05)
        wait_until_serving(self.up, self.home, self.port)

    def log(self, service: str) -> str:
        """Everything that a service logged."""
        return (self.home / "logs" / f"{service}.log").read_text(encoding="utf-8")

    def stop(self) -> int:
        """Ctrl-C; the exit code."""
        self.up.send_signal(signal.SIGINT)
        return self.up.wait(60)


def start_mesh(home: Path, checkpoint: Path, **environment: str) -> Mesh:
    """Start a mesh and wait until all four serve."""
    port = free_port()
    env = {
        **os.environ,
        **{f"REELMESH_{name}_THREADS": str(THREADS) for name in ("ENCODER", "SAMPLER", "DECODER")},
        "REELMESH_REGISTRY_HEARTBEAT_S": "0.5",
        "REELMESH_REGISTRY_LEASE_S": "5",
        **environment,
    }
    command = [sys.executable, "-m", "services.cli", "up", "--home", str(home)]
    up = subprocess.Popen(
        [*command, "--port", str(port), "--checkpoint", str(checkpoint)],
        env=env,
        stderr=subprocess.DEVNULL,
    )
    mesh = Mesh(home, port, up)
    wait_until_serving(up, home, port)
    return mesh


async def wait_for(
    look: Callable[[], Awaitable[Found | None]], what: str, limit_s: float = 60
) -> Found:
    """Poll until `look` finds something."""
    import asyncio

    limit = time.monotonic() + limit_s
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < limit, f"waited {limit_s:.0f} s for {what}"
        await asyncio.sleep(0.05)


async def finish(client: Client, job_id: str) -> jobs_pb2.Job:
    """The job at its end."""
    last = jobs_pb2.Job()
    async for job in client.watch_job(job_id):
        last = job
    return last


def spec(prompt: str = "a red ball rolls over the sand", **fields: int) -> jobs_pb2.JobSpec:
    """A small job."""
    made = jobs_pb2.JobSpec(prompt=prompt, seed=fields.get("seed", 7))
    made.evaluations = fields.get("evaluations", 3)
    return made
