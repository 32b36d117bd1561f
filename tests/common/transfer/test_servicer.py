"""TransferService over real gRPC: every wrong stream is refused and leaves nothing visible."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from reelmesh.v1 import transfer_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.rpc.status import DETAILS_KEY, from_call
from services.common.transfer.chunks import CHUNK_BYTES
from tests.common.transfer.faults import ENDING, FAULTS
from tests.common.transfer.harness import (
    LATENTS,
    Service,
    Tensors,
    eventually,
    files,
    header,
    holders,
    manifest_of,
    safetensors,
    sample,
    wire,
)
from tests.common.transfer.test_finite import BAD as NON_FINITE
from tests.common.transfer.test_tensors import GOOD, OTHERS

DATA = sample((4 << 20) + 5)


async def refused(call: Any) -> MeshError:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_call(caught.value)


async def collect(call: Any) -> list[Any]:
    """All messages of a stream."""
    return [message async for message in call]


def read(service: Service, bundle: transfer_pb2.Bundle, offset: int = 0) -> Any:
    """A Read call."""
    request = transfer_pb2.ReadRequest(
        bundle_id=bundle.bundle_id, read_token=bundle.read_token, offset=offset
    )
    return service.stub.Read(request, metadata=service.metadata)


@pytest.mark.parametrize("crc", [True, False])
async def test_what_is_written_is_read(service: Service, crc: bool) -> None:
    """Bytes go in and come out the same, in chunks of 1 MiB with CRC, from any offset."""
    upload_id = await service.open_upload(DATA)
    assert (await service.state(upload_id)).persisted_size_bytes == 0
    bundle = await service.write(upload_id, wire(DATA, crc=crc))
    assert (await service.state(upload_id)).bundle == bundle
    for offset in (0, 1, CHUNK_BYTES, len(DATA)):
        messages = await collect(read(service, bundle, offset))
        chunks = [message.chunk for message in messages[1:-1]]
        assert b"".join(chunk.data for chunk in chunks) == DATA[offset:]
        assert all(chunk.HasField("crc32c") for chunk in chunks)
        assert messages[0].header.sha256 == messages[-1].finish.sha256 == bundle.sha256
        assert messages[0].header.size_bytes == len(DATA)
    for offset in (-1, len(DATA) + 1):
        error = await refused(collect(read(service, bundle, offset)))
        assert error.reason is Reason.BAD_RANGE


@pytest.mark.parametrize("name", FAULTS)
async def test_a_bad_write_is_refused(service: Service, name: str) -> None:
    """The fault's own reason; nothing visible; resumable faults go on, the others have ended."""
    fault, reason = FAULTS[name]
    upload_id = await service.open_upload(DATA)
    error = await refused(service.write(upload_id, fault(wire(DATA))))
    assert error.reason is reason
    assert service.store.list() == []
    if reason in ENDING:
        assert (await refused(service.state(upload_id))).reason is Reason.UPLOAD_NOT_FOUND
        assert files(service.folder) == []
        return
    offset = (await service.state(upload_id)).persisted_size_bytes
    bundle = await service.write(upload_id, wire(DATA, offset=offset))
    assert service.store.path(bundle.bundle_id).read_bytes() == DATA
    assert len(files(service.folder)) == 2


async def test_what_arrived_before_a_fault_is_kept(service: Service) -> None:
    """A stream that is cut leaves its whole chunks persisted, and a sweep removes them later."""
    upload_id = await service.open_upload(DATA)
    await refused(service.write(upload_id, wire(DATA)[:3]))
    assert (await service.state(upload_id)).persisted_size_bytes == 3 * CHUNK_BYTES
    service.store.sweep(datetime.now(UTC) + timedelta(hours=2))
    assert files(service.folder) == []


async def test_a_gap_tells_the_persisted_size(service: Service) -> None:
    """OUT_OF_RANGE UPLOAD_GAP with the size in the metadata of its detail."""
    upload_id = await service.open_upload(DATA)
    await refused(service.write(upload_id, wire(DATA)[:1]))
    error = await refused(service.write(upload_id, wire(DATA)[2:]))
    assert error.reason is Reason.UPLOAD_GAP
    assert error.code is grpc.StatusCode.OUT_OF_RANGE
    assert error.info == {"persisted_size_bytes": str(CHUNK_BYTES)}


