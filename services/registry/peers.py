"""Channels to the stages, and which of them are open now.

A binding goes only to an instance whose channel is open: a start that cannot be delivered would
leave a doubt that only the instance could settle.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import grpc

from services.common.rpc.channel import Peer


class Addressed(Protocol):
    """Who can be called."""

    @property
    def instance_id(self) -> str:
        """Its name."""

    @property
    def endpoint(self) -> str:
        """Where."""


class Peers:
    """One peer an endpoint. `on_open` is called when a channel that was asked for has opened."""

    def __init__(self, token: str, on_open: Callable[[], None]) -> None:
        self._token = token
        self._on_open = on_open
        self._peers: dict[str, Peer] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}

    def peer(self, endpoint: str) -> Peer:
        """The peer at this endpoint."""
        return self._peers.setdefault(endpoint, Peer(endpoint, self._token))

    def reachable(self, instances: Iterable[Addressed]) -> set[str]:
        """Ids of those whose channel is open; the others' are being opened."""
        return {one.instance_id for one in instances if self.is_open(one.endpoint)}

    def is_open(self, endpoint: str) -> bool:
        """Whether the channel is open; it is being opened if not."""
        channel = self.peer(endpoint).channel
        if channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return True
        if endpoint not in self._opening:
            task = asyncio.create_task(self._await_open(endpoint, channel))
            self._opening[endpoint] = task
            task.add_done_callback(lambda _: self._opening.pop(endpoint, None))
        return False

    async def _await_open(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        await channel.channel_ready()
        self._on_open()

    async def keep_only(self, endpoints: Collection[str]) -> None:
        """Close the channels to everywhere else: instances move."""
        for endpoint in [known for known in self._peers if known not in endpoints]:
            await self._close(endpoint)

    async def close(self) -> None:
        """Close all channels."""
        await self.keep_only(())

    async def _close(self, endpoint: str) -> None:
        if opening := self._opening.pop(endpoint, None):
            opening.cancel()
        await self._peers.pop(endpoint).close()
