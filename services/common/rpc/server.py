"""A gRPC server as all our services have it: guards, health, reflection, a clean stop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.rpc.interceptors import Authenticate, GuardInterceptor, authenticated, edge

# Our clients ping every 20 s (rpc/channel.py); the server's default of 300 s would cut them.
OPTIONS = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True)
class Mount:
    """A servicer and the generated function that adds it, under its full service name."""

    name: str
    add: Callable[[Any, grpc.aio.Server], None]
    servicer: object


class Server:
    """One listener. NOT_SERVING until `set_serving(True)`."""

    def __init__(self, listen: str, mounts: Sequence[Mount], authenticate: Authenticate) -> None:
        self._listen = listen
        self._mounts = tuple(mounts)
        self._authenticate = authenticate
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. `port` is the bound one, also when the address asked for port 0.

        Raises OSError with the address if it cannot be bound.
        """
        guards = GuardInterceptor(edge, authenticated(self._authenticate))
        server = grpc.aio.server(interceptors=(guards,), options=OPTIONS)
        for mount in self._mounts:
            mount.add(mount.servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [mount.name for mount in self._mounts]
        reflection.enable_server_reflection(
            (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            self.port = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._listen}: is the port in use?") from error
        await self.set_serving(False)
        await server.start()
        self._server = server

    async def set_serving(self, serving: bool) -> None:
        """Tell health probes; every mounted service alike, and "" for the whole."""
        state = health_pb2.HealthCheckResponse
        status = state.SERVING if serving else state.NOT_SERVING
        for name in ("", *(mount.name for mount in self._mounts)):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """NOT_SERVING, then let calls under way end; after `grace_s` they are cut."""
        await self._health.enter_graceful_shutdown()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
