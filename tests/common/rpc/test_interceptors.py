"""What surrounds every call of the four kinds: errors with their details, callers, log context."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2

from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Identity, Role, caller
from services.common.rpc.server import Mount, Server
from services.common.rpc.status import DETAILS_KEY

Act = Callable[[], Any]
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Script:
    """Four methods, one a kind of call; each does what the test says."""

    def __init__(self) -> None:
        self.act: Act = lambda: b"ok"

    async def answer(self, request: Any, context: Any) -> bytes:
        return await self._run()

    async def stream(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        yield await self._run()

    async def _run(self) -> bytes:
        await asyncio.sleep(0)
        made = self.act()
        return (await made) if asyncio.iscoroutine(made) else made  # type: ignore[no-any-return]


def add(script: Any, server: grpc.aio.Server) -> None:
    handlers: dict[str, Any] = {
        "unary_unary": grpc.unary_unary_rpc_method_handler(script.answer),
        "unary_stream": grpc.unary_stream_rpc_method_handler(script.stream),
        "stream_unary": grpc.stream_unary_rpc_method_handler(script.answer),
        "stream_stream": grpc.stream_stream_rpc_method_handler(script.stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))


async def authenticate(token: str) -> Identity:
    if token != "good":
        raise MeshError(Reason.UNAUTHENTICATED, "the key is not valid")
    return Identity(Role.CLIENT, owner_id="own_1")


@pytest.fixture
async def served() -> AsyncIterator[tuple[Script, Server]]:
    """A server with the four methods."""
    script = Script()
    server = Server("127.0.0.1:0", [Mount("t.T", add, script)], authenticate)
    await server.start()
    yield script, server
    await server.stop(0)


async def call(server: Server, kind: str, token: str = "good") -> bytes:
    peer = Peer(f"127.0.0.1:{server.port}", token)
    method = getattr(peer.channel, kind)(f"/t.T/{kind}")
    sent: Any = iter([b"x"]) if kind.startswith("stream") else b"x"
    try:
        made = method(sent, metadata=peer.metadata(), timeout=5)
        if kind.endswith("stream"):
            return b"".join([part async for part in made])
        return bytes(await made)
    finally:
        await peer.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_error_leaves_with_reason_field_and_retry(
    served: tuple[Script, Server], kind: str
) -> None:
    """A MeshError arrives as itself: code, reason, field, retry delay and info."""
    script, server = served

    def act() -> bytes:
        raise MeshError(Reason.BUSY, "no slot", field="run", retry_after_s=1.5, info={"slots": "1"})

    script.act = act
    with pytest.raises(MeshError) as caught:
        async with calling():
            await call(server, kind)
    error = caught.value
    assert (error.reason, error.message, error.field) == (Reason.BUSY, "no slot", "run")
    assert (error.retry_after_s, error.info) == (1.5, {"slots": "1"})
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("kind", KINDS)
async def test_handler_that_raises_cancelled_by_itself_gives_a_status(
    served: tuple[Script, Server], kind: str
) -> None:
    """The client gets an answer instead of hanging."""
    script, server = served

    def act() -> bytes:
        raise asyncio.CancelledError

    script.act = act
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, kind)
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("kind", KINDS)
async def test_crash_tells_a_request_id_and_not_its_words(
    served: tuple[Script, Server], kind: str
) -> None:
    """What was not meant for a caller stays in the log."""
    script, server = served

    def act() -> bytes:
        raise RuntimeError("rmk_secret")

    script.act = act
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, kind)
    assert "rmk_secret" not in str(caught.value.details())
    assert "request id" in str(caught.value.details())


@pytest.mark.parametrize("kind", KINDS)
async def test_caller_without_a_valid_key_reaches_nothing(
    served: tuple[Script, Server], kind: str
) -> None:
    """UNAUTHENTICATED comes before the handler; a valid key names the owner."""
    script, server = served
    reached: list[str] = []

    def act() -> bytes:
        reached.append(caller().owner_id)
        return b"ok"

    script.act = act
    for token in ("bad", ""):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server, kind, token)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert reached == []
    assert await call(server, kind) == b"ok"
    assert reached == ["own_1"]


async def test_log_context_of_concurrent_calls_stays_apart(
    served: tuple[Script, Server],
) -> None:
    """Ids that one call brings are on its lines only, and reach the calls that it makes."""
    script, server = served

    async def act() -> bytes:
        await asyncio.sleep(0.01)
        return str(structlog.contextvars.get_contextvars()["job_id"]).encode()

    script.act = act

    async def one(job_id: str) -> bytes:
        structlog.contextvars.bind_contextvars(job_id=job_id)
        return await call(server, "unary_unary")

    names = [f"job_{number}" for number in range(20)]
    got = await asyncio.gather(*(asyncio.create_task(one(name)) for name in names))
    assert [answer.decode() for answer in got] == names


async def test_long_error_stays_below_the_trailers_limit(
    served: tuple[Script, Server],
) -> None:
    """A message of any length arrives; trailers stay under 4 KiB."""
    script, server = served

    def act() -> bytes:
        raise MeshError(Reason.INVALID_FIELD, "long " * 5000, field="spec.prompt")

    script.act = act
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(server, "unary_unary")
    trailers = dict(caught.value.trailing_metadata())
    details = trailers[DETAILS_KEY]
    assert isinstance(details, bytes)
    assert len(details) + len(str(caught.value.details())) < 4096
    status = status_pb2.Status.FromString(details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "reelmesh")


async def test_port_in_use_says_so() -> None:
    """The address stands in the error."""
    first = Server("127.0.0.1:0", [], authenticate)
    await first.start()
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{first.port}"):
        await Server(f"127.0.0.1:{first.port}", [], authenticate).start()
    await first.stop(0)
