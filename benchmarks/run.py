"""`make bench`: every benchmark in one run, as Markdown. benchmarks/README.md records one."""

import argparse
import os
import platform
from pathlib import Path

from benchmarks import handoff, overhead


def main() -> None:
    """The command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/tiny"))
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print("## Hand-off of latents between two processes\n")
    print(handoff.report(handoff.measure()))
    print("## One job through the mesh\n")
    print(overhead.report(overhead.measure(options.checkpoint)))


if __name__ == "__main__":
    main()
