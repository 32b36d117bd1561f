"""The bytes of a stored file as a stream: header, chunks from an offset, finish.

Written for two callers, `TransferService.Read` and `ArtifactService.Download`, whose messages have
the same shape. A thread reads and sums the next block while this one is on its way.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.chunks import CHUNK_BYTES, fill_chunk, read_block
from services.common.transfer.store import bundle_not_found
from services.common.transfer.threads import in_thread, settled

M = TypeVar("M")


async def send_bundle(
    stored: StoredBundle,
    path: Path,
    make: Callable[[], M],
    write: Callable[[M], Awaitable[Any]],
    *,
    idle_s: float,
    offset: int = 0,
    limit: int = 0,
) -> None:
    """Give `write` the whole stream, as messages that `make` makes (ReadResponse or its like).

    `limit` is the most bytes wanted, 0 for all. Raises BAD_RANGE before the first message,
    BUNDLE_CORRUPT if the file is not as it was stored, STREAM_STALLED if the other end takes
    longer than `idle_s` to read one message.
    """
    size = stored.bundle.size_bytes
    if not 0 <= offset <= size or limit < 0:
        raise MeshError(Reason.BAD_RANGE, f"offset and limit must lie in the {size} bytes")
    end = min(size, offset + limit) if limit else size
    source = _Source(stored, path, end, make)
    upcoming: asyncio.Task[M] | None = None
    try:
        await in_thread(source.open)
        await _in_time(write(source.header()), idle_s)
        while offset < end:
            message: M = await (
                asyncio.shield(upcoming) if upcoming else in_thread(source.chunk, offset)
            )
            offset = source.after(offset)
            upcoming = None
            if offset < end:
                upcoming = asyncio.create_task(asyncio.to_thread(source.chunk, offset))
            await _in_time(write(message), idle_s)
        await _in_time(write(source.finish()), idle_s)
    finally:
        try:
            if upcoming is not None:
                await settled(upcoming)  # its thread reads from the file
        finally:
            source.close()


async def _in_time(written: Awaitable[Any], idle_s: float) -> None:
    try:
        async with asyncio.timeout(idle_s):
            await written
    except TimeoutError:
        words = f"the other end read nothing for {idle_s:g} s"
        raise MeshError(Reason.STREAM_STALLED, words) from None
    except grpc.aio.InternalError:
        raise MeshError(Reason.STREAM_INCOMPLETE, "the other end left the stream") from None


class _Source:
    """Makes the messages of one stream."""

    def __init__(self, stored: StoredBundle, path: Path, end: int, make: Callable[[], Any]) -> None:
        self._stored = stored
        self._path = path
        self._end = end
        self._make = make
        self._descriptor = -1

    def open(self) -> None:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:  # deleted since it was looked up
            raise bundle_not_found() from None
        if os.fstat(self._descriptor).st_size != self._stored.bundle.size_bytes:
            raise _corrupt()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def header(self) -> Any:
        message, bundle = self._make(), self._stored.bundle
        message.header.manifest.CopyFrom(bundle.manifest)
        message.header.size_bytes = bundle.size_bytes
        message.header.sha256 = bundle.sha256
        return message

    def after(self, offset: int) -> int:
        """Where the chunk that starts at `offset` ends."""
        return min(offset - offset % CHUNK_BYTES + CHUNK_BYTES, self._end)

    def chunk(self, offset: int) -> Any:
        data = read_block(self._descriptor, offset, self._end)
        end = self.after(offset)
        if offset + len(data) != end:
            raise _corrupt()
        message = self._make()
        fill_chunk(message.chunk, offset, data)
        whole = offset % CHUNK_BYTES == 0 and (
            len(data) == CHUNK_BYTES or end == self._stored.bundle.size_bytes
        )
        if whole and message.chunk.crc32c != self._stored.block_sums[offset // CHUNK_BYTES]:
            raise _corrupt()
        return message

    def finish(self) -> Any:
        message, bundle = self._make(), self._stored.bundle
        message.finish.size_bytes = bundle.size_bytes
        message.finish.sha256 = bundle.sha256
        return message


def _corrupt() -> MeshError:
    return MeshError(Reason.BUNDLE_CORRUPT, "the stored file is not the one that was committed")
