"""From a stream on the event loop to a sink in a worker thread, both working at once.

While the thread checks, hashes and writes one batch of messages (all of which release the GIL) the
loop receives the next. The batch is bounded, so a slow disk slows the sender down.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.writing import Sink

_BATCH_MESSAGES = 8
# How long a stream may make no progress, unless a service is told otherwise.
IDLE_S = 30.0

P = ParamSpec("P")
T = TypeVar("T")


class _Pump:
    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink
        self._waiting: list[Any] = []
        self._busy: asyncio.Task[None] | None = None

    async def put(self, message: Any) -> None:
        """Hand over a message; waits only when a whole batch is waiting already."""
        self._waiting.append(message)
        if self._busy is None or self._busy.done() or len(self._waiting) >= _BATCH_MESSAGES:
            await self._swap()

    async def _swap(self) -> None:
        busy, self._busy = self._busy, None
        if busy is not None:
            try:
                await asyncio.shield(busy)  # a thread cannot be cancelled, only waited for
            except asyncio.CancelledError:
                self._busy = busy
                raise
            except (MeshError, OSError):
                self._waiting.clear()  # what follows a bad message means nothing
                raise
        batch, self._waiting = self._waiting, []
        if batch:
            self._busy = asyncio.create_task(asyncio.to_thread(self._sink.take, batch))

    async def drain(self) -> None:
        """Wait until everything handed over was taken."""
        while self._waiting or self._busy:
            await self._swap()


async def receive(
    messages: AsyncIterator[Any],
    sink: Sink[Any],
    idle_s: float,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Feed a stream, from after its header to its finish, into the sink.

    Whatever ends the stream, what arrived is in the sink before this raises. Raises what the
    stream and the sink raise, STREAM_INCOMPLETE, STREAM_STALLED.
    """
    pump = _Pump(sink)
    try:
        while True:
            message = await next_message(messages, idle_s)
            await pump.put(message)
            if progress is not None:
                progress(sink.received_bytes)
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
    if progress is not None:
        progress(sink.received_bytes)


async def next_message(messages: AsyncIterator[Any], idle_s: float) -> Any:
    """The next message. Raises STREAM_INCOMPLETE at the end, STREAM_STALLED after `idle_s`."""
    try:
        async with asyncio.timeout(idle_s), calling():
            return await anext(messages)
    except TimeoutError:
        raise MeshError(Reason.STREAM_STALLED, f"nothing arrived for {idle_s:g} s") from None
    except StopAsyncIteration:
        raise MeshError(Reason.STREAM_INCOMPLETE, "the stream ended before its finish") from None


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread and, cancelled or not, do not leave before it ended."""
    task = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@asynccontextmanager
async def attached(attach: Callable[[], Sink[T]]) -> AsyncIterator[Sink[T]]:
    """A sink that is closed again whatever happens, a cancellation while it opens included."""
    opening = asyncio.create_task(asyncio.to_thread(attach))
    try:
        sink = await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await asyncio.to_thread(opening.result().close)
        raise
    try:
        yield sink
    finally:
        await asyncio.to_thread(sink.close)