async def test_a_resumed_stream_may_overlap_once(service: Service) -> None:
    """The first chunk's overlap is skipped."""
    upload_id = await service.open_upload(DATA)
    await refused(service.write(upload_id, wire(DATA)[:1]))
    overlapping = wire(DATA, offset=CHUNK_BYTES)
    overlapping[0].chunk.offset -= 100
    overlapping[0].chunk.data = DATA[CHUNK_BYTES - 100 : 2 * CHUNK_BYTES]
    overlapping[0].chunk.ClearField("crc32c")
    bundle = await service.write(upload_id, overlapping)
    assert service.store.path(bundle.bundle_id).read_bytes() == DATA


async def test_finishing_twice_gives_the_same_bundle(service: Service) -> None:
    """Also with the last chunk again; another digest is refused and changes nothing."""
    upload_id = await service.open_upload(DATA)
    bundle = await service.write(upload_id, wire(DATA))
    assert await service.write(upload_id, wire(DATA)[-1:]) == bundle
    assert await service.write(upload_id, wire(DATA)[-2:]) == bundle
    lie = FAULTS["wrong digest"][0](wire(DATA))[-1:]
    assert (await refused(service.write(upload_id, lie))).reason is Reason.DIGEST_MISMATCH
    assert (await service.state(upload_id)).bundle == bundle


@pytest.mark.parametrize("first", [None, "chunk", "finish"])
async def test_a_stream_begins_with_its_header(service: Service, first: str | None) -> None:
    """Anything else is BAD_STREAM, nothing at all STREAM_INCOMPLETE."""
    messages = {None: [], "chunk": wire(DATA)[:1], "finish": wire(DATA)[-1:]}[first]
    error = await refused(service.send(messages))
    assert error.reason is (Reason.BAD_STREAM if first else Reason.STREAM_INCOMPLETE)


async def test_a_second_header_is_refused(service: Service) -> None:
    """BAD_STREAM."""
    upload_id = await service.open_upload(DATA)
    error = await refused(service.write(upload_id, [header(upload_id), *wire(DATA)]))
    assert error.reason is Reason.BAD_STREAM


async def test_a_stalled_write_is_cut(tmp_path: Path) -> None:
    """STREAM_STALLED after the idle limit; what arrived is persisted."""
    service = await Service(tmp_path, idle_s=0.2).start()
    upload_id = await service.open_upload(DATA)

    async def hold() -> AsyncIterator[Any]:
        yield header(upload_id)
        yield wire(DATA)[0]
        await asyncio.Event().wait()

    error = await refused(service.stub.Write(hold(), metadata=service.metadata))
    assert error.reason is Reason.STREAM_STALLED
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await service.state(upload_id)).persisted_size_bytes == CHUNK_BYTES
    await service.stop()


async def test_a_reader_that_stops_reading_is_cut(tmp_path: Path) -> None:
    """The file is closed after the idle limit and the stream ends STREAM_STALLED."""
    service = await Service(tmp_path, idle_s=0.2).start()
    bundle = service.adopt(sample(48 << 20))
    call = read(service, bundle)
    await anext(aiter(call))
    path = service.store.path(bundle.bundle_id)
    await eventually(lambda: holders(path) == 0, "the file is let go")
    error = await refused(collect(call))
    assert error.reason is Reason.STREAM_STALLED
    await service.stop()


async def test_a_reader_that_leaves_is_forgotten(service: Service) -> None:
    """A cancelled Read lets go of the file."""
    bundle = service.adopt(sample(48 << 20))
    call = read(service, bundle)
    await call.read()
    path = service.store.path(bundle.bundle_id)
    assert holders(path)
    call.cancel()
    await eventually(lambda: holders(path) == 0, "the file is let go")


