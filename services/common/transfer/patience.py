"""How long a transfer that breaks is tried again. gRPC's own retry never saves a stream."""

import asyncio
from dataclasses import dataclass

import grpc

from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.status import DETAILS_KEY

# The bytes are fine and so is the other end's disk: only the way between them failed.
_RESUMABLE = frozenset(
    {
        Reason.CHUNK_CHECKSUM,
        Reason.CHUNK_SEQUENCE,
        Reason.UPLOAD_GAP,
        Reason.STREAM_STALLED,
        Reason.STREAM_INCOMPLETE,
        Reason.UNREACHABLE,
        Reason.DEADLINE,
        Reason.DRAINING,
        Reason.NOT_READY,
        # A server that stops cuts its streams so; our own cancellation is a CancelledError.
        Reason.CANCELLED,
    }
)


# How gRPC tells of a stream that a proxy or a dying process reset, when no details of ours came.
_RESET = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


def resumable(error: MeshError) -> bool:
    """Whether the transfer may go on after this error."""
    if error.reason in _RESUMABLE:
        return True
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError) or cause.code() not in _RESET:
        return False
    return all(key != DETAILS_KEY for key, _ in cause.trailing_metadata() or ())


@dataclass(frozen=True)
class Patience:
    """`tries` failures in a row without a new byte between them are too many."""

    tries: int = 8
    first_s: float = 0.1
    most_s: float = 5.0

    def budget(self) -> "Budget":
        """A fresh budget for one transfer."""
        return Budget(self)


class Budget:
    """What is left of the patience with one transfer."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failures = 0
        self._reached_bytes = 0

    async def pause(self, error: MeshError, reached_bytes: int) -> None:
        """Wait before the next try, or raise `error` if there is to be none."""
        if reached_bytes > self._reached_bytes:
            self._failures, self._reached_bytes = 0, reached_bytes
        self._failures += 1
        if not resumable(error) or self._failures >= self._patience.tries:
            raise error
        wait_s = self._patience.first_s * 2.0 ** (self._failures - 1)
        await asyncio.sleep(max(min(wait_s, self._patience.most_s), error.retry_after_s or 0.0))
