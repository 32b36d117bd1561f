"""A mesh for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.telemetry import configure
from tests.registry.mesh import Mesh


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    """A running registry with no stages yet."""
    mesh = Mesh(tmp_path / "home")
    await mesh.start()
    yield mesh
    await mesh.stop()


@pytest.fixture(autouse=True)
def quiet_log() -> None:
    """Only what went wrong."""
    configure("registry", "registry", "warning")
