"""A client stream that always ends with the peer's own status.

When a peer refuses a stream early, a write under way fails, and grpc.aio (`_StreamRequestMixin`)
puts "Internal error from Core" in place of the status that the peer sent, before or after that one
arrived. This notes every status as it is set, so that the peer's is not lost.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from services.common.rpc.errors import MeshError, Reason

_WRITE_FAILED = "Internal error from Core"
_STATUS_S = 1.0


class Upstream:
    """Writes messages to a call and asks for its answer."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._peers: grpc.aio.AioRpcError | None = None
        self._noted = asyncio.Event()
        call.add_done_callback(self._note)

    async def write(self, message: Any, idle_s: float) -> bool:
        """Send one message; False if the call has ended. STREAM_STALLED after `idle_s`."""
        try:
            async with asyncio.timeout(idle_s):
                await self._call.write(message)
        except TimeoutError:
            words = f"the peer took nothing for {idle_s:g} s"
            raise MeshError(Reason.STREAM_STALLED, words) from None
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            return False  # the call knows why
        return True

    async def answer(self) -> Any:
        """End the stream. The answer, or AioRpcError with the peer's status."""
        try:
            await self._call.done_writing()
            return await self._call
        except grpc.aio.AioRpcError as error:
            if error.details() != _WRITE_FAILED:
                raise
            try:
                async with asyncio.timeout(_STATUS_S):
                    await self._noted.wait()
            except TimeoutError:
                raise error from None
            raise self._peers or error from None

    def cancel(self) -> None:
        """End the call; one that has ended is no error."""
        self._call.cancel()

    def _note(self, call: Any) -> None:
        # Called while the status is being set, so none of these waits.
        details = _now(call.details())
        if details != _WRITE_FAILED:
            self._peers = grpc.aio.AioRpcError(
                _now(call.code()), grpc.aio.Metadata(), _now(call.trailing_metadata()), details
            )
            self._noted.set()


def _now(ready: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        ready.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the status of a call that is done was not at hand")
