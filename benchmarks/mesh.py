"""A mesh to measure: `reelmesh up` in a fresh home."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.demo import free_port, wait_until_serving


@contextmanager
def running_mesh(home: Path, checkpoint: Path) -> Iterator[float]:
    """All four services SERVING; gives the seconds that it took from the command to that."""
    port = free_port()
    began = time.perf_counter()
    up = subprocess.Popen(
        [
            sys.executable, "-m", "services.cli", "up", "--home", str(home),
            "--port", str(port), "--checkpoint", str(checkpoint),
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until_serving(up, home, port)
        yield time.perf_counter() - began
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(60)
