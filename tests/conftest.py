"""Fixtures that several parts share: a small checkpoint with the real model classes, PostgreSQL."""

import os
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.postgres import PACKAGE, Server, find_programs

# grpc.aio ends its poller when its last object is collected, and waits for it there: a test that
# broke a connection on purpose could then block whatever line the collection happens in. One
# reference more, and it lives as long as the process.
grpc.aio.init_grpc_aio()


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """A folder with the tiny checkpoint: REELMESH_TEST_CHECKPOINT, else built once in build/.

    A build left by an older version of the tool is built again.
    """
    given = os.environ.get("REELMESH_TEST_CHECKPOINT")
    if given:
        return Path(given)
    import tools.tiny_checkpoint as tool

    root = Path(__file__).parent.parent
    out = root / "build" / "tiny-checkpoint"
    changed = max(source.stat().st_mtime for source in (root / "tools").glob("tiny_*.py"))
    if not out.is_dir() or out.stat().st_mtime < changed:
        tool.build(out, force=True)
        os.utime(out)
    return out


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this session's own, not durable but fast."""
    server = Server(require_postgres())
    server.start()
    yield server
    server.remove()


def require_postgres() -> Path:
    """Where PostgreSQL's programs are; without them the test is skipped, but in CI it fails."""
    programs = find_programs()
    if programs is not None:
        return programs
    words = f"PostgreSQL is not installed: apt-get install {PACKAGE}"
    if os.environ.get("CI"):
        pytest.fail(words)
    pytest.skip(words)
