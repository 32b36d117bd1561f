"""A stream that comes down to us, whatever it becomes: opened, received, resumed, cleaned up.

`reader` lands bundles in a store, `download` lands plain files; both break and resume alike.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, TypeVar

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.patience import Patience
from services.common.transfer.pump import next_message, receive
from services.common.transfer.threads import attached, in_thread, settled
from services.common.transfer.uploads import Upload
from services.common.transfer.writing import Sink

T = TypeVar("T")


class Stream(Protocol):
    """A server stream of `header | chunk | finish`: a call of Read or Download."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Its messages."""

    def cancel(self) -> bool:
        """End it."""


class Landing(Generic[T]):
    """One transfer down. `begin` makes its partial file, `attach` says what it becomes.

    `open_stream` gets the offset to start from. `undo` removes what was made when a cancellation
    comes at the very end. All but `open_stream` run in threads.
    """

    def __init__(
        self,
        open_stream: Callable[[int], Stream],
        begin: Callable[[transfer_pb2.StreamHeader], Upload],
        attach: Callable[[Upload], Sink[T]],
        undo: Callable[[T], None],
        progress: Callable[[int, int], None] | None,
        idle_s: float,
    ) -> None:
        self._open_stream = open_stream
        self._begin = begin
        self._attach = attach
        self._undo = undo
        self._progress = progress
        self._idle_s = idle_s
        self._header: transfer_pb2.StreamHeader | None = None
        self._upload: Upload | None = None

    async def run(self, patience: Patience) -> T:
        """Receive until it is whole. A failure or a cancellation leaves nothing behind."""
        budget = patience.budget()
        try:
            while True:
                try:
                    return await self._attempt()
                except MeshError as error:
                    await budget.pause(error, self._reached_bytes())
        finally:
            if self._upload is not None:
                await in_thread(self._upload.discard)  # of what became whole, nothing is left

    def _reached_bytes(self) -> int:
        return self._upload.persisted_bytes if self._upload else 0

    async def _attempt(self) -> T:
        stream = self._open_stream(self._reached_bytes())
        try:
            messages = aiter(stream)
            first = await next_message(messages, self._idle_s)
            if not first.HasField("header"):
                raise MeshError(Reason.BAD_STREAM, "the stream does not begin with a header")
            upload = await in_thread(self._meet, first.header)
            async with attached(lambda: self._attach(upload)) as sink:
                await receive(messages, sink, self._idle_s, self._tell)
                return await self._finish(sink)
        finally:
            stream.cancel()

    async def _finish(self, sink: Sink[T]) -> T:
        finishing = asyncio.create_task(asyncio.to_thread(sink.finish))
        try:
            return await asyncio.shield(finishing)
        except asyncio.CancelledError:
            made = await settled(finishing)  # a thread cannot be cancelled, only undone
            if made is not None:
                await in_thread(self._undo, made)
            raise

    def _meet(self, header: transfer_pb2.StreamHeader) -> Upload:
        if self._upload is None:
            self._upload, self._header = self._begin(header), header
        elif header != self._header:
            raise MeshError(Reason.DIGEST_MISMATCH, "the source changed while it was read")
        return self._upload

    def _tell(self, received_bytes: int) -> None:
        if self._progress is not None and self._header is not None:
            self._progress(received_bytes, self._header.size_bytes)
