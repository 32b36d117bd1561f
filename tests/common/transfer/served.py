"""A service as its own process, to be killed: `python -m tests.common.transfer.served FOLDER`."""

import asyncio
import sys
from pathlib import Path

from tests.common.transfer.harness import Service


async def serve(folder: Path) -> None:
    """Serve until killed; the port is the only line of output."""
    service = await Service(folder).start()
    print(f"port {service.server.port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
