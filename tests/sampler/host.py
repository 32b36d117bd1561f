"""A sampler's supervisor in a process of its own, to be stopped and killed by tests."""

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any


class Host:
    """The process, and the conversation with it over its standard input and output."""

    HANG_S = 6.0

    def __init__(self, checkpoint: str, conditioning: Path, output: Path) -> None:
        words = [checkpoint, str(conditioning), str(output)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.sampler.host", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def read_pids(self, limit_s: float) -> list[int]:
        """The ranks' process ids, once they have loaded."""
        pids: list[int] = self._read(limit_s)
        return pids

    def ask(self) -> None:
        """Ask for a run."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def read_epoch(self, limit_s: float) -> int:
        """The epoch in which the run that was asked for has ended."""
        epoch: int = self._read(limit_s)
        return epoch

    def end(self) -> None:
        """End it if it lives."""
        self.process.kill()
        self.process.wait()

    def _read(self, limit_s: float) -> Any:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], limit_s)
        assert readable, "the host says nothing"
        return json.loads(self.process.stdout.readline())


def main(checkpoint: str, conditioning: str, output: str) -> None:
    """Load two ranks, say who they are, and do a run for every line that comes."""
    from services.common import telemetry
    from services.common.checkpoint.components import ModelSettings
    from services.common.work import Watch
    from services.sampler.layout import RankLayout
    from services.sampler.ranks.plan import Limits, Plan
    from services.sampler.ranks.supervisor import Supervisor
    from tests.sampler.orders import order

    telemetry.configure("sampler", "sampler-2")
    settings = ModelSettings(checkpoint, "cpu", threads=1)
    limits = Limits(load_s=280, hang_s=Host.HANG_S, collective_s=60, heartbeat_s=0.25)
    supervisor = Supervisor(Plan(settings, "sampler-2", RankLayout(ulysses=2), limits=limits))
    supervisor.load()
    print(json.dumps(supervisor.pids), flush=True)
    for _ in sys.stdin:
        supervisor.sample(order(), Path(conditioning), Path(output), Watch())
        print(json.dumps(supervisor.epoch), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
