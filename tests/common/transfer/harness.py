"""Real servers on localhost, real files, and streams that are wrong on purpose."""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from reelmesh.v1 import transfer_pb2, transfer_pb2_grpc
from services.common.rpc.channel import Peer
from services.common.rpc.identity import Role
from services.common.rpc.server import Mount, Server
from services.common.rpc.tokens import MeshTokens
from services.common.transfer.chunks import CHUNK_BYTES, fill_chunk
from services.common.transfer.gate import StageGate
from services.common.transfer.servicer import TransferServicer
from services.common.transfer.store import BundleStore
from services.common.transfer.upstream import Upstream

TOKENS = MeshTokens({role: f"token-of-{role}" for role in Role if role is not Role.CLIENT})
MEDIA = transfer_pb2.BUNDLE_KIND_MEDIA
LATENTS = transfer_pb2.BUNDLE_KIND_LATENTS
NAME = "reelmesh.v1.TransferService"

Tensors = dict[str, tuple[str, Sequence[int], bytes]]
ITEM = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1}


def safetensors(tensors: Tensors) -> bytes:
    """A safetensors file of name -> (dtype, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    return with_header(json.dumps(header).encode(), data)


def with_header(text: bytes, data: bytes = b"") -> bytes:
    """A file with this header, whatever it says."""
    return struct.pack("<Q", len(text)) + text + data


def manifest_of(tensors: Tensors) -> transfer_pb2.Manifest:
    """The honest manifest."""
    specs = [
        transfer_pb2.TensorSpec(name=name, dtype=f"DTYPE_{dtype}", shape=shape, size_bytes=len(raw))
        for name, (dtype, shape, raw) in tensors.items()
    ]
    return transfer_pb2.Manifest(kind=LATENTS, tensors=specs)


def sample(size_bytes: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat."""
    return hashlib.shake_128(bytes([seed])).digest(size_bytes)


def wire(
    data: bytes,
    make: Callable[[], Any] = transfer_pb2.WriteRequest,
    *,
    offset: int = 0,
    crc: bool = True,
) -> list[Any]:
    """The honest chunks and finish of `data` from `offset` on."""
    messages = []
    while offset < len(data):
        end = min(offset - offset % CHUNK_BYTES + CHUNK_BYTES, len(data))
        message = make()
        fill_chunk(message.chunk, offset, data[offset:end])
        if not crc:
            message.chunk.ClearField("crc32c")
        messages.append(message)
        offset = end
    last = make()
    last.finish.size_bytes = len(data)
    last.finish.sha256 = hashlib.sha256(data).digest()
    return [*messages, last]


def header(upload_id: str) -> transfer_pb2.WriteRequest:
    """The first message of a Write."""
    return transfer_pb2.WriteRequest(header=transfer_pb2.WriteHeader(upload_id=upload_id))


