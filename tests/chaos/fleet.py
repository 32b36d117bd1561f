"""The processes of a mesh under chaos: started, killed, paused; and their proxies."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.proxy import Proxy

HEARTBEAT_S, LEASE_S = 0.5, 2.5
SECONDS = {"encoder": 0.3, "sampler": 2.0, "decoder": 0.6}
COUNTS = {"encoder": 2, "sampler": 4, "decoder": 2}


@dataclass
class Member:
    """One process of the mesh, and what stands in front of it."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log: Path
    proxies: list[Proxy] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    removed: bool = False
    starts: int = 0

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start its process."""
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env={**os.environ, **self.environment}, stderr=log, stdout=log
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if there is anybody."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        """kill -9, paused or not."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


class Fleet:
    """A mesh on one home and one database."""

    def __init__(self, home: Path, database_url: str, registries: int) -> None:
        self.home = home
        self.database_url = database_url
        self.members: dict[str, Member] = {}
        self.clients: list[str] = []
        self._registries = registries
        self._caring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start everything; a task starts again whatever dies, until `stop`."""
        self.home.mkdir(parents=True, exist_ok=True)
        addresses = [await self._add_registry(number) for number in range(self._registries)]
        for service, count in COUNTS.items():
            for number in range(count):
                await self._add_stage(service, number, ",".join(addresses))
        for member in self.members.values():
            member.start()
        self._caring = asyncio.create_task(self._care())

    async def _add_registry(self, number: int) -> str:
        clients, mesh = _free_port(), _free_port()
        name = f"registry-{number}"
        environment = {
            "REELMESH_HOME": str(self.home),
            "REELMESH_REGISTRY_REPLICA": name,
            "REELMESH_REGISTRY_DATABASE_URL": self.database_url,
            "REELMESH_REGISTRY_CLIENT_LISTEN": f"127.0.0.1:{clients}",
            "REELMESH_REGISTRY_MESH_LISTEN": f"127.0.0.1:{mesh}",
            "REELMESH_REGISTRY_BOOTSTRAP": "true" if number == 0 else "false",
            "REELMESH_REGISTRY_HEARTBEAT_S": str(HEARTBEAT_S),
            "REELMESH_REGISTRY_LEASE_S": str(LEASE_S),
            "REELMESH_REGISTRY_CALL_TIMEOUT_S": "2",
            "REELMESH_REGISTRY_ASK_INTERVAL_S": "1",
            "REELMESH_REGISTRY_REFUSAL_BACKOFF_S": "0.2",
            "REELMESH_REGISTRY_STREAM_IDLE_S": "3",
            **LIMITS_RAISED,
        }
        command = [sys.executable, "-m", "services.registry"]
        proxy = await self._add(name, command, environment, mesh)
        self.clients.append(f"127.0.0.1:{clients}")
        return f"127.0.0.1:{proxy.port}"

    async def _add_stage(self, service: str, number: int, registry: str) -> None:
        port = _free_port()
        name = f"{service}-{number}"
        prefix = f"REELMESH_{service.upper()}"
        environment = {
            "REELMESH_HOME": str(self.home),
            "REELMESH_REGISTRY": registry,
            f"{prefix}_INSTANCE_ID": name,
            f"{prefix}_LISTEN": f"127.0.0.1:{port}",
            f"{prefix}_STREAM_IDLE_S": "3",
            "CHAOS_SECONDS": str(SECONDS[service]),
        }
        command = [sys.executable, "-m", "tests.chaos.stage", service]
        proxy = await self._add(name, command, environment, port)
        environment[f"{prefix}_ADVERTISE"] = f"127.0.0.1:{proxy.port}"

    async def _add(
        self, name: str, command: list[str], environment: dict[str, str], port: int
    ) -> Proxy:
        proxy = Proxy(port)
        await proxy.start()
        self.members[name] = Member(name, command, environment, self.home / f"{name}.log", [proxy])
        return proxy

    async def _care(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            for member in self.members.values():
                if not member.alive and not member.removed:
                    member.start()

    async def pause(self, name: str, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        member = self.members[name]
        if member.paused or not member.alive:
            return
        process = member.process
        assert process is not None
        member.paused = True
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
        member.paused = False

    async def stop(self) -> None:
        """End everything."""
        if self._caring is not None:
            self._caring.cancel()
            await asyncio.gather(self._caring, return_exceptions=True)
        for member in self.members.values():
            member.removed = True
            member.end()
        for member in self.members.values():
            for proxy in member.proxies:
                await proxy.stop()


# The queue takes all jobs of the test at once.
LIMITS_RAISED = {
    f"REELMESH_REGISTRY_{name}": "-1"
    for name in ("MAX_RUNNING", "MAX_WAITING", "WAITING_PER_SAMPLER")
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
