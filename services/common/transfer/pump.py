"""From a stream on the event loop to a sink in a worker thread, both working at once.

While the thread checks, hashes and writes one batch of messages (all of which release the GIL) the
loop receives the next. The batch is bounded, so a slow disk slows the sender down.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any

from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.writing import Sink

_BATCH_MESSAGES = 8
# How long a stream may make no progress, unless a service is told otherwise.
IDLE_S = 30.0


class _Pump:
    def __init__(self, sink: Sink[Any], progress: Callable[[int], None] | None) -> None:
        self._sink = sink
        self._progress = progress
        self._waiting: list[Any] = []
        self._busy: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._limit: asyncio.Timeout | None = None

    async def put(self, message: Any) -> None:
        """Hand over a message; waits only when a whole batch is waiting already."""
        self._waiting.append(message)
        self._advance()
        while len(self._waiting) >= _BATCH_MESSAGES:
            await self._step()

    async def drain(self) -> None:
        """Wait until everything handed over was taken, or raise the sink's error."""
        while self._busy is not None:
            await self._step()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Hand nothing more to the sink: it may be closed from now on."""
        self._waiting.clear()

    async def _step(self) -> None:
        if self._busy is not None:
            await asyncio.wait([self._busy])  # a thread cannot be cancelled, only waited for
        if self._error is not None:
            raise self._error

    def _advance(self) -> None:
        if self._busy is None and self._waiting and self._error is None:
            batch, self._waiting = self._waiting, []
            self._busy = asyncio.create_task(asyncio.to_thread(self._sink.take, batch))
            self._busy.add_done_callback(self._taken)

    def _taken(self, busy: asyncio.Task[None]) -> None:
        self._busy = None
        self._error = asyncio.CancelledError() if busy.cancelled() else busy.exception()
        if self._error is not None:
            self._waiting.clear()  # what follows a bad message means nothing
            if self._limit is not None:
                self._limit.reschedule(0)
            return
        if self._progress is not None:
            self._progress(self._sink.received_bytes)
        self._advance()

    @contextmanager
    def watching(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let an error of the sink end a wait for the next message, which may never come."""
        self._limit = limit
        try:
            if self._error is not None:
                limit.reschedule(0)
            yield
        finally:
            self._limit = None


async def receive(
    messages: AsyncIterator[Any],
    sink: Sink[Any],
    idle_s: float,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Feed a stream, from after its header to its finish, into the sink.

    Whatever ends the stream, what arrived is in the sink before this raises. Raises what the
    stream and the sink raise, STREAM_INCOMPLETE, STREAM_STALLED. `progress` must not raise.
    """
    pump = _Pump(sink, progress)
    try:
        while True:
            message = await next_message(messages, idle_s, pump.watching)
            await pump.put(message)
            if message.HasField("finish"):
                break
        await pump.drain()
    except MeshError:
        await pump.drain()  # its error says more than the end of the stream and takes its place
        raise
    except asyncio.CancelledError:
        with suppress(MeshError, OSError):
            await pump.drain()
        raise
    finally:
        pump.stop()


async def next_message(
    messages: AsyncIterator[Any],
    idle_s: float,
    watching: Callable[[asyncio.Timeout], AbstractContextManager[object]] = nullcontext,
) -> Any:
    """The next message. Raises STREAM_INCOMPLETE at the end, STREAM_STALLED after `idle_s`."""
    try:
        async with asyncio.timeout(idle_s) as limit, calling():
            with watching(limit):
                return await anext(messages)
    except TimeoutError:
        raise MeshError(Reason.STREAM_STALLED, f"nothing arrived for {idle_s:g} s") from None
    except StopAsyncIteration:
        raise MeshError(Reason.STREAM_INCOMPLETE, "the stream ended before its finish") from None