class Service:
    """A store behind a real server."""

    def __init__(self, folder: Path, idle_s: float = 10.0, **options: Any) -> None:
        self.folder = folder
        self.store = BundleStore(folder, margin_bytes=0, **options)
        self.servicer: Any = TransferServicer(self.store, StageGate(self.store), idle_s=idle_s)
        self.peer = Peer("", "")

    async def start(self) -> "Service":
        """Listen on a free port."""
        self.store.open()
        add = transfer_pb2_grpc.add_TransferServiceServicer_to_server
        mount = Mount(NAME, add, self.servicer)
        self.server = Server("127.0.0.1:0", [mount], TOKENS.authenticate)
        await self.server.start()
        self.peer = self.dial(Role.STAGE)
        return self

    def dial(self, role: Role) -> Peer:
        """A caller of this role."""
        return Peer(f"127.0.0.1:{self.server.port}", TOKENS.of(role))

    @property
    def stub(self) -> Any:
        """For raw calls; needs `metadata`."""
        return transfer_pb2_grpc.TransferServiceStub(self.peer.channel)

    @property
    def metadata(self) -> Any:
        """Of a stage."""
        return self.peer.metadata()

    async def open_upload(self, data: bytes, manifest: transfer_pb2.Manifest | None = None) -> str:
        """StartUpload for `data`; plain media unless told otherwise."""
        request = transfer_pb2.StartUploadRequest(
            manifest=manifest or transfer_pb2.Manifest(kind=MEDIA), size_bytes=len(data)
        )
        answer = await self.stub.StartUpload(request, metadata=self.metadata)
        return str(answer.upload_id)

    async def write(self, upload_id: str, messages: Iterable[Any]) -> transfer_pb2.Bundle:
        """One Write stream with a header before `messages`."""
        answer = await self.send([header(upload_id), *messages])
        bundle: transfer_pb2.Bundle = answer.bundle
        return bundle

    async def send(self, messages: Iterable[Any]) -> transfer_pb2.WriteResponse:
        """One Write stream of exactly these messages."""
        call = Upstream(self.stub.Write(metadata=self.metadata))
        for message in messages:
            if not await call.write(message, idle_s=10.0):
                break
        answer: transfer_pb2.WriteResponse = await call.answer()
        return answer

    async def state(self, upload_id: str) -> transfer_pb2.GetUploadResponse:
        """GetUpload."""
        request = transfer_pb2.GetUploadRequest(upload_id=upload_id)
        answer: transfer_pb2.GetUploadResponse = await self.stub.GetUpload(
            request, metadata=self.metadata
        )
        return answer

    def adopt(self, data: bytes, kind: int = MEDIA) -> transfer_pb2.Bundle:
        """Make `data` a bundle of this service's own."""
        draft = self.store.draft()
        draft.write_bytes(data)
        return self.store.adopt(draft, kind)

    async def stop(self) -> None:
        """Close both ends."""
        await self.peer.close()
        await self.server.stop(0)
        vars(self.server).clear()  # a gRPC server that outlives its loop complains when collected


class Script(transfer_pb2_grpc.TransferServiceServicer):
    """A producer whose Read sends what `answer(offset)` says, and remembers the offsets."""

    def __init__(self, answer: Callable[[int], Iterable[Any]]) -> None:
        self.answer = answer
        self.offsets: list[int] = []

    async def Read(self, request: transfer_pb2.ReadRequest, context: Any) -> AsyncIterator[Any]:
        self.offsets.append(request.offset)
        for message in self.answer(request.offset):
            if message is None:  # hold the stream open
                await asyncio.Event().wait()
            yield message


def opening(
    data: bytes, manifest: transfer_pb2.Manifest | None = None
) -> transfer_pb2.ReadResponse:
    """The first message of a Read."""
    return transfer_pb2.ReadResponse(
        header=transfer_pb2.StreamHeader(
            manifest=manifest or transfer_pb2.Manifest(kind=MEDIA),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).digest(),
        )
    )


class Proxy:
    """A TCP proxy that counts, holds, cuts, and can be sent to another port."""

    def __init__(self, port: int, hold: Callable[["Proxy"], bool]) -> None:
        self.upstream = port
        self.up_bytes = self.down_bytes = 0
        self.holds = False
        self._hold = hold
        self._never = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._copies: set[asyncio.Task[None]] = set()

    async def start(self) -> "Proxy":
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self) -> None:
        """Break every connection; later ones pass freely and are counted from zero."""
        self._hold = lambda _: False
        self.up_bytes = self.down_bytes = 0
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, forth]
        self._copies |= {
            asyncio.create_task(self._copy(reader, forth, "up")),
            asyncio.create_task(self._copy(back, writer, "down")),
        }

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: str
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                if self._hold(self):
                    self.holds = True
                    await self._never.wait()  # nothing passes until `cut` breaks the connection
                setattr(self, f"{way}_bytes", getattr(self, f"{way}_bytes") + len(data))
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.transport.abort()

    async def stop(self) -> None:
        """Close."""
        self.cut()
        self._server.close()
        for copy in self._copies:
            copy.cancel()
        await asyncio.wait(self._copies)


def files(folder: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def holders(path: Path) -> int:
    """How many descriptors of this process are open on a file."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += link.readlink() == path
        except OSError:
            continue
    return found


async def eventually(condition: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """What `condition` gives once it is true."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := condition():
            return value
        await asyncio.sleep(0.005)
    raise AssertionError(f"not in time: {what}")
