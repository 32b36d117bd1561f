"""A running service with an empty store, and a second store to pull into."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.transfer.store import BundleStore
from tests.common.transfer.harness import Service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """One service, up."""
    running = await Service(tmp_path / "service").start()
    yield running
    await running.stop()


@pytest.fixture
def own(tmp_path: Path) -> BundleStore:
    """The consumer's store."""
    store = BundleStore(tmp_path / "own", margin_bytes=0)
    store.open()
    return store
