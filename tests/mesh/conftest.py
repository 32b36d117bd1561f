"""One mesh for all tests that do not break it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mesh.harness import Mesh, start_mesh


@pytest.fixture(scope="session")
def mesh(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that every test may use and that no test kills parts of."""
    started = start_mesh(tmp_path_factory.mktemp("mesh"), tiny_checkpoint)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def own_mesh(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh of the module's own, to break; each test leaves it serving."""
    started = start_mesh(tmp_path_factory.mktemp("own"), tiny_checkpoint)
    yield started
    if started.up.poll() is None:
        started.stop()
