"""A mesh for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.registry.mesh import Mesh


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    """A running registry with no stages yet."""
    mesh = Mesh(tmp_path / "home")
    await mesh.start()
    yield mesh
    await mesh.stop()