async def test_a_newer_stream_fences_an_older(service: Service) -> None:
    """The older is ABORTED WRITER_SUPERSEDED, the newer goes on from what it wrote."""
    upload_id = await service.open_upload(DATA)
    part = service.folder / "uploads" / f"{upload_id}.part"
    older = service.stub.Write(metadata=service.metadata)
    await older.write(header(upload_id))
    await older.write(wire(DATA)[0])
    await eventually(lambda: part.stat().st_size == CHUNK_BYTES, "the first chunk is written")
    newer = service.stub.Write(metadata=service.metadata)
    await newer.write(header(upload_id))
    await newer.write(wire(DATA)[1])
    await eventually(lambda: part.stat().st_size == 2 * CHUNK_BYTES, "the second chunk is written")
    await older.write(wire(DATA)[1])
    error = await refused(older)
    assert error.reason is Reason.WRITER_SUPERSEDED
    for message in wire(DATA)[2:]:
        await newer.write(message)
    bundle = (await newer).bundle
    assert service.store.path(bundle.bundle_id).read_bytes() == DATA


async def test_the_lease_of_the_start_is_asked_for_again(service: Service) -> None:
    """Another run cannot write to an upload, nor fence its stream."""
    request = transfer_pb2.StartUploadRequest(
        manifest=transfer_pb2.Manifest(kind=transfer_pb2.BUNDLE_KIND_VIDEO),
        size_bytes=len(DATA),
        lease=transfer_pb2.Lease(run_id="run_a", token="t"),
    )
    answer = await service.stub.StartUpload(request, metadata=service.metadata)
    error = await refused(service.write(answer.upload_id, wire(DATA)))
    assert error.reason is Reason.UPLOAD_NOT_FOUND
    first = header(answer.upload_id)
    first.header.lease.run_id = "run_a"
    assert (await service.send([first, *wire(DATA)])).bundle.size_bytes == len(DATA)


async def test_a_big_tensor_passes_default_channels(service: Service) -> None:
    """4 MiB and a byte, more than one gRPC message may hold, written and read back."""
    tensors: Tensors = {"x": ("U8", ((4 << 20) + 1,), sample((4 << 20) + 1))}
    raw = safetensors(tensors)
    upload_id = await service.open_upload(raw, manifest_of(tensors))
    bundle = await service.write(upload_id, wire(raw))
    messages = await collect(read(service, bundle))
    assert b"".join(message.chunk.data for message in messages[1:-1]) == raw


@pytest.mark.parametrize("name", OTHERS)
async def test_a_header_that_lies_is_refused(service: Service, name: str) -> None:
    """Name, dtype or shape other than the manifest's: BAD_TENSORS, nothing is left."""
    raw = safetensors(GOOD)
    manifest = manifest_of(OTHERS[name])
    error = await refused(_write_as(service, raw, manifest))
    assert error.reason in (Reason.BAD_TENSORS, Reason.BAD_MANIFEST)
    assert files(service.folder) == []


async def _write_as(service: Service, raw: bytes, manifest: transfer_pb2.Manifest) -> Any:
    return await service.write(await service.open_upload(raw, manifest), wire(raw))


