"""Downloading to a plain file: complete and verified, or not there."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import artifacts_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.download import receive_to_file
from services.common.transfer.patience import Patience
from tests.common.transfer.faults import FAULTS
from tests.common.transfer.harness import files, opening, sample, wire

DATA = sample((3 << 20) + 5)
QUICK = Patience(tries=2, first_s=0.0)


class Canned:
    """A Download call without a network."""

    def __init__(self, messages: Iterable[Any]) -> None:
        self._messages = messages
        self.cancelled = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for message in self._messages:
            if message is None:
                await asyncio.Event().wait()
            yield message

    def cancel(self) -> bool:
        self.cancelled = True
        return True


def canned(messages: Iterable[Any]) -> Any:
    """As the function wants it."""
    return Canned(messages)


def downloaded(offset: int) -> list[Any]:
    """An honest Download."""
    first = artifacts_pb2.DownloadResponse(header=opening(DATA).header)
    return [first, *wire(DATA, artifacts_pb2.DownloadResponse, offset=offset)]


async def test_a_broken_download_is_resumed(tmp_path: Path) -> None:
    """One stream a chunk: the file is whole in the end, and replaces the old one."""
    path = tmp_path / "video.mp4"
    path.write_bytes(b"older")
    offsets = []

    def open_stream(offset: int) -> Any:
        offsets.append(offset)
        messages = downloaded(offset)
        return canned(messages if len(messages) < 5 else messages[:2])

    told: list[tuple[int, int]] = []
    got = await receive_to_file(
        open_stream, path, patience=QUICK, progress=lambda *done: told.append(done)
    )
    assert got == path
    assert path.read_bytes() == DATA
    assert offsets == [0, 1 << 20, 2 << 20]
    assert told[-1] == (len(DATA), len(DATA))
    assert files(tmp_path) == ["video.mp4"]


@pytest.mark.parametrize("name", FAULTS)
async def test_a_bad_download_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Neither the file nor a part of it; an older file stays as it was."""
    fault, reason = FAULTS[name]
    path = tmp_path / "video.mp4"
    path.write_bytes(b"older")

    def open_stream(offset: int) -> Any:
        first, *rest = downloaded(0)
        return canned([first, *(fault(rest) if offset == 0 else [])])

    with pytest.raises(MeshError) as caught:
        await receive_to_file(open_stream, path, patience=QUICK)
    assert caught.value.reason in (reason, Reason.STREAM_INCOMPLETE)
    assert files(tmp_path) == ["video.mp4"]
    assert path.read_bytes() == b"older"


async def test_a_cancelled_download_leaves_nothing(tmp_path: Path) -> None:
    """And its call is cancelled too."""
    call = Canned([*downloaded(0)[:2], None])
    begun = asyncio.Event()

    def progress(done: int, total: int) -> None:
        begun.set()

    work = receive_to_file(lambda offset: call, tmp_path / "x", progress=progress)
    task = asyncio.create_task(work)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.cancelled
    assert files(tmp_path) == []
