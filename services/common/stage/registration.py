"""Keeps an instance known to its registry: register once a start, then a heartbeat.

A heartbeat's answer may say to drain, and later that nothing which lies here is needed any more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from reelmesh.v1 import mesh_pb2, mesh_pb2_grpc, stage_pb2
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.book import Book

log = structlog.get_logger()

_CALL_S = 5.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 5.0


class Registration:
    """The conversation of one process start with the registry."""

    def __init__(
        self,
        peer: Peer,
        instance: stage_pb2.Instance,
        book: Book,
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        self._peer = peer
        self._instance = instance
        self._book = book
        self._drain = drain
        self._draining = False

    @property
    def _stub(self) -> Any:
        # Of the address that is used now: a registry may have several.
        return mesh_pb2_grpc.MeshServiceStub(self._peer.channel)

    async def keep(self, serving: Callable[[], bool]) -> MeshError | None:
        """Register and send heartbeats for ever; returns why this start may not go on.

        That is STALE_GENERATION: a newer start of the same instance has taken over; or nothing,
        when it was drained and may leave. Anything else is tried again, because the registry may
        be away for a while.
        """
        interval_s = pause_s = await self._register()
        while True:
            await asyncio.sleep(pause_s)
            pause_s = interval_s
            try:
                limit_s = min(_CALL_S, max(interval_s, _FIRST_RETRY_S))
                answer = await self._beat(serving(), limit_s)
                if answer.drain and not self._draining:
                    self._draining = True
                    log.info("draining", live_runs=len(self._book.live_run_ids))
                    await self._drain()
                    # Said at once: only who is known to take nothing more is let go.
                    answer = await self._beat(serving(), limit_s)
                if self._draining and answer.release and not self._book.live_run_ids:
                    log.info("released")
                    return None
            except MeshError as error:
                if error.reason is Reason.STALE_GENERATION:
                    return error
                if error.reason is Reason.INSTANCE_NOT_FOUND:
                    interval_s = pause_s = await self._register()
                else:
                    log.warning("heartbeat_failed", reason=error.reason, error=error.message)
                    if self._peer.turn():
                        pause_s = interval_s / 4  # another registry hears it within the lease

    async def _register(self) -> float:
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                async with calling():
                    answer: mesh_pb2.RegisterResponse = await self._stub.Register(
                        mesh_pb2.RegisterRequest(instance=self._instance),
                        metadata=self._peer.metadata(),
                        timeout=_CALL_S,
                    )
            except MeshError as error:
                log.warning("register_failed", reason=error.reason, error=error.message)
                self._peer.turn()
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_RETRY_S)
            else:
                self._book.generation = answer.generation
                log.info("registered", generation=answer.generation)
                return answer.heartbeat_interval.ToMilliseconds() / 1000

    async def _beat(self, serving: bool, limit_s: float) -> mesh_pb2.HeartbeatResponse:
        async with calling():
            answer: mesh_pb2.HeartbeatResponse = await self._stub.Heartbeat(
                mesh_pb2.HeartbeatRequest(
                    instance_id=self._instance.instance_id,
                    generation=self._book.generation,
                    boot_id=self._instance.boot_id,
                    run_ids=self._book.live_run_ids,
                    serving=serving,
                ),
                metadata=self._peer.metadata(),
                timeout=limit_s,
            )
        return answer