@pytest.mark.parametrize("dtype", NON_FINITE)
async def test_a_non_finite_tensor_is_refused(service: Service, dtype: str) -> None:
    """NON_FINITE in every float type, and nothing is left."""
    bits = NON_FINITE[dtype][0]
    size = {"F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1}.get(dtype, 2)
    tensors: Tensors = {"x": (dtype, (2,), bytes(size) + bits.to_bytes(size, "little"))}
    raw = safetensors(tensors)
    error = await refused(_write_as(service, raw, manifest_of(tensors)))
    assert error.reason is Reason.NON_FINITE
    assert files(service.folder) == []


async def test_a_bad_manifest_is_refused_at_the_start(service: Service) -> None:
    """BAD_MANIFEST with the field; no file is made."""
    manifest = transfer_pb2.Manifest(kind=LATENTS)
    manifest.tensors.add(name="x", dtype="DTYPE_F32", shape=[1 << 62, 8], size_bytes=8)
    error = await refused(service.open_upload(DATA, manifest))
    assert (error.reason, error.field) == (Reason.BAD_MANIFEST, "manifest.tensors[0].shape")
    assert files(service.folder) == []


async def test_a_full_disk_is_told_at_the_start(tmp_path: Path) -> None:
    """RESOURCE_EXHAUSTED DISK_FULL before any byte is sent."""
    service = await Service(tmp_path, free=lambda _: 1000).start()
    error = await refused(service.open_upload(DATA))
    assert error.reason is Reason.DISK_FULL
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await service.stop()


PATHS = ("../../etc/passwd", "/etc/passwd", "..\\x", "a\0b", "bun_" + "A" * 32, "", "x" * 300)


async def _raw(call: Any) -> tuple[Any, ...]:
    """Code, words and details of a failed call, as they came over the wire."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    trailers = dict(caught.value.trailing_metadata())
    return caught.value.code(), caught.value.details(), trailers[DETAILS_KEY]


async def test_a_wrong_token_and_an_unknown_id_are_alike(service: Service) -> None:
    """Byte for byte, on Read, Stat and Delete, for ids that are none and path-like ones too."""
    bundle = service.adopt(DATA)
    before = files(service.folder)
    asked = [
        (bundle.bundle_id, "wrong"),
        (bundle.bundle_id, ""),
        (new_id("bun"), bundle.read_token),
        (bundle.bundle_id + "\n", bundle.read_token),
        (bundle.bundle_id.upper(), bundle.read_token),
        (f"../bundles/{bundle.bundle_id}", bundle.read_token),
        *((path, bundle.read_token) for path in PATHS),
    ]
    answers = set()
    for bundle_id, token in asked:
        names: dict[str, Any] = {"bundle_id": bundle_id, "read_token": token}
        stub, metadata = service.stub, service.metadata
        answers.add(
            await _raw(collect(stub.Read(transfer_pb2.ReadRequest(**names), metadata=metadata)))
        )
        answers.add(await _raw(stub.Stat(transfer_pb2.StatRequest(**names), metadata=metadata)))
        answers.add(await _raw(stub.Delete(transfer_pb2.DeleteRequest(**names), metadata=metadata)))
    assert len(answers) == 1
    code, words, _ = answers.pop()
    assert code is grpc.StatusCode.NOT_FOUND
    assert bundle.bundle_id not in words
    assert files(service.folder) == before


async def test_path_like_upload_ids_are_not_found(service: Service) -> None:
    """GetUpload and Write answer them like an unknown id."""
    answers = set()
    for upload_id in (new_id("up"), *PATHS):
        answers.add(await _raw(service.state(upload_id)))
        answers.add(await _raw(service.write(upload_id, wire(DATA))))
    assert len(answers) == 1
    assert files(service.folder) == []


async def test_who_may_read_and_delete(service: Service) -> None:
    """The token opens a bundle, the registry needs none, Stat never tells it."""
    bundle = service.adopt(DATA)
    stat = transfer_pb2.StatRequest(bundle_id=bundle.bundle_id, read_token=bundle.read_token)
    answer = await service.stub.Stat(stat, metadata=service.metadata)
    assert answer.bundle.sha256 == bundle.sha256
    assert answer.bundle.read_token == ""
    registry = service.dial(Role.REGISTRY).metadata()
    stat.read_token = ""
    assert (await service.stub.Stat(stat, metadata=registry)).bundle.size_bytes == len(DATA)
    delete = transfer_pb2.DeleteRequest(bundle_id=bundle.bundle_id)
    for _ in range(2):  # gone already is no error for who may know
        await service.stub.Delete(delete, metadata=registry)
    assert files(service.folder) == []
    error = await refused(service.stub.Stat(stat, metadata=(("authorization", "Bearer x"),)))
    assert error.reason is Reason.UNAUTHENTICATED


async def test_damage_on_our_own_disk_is_our_own_blame(service: Service) -> None:
    """A flipped bit in a stored file is DATA_LOSS BUNDLE_CORRUPT, not the reader's fault."""
    bundle = service.adopt(DATA)
    path = service.store.path(bundle.bundle_id)
    damaged = bytearray(DATA)
    damaged[2 * CHUNK_BYTES + 3] ^= 1
    for content in (bytes(damaged), DATA[:-1]):
        path.write_bytes(content)
        error = await refused(collect(read(service, bundle)))
        assert error.reason is Reason.BUNDLE_CORRUPT
        assert error.code is grpc.StatusCode.DATA_LOSS
