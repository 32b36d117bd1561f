"""A registry to measure: `python -m services.registry` in a fresh home, on ports of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

_START_S, _STOP_S = 20.0, 20.0


@dataclass(frozen=True)
class Addresses:
    """Where it listens."""

    clients: str
    mesh: str


@asynccontextmanager
async def running_registry(home: Path) -> AsyncIterator[Addresses]:
    """The registry with its default settings, in a process of its own as in the field."""
    environment = {
        **os.environ,
        "REELMESH_HOME": str(home),
        "REELMESH_REGISTRY_CLIENT_LISTEN": "127.0.0.1:0",
        "REELMESH_REGISTRY_MESH_LISTEN": "127.0.0.1:0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.registry",
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    rest: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(_START_S):
            addresses = await _addresses(process.stderr)
        rest = asyncio.create_task(_drain(process.stderr))
        yield addresses
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_STOP_S):
            await process.wait()
        if rest is not None:
            await rest


async def _addresses(log: asyncio.StreamReader) -> Addresses:
    """From the line of its log that says that it serves."""
    said = []
    async for line in log:
        said.append(line.decode(errors="replace"))
        words = json.loads(line) if line.startswith(b"{") else {}
        if words.get("event") == "serving":
            return Addresses(words["clients"], words["mesh"])
    raise RuntimeError("the registry did not start:\n" + "".join(said))


async def _drain(log: asyncio.StreamReader) -> None:
    """A pipe that nobody reads would stop it."""
    async for _ in log:
        pass
