"""Keeps an instance known to its registry: register once a start, then a heartbeat."""

import asyncio
from collections.abc import Callable

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

    def __init__(self, peer: Peer, instance: stage_pb2.Instance, book: Book) -> None:
        self._stub = mesh_pb2_grpc.MeshServiceStub(peer.channel)
        self._peer = peer
        self._instance = instance
        self._book = book

    async def keep(self, serving: Callable[[], bool]) -> MeshError:
        """Register and send heartbeats for ever; returns why this start may not go on.

        That is STALE_GENERATION: a newer start of the same instance has taken over. Anything else
        is tried again, because the registry may be away for a while.
        """
        interval_s = await self._register()
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._beat(serving())
            except MeshError as error:
                if error.reason is Reason.STALE_GENERATION:
                    return error
                if error.reason is Reason.INSTANCE_NOT_FOUND:
                    interval_s = await self._register()
                else:
                    log.warning("heartbeat_failed", reason=error.reason, error=error.message)

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
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_RETRY_S)
            else:
                self._book.generation = answer.generation
                log.info("registered", generation=answer.generation)
                return answer.heartbeat_interval.ToMilliseconds() / 1000

    async def _beat(self, serving: bool) -> None:
        async with calling():
            await self._stub.Heartbeat(
                mesh_pb2.HeartbeatRequest(
                    instance_id=self._instance.instance_id,
                    generation=self._book.generation,
                    boot_id=self._instance.boot_id,
                    run_ids=self._book.live_run_ids,
                    serving=serving,
                ),
                metadata=self._peer.metadata(),
                timeout=_CALL_S,
            )
