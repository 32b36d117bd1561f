"""Channels to peers: options that every channel of ours has, and the metadata of a call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import structlog

from services.common.rpc.errors import MeshError, Reason
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
    """One other service: its channel, opened on the first use, and how we show who we are.

    A service with replicas has several endpoints, separated by commas: one is used at a time.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoints = [part.strip() for part in endpoint.split(",")]
        self._token = token
        self._channels: dict[str, grpc.aio.Channel] = {}

    @property
    def endpoint(self) -> str:
        """The endpoint that is used now."""
        return self._endpoints[0]

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel to it, for a generated stub."""
        endpoint = self.endpoint
        if endpoint not in self._channels:
            self._channels[endpoint] = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        return self._channels[endpoint]

    def turn(self) -> bool:
        """Use the next endpoint from now on; False if there is no other."""
        self._endpoints.append(self._endpoints.pop(0))
        return len(self._endpoints) > 1

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of one call: our token, and the ids that the log has bound here."""
        bound = structlog.contextvars.get_contextvars()
        ids = tuple((key, str(bound[name])) for key, name in LOG_KEYS.items() if bound.get(name))
        request = (("x-request-id", str(bound["request_id"])),) if "request_id" in bound else ()
        return (("authorization", f"Bearer {self._token}"), *request, *ids)

    async def close(self) -> None:
        """Close the channels."""
        while self._channels:
            _, channel = self._channels.popitem()
            await channel.close(None)


@asynccontextmanager
async def calling() -> AsyncIterator[None]:
    """Around a call: a failure leaves as the MeshError that the peer raised."""
    try:
        yield
    except grpc.aio.AioRpcError as failed:
        raise from_call(failed) from failed
    except asyncio.CancelledError:
        # A channel that is closed under a call raises this in whoever waits for it, though nobody
        # cancelled that task: left alone, it would silently end a task that has work to do.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise MeshError(Reason.UNREACHABLE, "the connection was closed during the call") from None
