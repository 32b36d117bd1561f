"""The conversation with a registry over real gRPC: registered, drained, released, superseded."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from reelmesh.v1 import mesh_pb2, mesh_pb2_grpc, stage_pb2, transfer_pb2
from services.common.ids import new_id
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.rpc.interceptors import Context
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import load_tokens
from services.common.stage.book import Book
from services.common.stage.journal import Journal
from services.common.stage.order import Order
from services.common.stage.registration import Registration
from tests.common.stage.harness import CLIP


class Registry(mesh_pb2_grpc.MeshServiceServicer):
    """Answers heartbeats as a test says, and remembers them."""

    def __init__(self) -> None:
        self.drain = self.release = False
        self.refuse: Reason | None = None
        self.beats: list[mesh_pb2.HeartbeatRequest] = []
        self.heard = asyncio.Condition()
        self.registered = 0

    async def Register(
        self, request: mesh_pb2.RegisterRequest, context: Context
    ) -> mesh_pb2.RegisterResponse:
        self.registered += 1
        answer = mesh_pb2.RegisterResponse(generation=self.registered)
        answer.heartbeat_interval.FromMilliseconds(20)
        return answer

    async def Heartbeat(
        self, request: mesh_pb2.HeartbeatRequest, context: Context
    ) -> mesh_pb2.HeartbeatResponse:
        self.beats.append(request)
        async with self.heard:
            self.heard.notify_all()
        if self.refuse is not None:
            reason, self.refuse = self.refuse, None
            raise MeshError(reason, "as the test says")
        return mesh_pb2.HeartbeatResponse(drain=self.drain, release=self.release)


class Conversation:
    """A registry, and one start of an instance that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry()
        self.drained = 0
        self._tokens = load_tokens(folder / "tokens.json")
        self._journal = Journal(folder / "stage")
        self._journal.open()
        self.book = Book(self._journal, "sampler-1")

    async def start(self) -> None:
        """Serve, and begin to talk."""
        add = mesh_pb2_grpc.add_MeshServiceServicer_to_server
        mounts = [Mount("reelmesh.v1.MeshService", add, self.registry)]
        self._server = Server("127.0.0.1:0", mounts, self._tokens.authenticate)
        await self._server.start()
        self._peer = Peer(f"127.0.0.1:{self._server.port}", self._tokens.of(Role.STAGE))
        instance = stage_pb2.Instance(instance_id="sampler-1", boot_id=new_id("boot"))
        registration = Registration(self._peer, instance, self.book, self._drain)
        self.keeping = asyncio.create_task(registration.keep(lambda: not self.drained))

    async def _drain(self) -> None:
        self.drained += 1

    async def until_beats(self, count: int) -> None:
        """Until so many more heartbeats were heard."""
        wanted = len(self.registry.beats) + count
        async with asyncio.timeout(20):
            async with self.registry.heard:
                await self.registry.heard.wait_for(lambda: len(self.registry.beats) >= wanted)

    async def stop(self) -> None:
        """End it all."""
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)
        await self._peer.close()
        await self._server.stop(0)
        self._journal.close()


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Conversation]:
    """A conversation that has begun."""
    conversation = Conversation(tmp_path)
    await conversation.start()
    yield conversation
    await conversation.stop()


async def test_drained_instance_says_so_at_once_and_leaves_when_it_is_released(
    talk: Conversation,
) -> None:
    """Not before; and it is told to drain once, however often the registry says it."""
    await talk.until_beats(2)
    assert talk.registry.beats[-1].serving
    talk.registry.drain = True
    await talk.until_beats(5)
    assert talk.drained == 1
    assert not talk.registry.beats[-1].serving
    assert not talk.keeping.done()
    talk.registry.release = True
    async with asyncio.timeout(20):
        assert await talk.keeping is None


async def test_release_without_a_drain_means_nothing(talk: Conversation) -> None:
    """Only a draining instance may leave."""
    talk.registry.release = True
    await talk.until_beats(5)
    assert not talk.keeping.done()


async def test_instance_with_a_live_run_does_not_leave(talk: Conversation) -> None:
    """Whatever the registry believes: the journal knows better."""
    order = Order(
        stage=stage_pb2.STAGE_SAMPLE,
        spec=stage_pb2.RunSpec(run_id=new_id("run")),
        clip=CLIP,
        digest="d",
        source=None,
        source_kind=transfer_pb2.BUNDLE_KIND_UNSPECIFIED,
        output_kind=transfer_pb2.BUNDLE_KIND_LATENTS,
        output_bytes=1,
        work=lambda source, output, watch: {},
    )
    await talk.book.accept(order, None)
    talk.registry.drain = talk.registry.release = True
    await talk.until_beats(5)
    assert not talk.keeping.done()
    assert list(talk.registry.beats[-1].run_ids) == [order.spec.run_id]
    await talk.book.end(order.spec.run_id, stage_pb2.RUN_STATE_SUCCEEDED, timings={})
    async with asyncio.timeout(20):
        assert await talk.keeping is None


async def test_unknown_instance_registers_again_and_a_superseded_one_leaves(
    talk: Conversation,
) -> None:
    """INSTANCE_NOT_FOUND begins anew; STALE_GENERATION is the end."""
    await talk.until_beats(1)
    talk.registry.refuse = Reason.INSTANCE_NOT_FOUND
    await talk.until_beats(3)
    assert talk.registry.registered == 2
    assert talk.registry.beats[-1].generation == 2
    talk.registry.refuse = Reason.STALE_GENERATION
    async with asyncio.timeout(20):
        error = await talk.keeping
    assert error is not None
    assert error.reason is Reason.STALE_GENERATION
