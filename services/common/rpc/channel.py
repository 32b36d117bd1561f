"""Channels to peers: options that every channel of ours has, and the metadata of a call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import structlog

from services.common.rpc.interceptors import LOG_KEYS
from services.common.rpc.status import from_call

# The keepalive must be slower than the server's minimum ping interval (rpc/server.py).
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Several processes on one machine must not share one connection's flow control.
    ("grpc.use_local_subchannel_pool", 1),
)


class Peer:
    """One other service: its channel, opened on the first use, and how we show who we are."""

    def __init__(self, endpoint: str, token: str) -> None:
        self.endpoint = endpoint
        self._token = token
        self._channel: grpc.aio.Channel | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel, for a generated stub."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.endpoint, options=OPTIONS)
        return self._channel

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of one call: our token, and the ids that the log has bound here."""
        bound = structlog.contextvars.get_contextvars()
        ids = tuple((key, str(bound[name])) for key, name in LOG_KEYS.items() if bound.get(name))
        request = (("x-request-id", str(bound["request_id"])),) if "request_id" in bound else ()
        return (("authorization", f"Bearer {self._token}"), *request, *ids)

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None


@asynccontextmanager
async def calling() -> AsyncIterator[None]:
    """Around a call: a failure leaves as the MeshError that the peer raised."""
    try:
        yield
    except grpc.aio.AioRpcError as failed:
        raise from_call(failed) from failed
