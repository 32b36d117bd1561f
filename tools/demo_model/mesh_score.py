"""Scores prompts through a mesh of its own, from the MP4s that it published."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.mesh import running_mesh
from services.cli.access import find_access
from tools.demo_model import mesh_clips, mp4, tally
from tools.demo_model.cases import Case, cases


def score_mesh(
    checkpoint: Path,
    groups: list[str],
    counts: list[int],
    count: int,
    add: Callable[[str, int, list[tally.Scored]], None],
) -> None:
    """Give `add` the scored clips of each group and number of evaluations.

    The mesh's home is removed afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with running_mesh(home, checkpoint):
            for evaluations in counts:
                for name in groups:
                    scored: list[tally.Scored] = []

                    def read(case: Case, path: Path, into: list[tally.Scored] = scored) -> None:
                        into.append(tally.score(case, *mp4.decode(path)))
                        path.unlink()

                    asyncio.run(
                        mesh_clips.publish(
                            find_access(home),
                            list(cases(name, count)),
                            evaluations,
                            Path(folder),
                            read,
                        )
                    )
                    add(name, evaluations, scored)
