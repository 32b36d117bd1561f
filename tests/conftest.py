"""Fixtures that several parts share: a small checkpoint with the real model classes."""

import os
from pathlib import Path

import grpc
import pytest

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
    source = Path(tool.__file__)
    if not out.is_dir() or out.stat().st_mtime < source.stat().st_mtime:
        tool.build(out, force=True)
        os.utime(out)
    return out
