"""Pulling a bundle: what the producer or the way does wrong never becomes a bundle here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.chunks import CHUNK_BYTES
from services.common.transfer.patience import Patience
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from tests.common.transfer.faults import FAULTS
from tests.common.transfer.harness import (
    ITEM,
    LATENTS,
    Script,
    Service,
    Tensors,
    files,
    manifest_of,
    opening,
    safetensors,
    sample,
    wire,
)
from tests.common.transfer.test_finite import BAD as NON_FINITE
from tests.common.transfer.test_tensors import GOOD, OTHERS

DATA = sample((4 << 20) + 5)
QUICK = Patience(tries=2, first_s=0.0)
HEALED = (
    Reason.CHUNK_SEQUENCE,
    Reason.CHUNK_CHECKSUM,
    Reason.UPLOAD_GAP,
    Reason.STREAM_INCOMPLETE,
    Reason.STREAM_STALLED,
)
Answer = Callable[[int], Iterable[Any]]
Play = Callable[[Answer], Any]


def honest(offset: int, data: bytes = DATA) -> list[Any]:
    """The chunks and finish of a Read."""
    return wire(data, transfer_pb2.ReadResponse, offset=offset)


@pytest.fixture
async def play(tmp_path: Path) -> AsyncIterator[Play]:
    """Starts a producer that sends what a script says."""
    services: list[Service] = []

    async def start(answer: Answer) -> tuple[Service, Script]:
        service = Service(tmp_path / f"producer{len(services)}")
        service.servicer = script = Script(answer)
        services.append(await service.start())
        return service, script

    yield start
    for service in services:
        await service.stop()


def ref(**fields: Any) -> transfer_pb2.BundleRef:
    """A reference to a scripted bundle."""
    return transfer_pb2.BundleRef(bundle_id="bun_any", **fields)


async def test_a_pulled_bundle_is_the_producers(service: Service, own: BundleStore) -> None:
    """Same manifest, size and digest, an own id and token; progress counts bytes to the end."""
    tensors: Tensors = {"latents": ("U8", ((4 << 20) + 1,), sample((4 << 20) + 1))}
    theirs = service.adopt(safetensors(tensors), LATENTS)
    told: list[tuple[int, int]] = []
    known = transfer_pb2.BundleRef(
        bundle_id=theirs.bundle_id,
        read_token=theirs.read_token,
        size_bytes=theirs.size_bytes,
        sha256=theirs.sha256,
    )
    ours = await pull(service.peer, known, own, progress=lambda *done: told.append(done))
    assert ours.bundle_id != theirs.bundle_id
    assert ours.read_token != theirs.read_token
    assert (ours.manifest, ours.sha256) == (theirs.manifest, theirs.sha256)
    assert own.path(ours.bundle_id).read_bytes() == safetensors(tensors)
    assert told[-1] == (theirs.size_bytes, theirs.size_bytes)
    assert told == sorted(told)


async def test_what_the_producer_refuses_is_told(service: Service, own: BundleStore) -> None:
    """An unknown bundle is not asked for again."""
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own)
    assert caught.value.reason is Reason.BUNDLE_NOT_FOUND


@pytest.mark.parametrize("name", FAULTS)
async def test_a_bad_stream_never_becomes_a_bundle(
    play: Play, own: BundleStore, tmp_path: Path, name: str
) -> None:
    """Its own reason after the last try, nothing visible, no file; a wrong whole is not retried."""
    fault, reason = FAULTS[name]
    tries: list[int] = []

    def answer(offset: int) -> list[Any]:
        # Every stream is broken in the same way, so that no progress renews the budget for ever.
        tries.append(offset)
        return [opening(DATA), *(fault(honest(0)) if offset == 0 else [])]

    service, script = await play(answer)
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own, patience=QUICK)
    assert caught.value.reason in (reason, Reason.STREAM_INCOMPLETE)
    assert (len(script.offsets) > 1) == (reason in HEALED)
    assert own.list() == []
    assert files(tmp_path / "own") == []


@pytest.mark.parametrize("name", [name for name, (_, reason) in FAULTS.items() if reason in HEALED])
async def test_a_broken_stream_is_resumed(play: Play, own: BundleStore, name: str) -> None:
    """The second stream starts where the first broke, and the whole is right."""
    fault, _ = FAULTS[name]

    def answer(offset: int) -> list[Any]:
        broken = not script.offsets[1:]
        return [opening(DATA), *(fault(honest(0)) if broken else honest(offset))]

    service, script = await play(answer)
    bundle = await pull(service.peer, ref(), own, patience=QUICK)
    assert own.path(bundle.bundle_id).read_bytes() == DATA
    good = 0
    sent = fault(honest(0))
    for mine, theirs in zip(honest(0), sent, strict=False):
        if mine != theirs or not mine.HasField("chunk"):
            break
        good += len(mine.chunk.data)
    assert script.offsets == [0, good]


async def test_progress_renews_the_budget(play: Play, own: BundleStore) -> None:
    """A chunk a stream, more streams than tries: it arrives all the same."""

    def answer(offset: int) -> list[Any]:
        left = honest(offset)
        return [opening(DATA), *(left[:1] if len(left) > 2 else left)]

    service, script = await play(answer)
    bundle = await pull(service.peer, ref(), own, patience=QUICK)
    assert own.path(bundle.bundle_id).read_bytes() == DATA
    assert script.offsets == [n * CHUNK_BYTES for n in range(5)]


async def test_a_stalled_producer_is_left(play: Play, own: BundleStore) -> None:
    """After the idle limit the stream is cut and resumed."""

    def answer(offset: int) -> list[Any]:
        stalls = not script.offsets[1:]
        return [opening(DATA), *([honest(0)[0], None] if stalls else honest(offset))]

    service, script = await play(answer)
    bundle = await pull(service.peer, ref(), own, patience=QUICK, idle_s=0.2)
    assert bundle.size_bytes == len(DATA)
    assert script.offsets == [0, CHUNK_BYTES]


async def test_a_bundle_that_changes_is_refused(play: Play, own: BundleStore) -> None:
    """The resumed stream must be of the same bytes."""
    other = sample(len(DATA), seed=1)

    def answer(offset: int) -> list[Any]:
        if not script.offsets[1:]:
            return [opening(DATA), *honest(0)[:1]]
        return [opening(other), *honest(offset, other)]

    service, script = await play(answer)
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own, patience=QUICK)
    assert caught.value.reason is Reason.DIGEST_MISMATCH
    assert own.list() == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"size_bytes": 5}, Reason.SIZE_MISMATCH),
        ({"sha256": bytes(32)}, Reason.DIGEST_MISMATCH),
    ],
)
async def test_another_bundle_than_the_reference_says_is_refused(
    play: Play, own: BundleStore, tmp_path: Path, fields: dict[str, Any], reason: Reason
) -> None:
    """Before a byte is stored."""
    service, _ = await play(lambda offset: [opening(DATA), *honest(offset)])
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(**fields), own)
    assert caught.value.reason is reason
    assert files(tmp_path / "own") == []


@pytest.mark.parametrize("dtype", NON_FINITE)
async def test_non_finite_tensors_are_refused_here_too(
    play: Play, own: BundleStore, tmp_path: Path, dtype: str
) -> None:
    """A producer that did not look does not get them past this end."""
    size = ITEM[dtype]
    raw = bytes(size) + NON_FINITE[dtype][-1].to_bytes(size, "little")
    tensors: Tensors = {"x": (dtype, (2,), raw)}
    data = safetensors(tensors)
    service, script = await play(
        lambda offset: [opening(data, manifest_of(tensors)), *honest(offset, data)]
    )
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own)
    assert caught.value.reason is Reason.NON_FINITE
    assert script.offsets == [0]
    assert files(tmp_path / "own") == []


@pytest.mark.parametrize("name", OTHERS)
async def test_a_manifest_that_lies_is_refused_here_too(
    play: Play, own: BundleStore, tmp_path: Path, name: str
) -> None:
    """The file's own header decides."""
    data = safetensors(GOOD)
    lie = manifest_of(OTHERS[name])
    service, _ = await play(lambda offset: [opening(data, lie), *honest(offset, data)])
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own)
    assert caught.value.reason in (Reason.BAD_TENSORS, Reason.BAD_MANIFEST)
    assert files(tmp_path / "own") == []


async def test_the_caller_may_refuse_a_manifest(play: Play, own: BundleStore) -> None:
    """Before a byte is stored."""
    service, _ = await play(lambda offset: [opening(DATA), *honest(offset)])

    def accept(manifest: transfer_pb2.Manifest) -> None:
        raise MeshError(Reason.INPUT_MISMATCH, "not what is wanted")

    with pytest.raises(MeshError) as caught:
        await pull(service.peer, ref(), own, accept=accept)
    assert caught.value.reason is Reason.INPUT_MISMATCH


async def test_a_full_disk_here_is_told(service: Service, tmp_path: Path) -> None:
    """DISK_FULL at once, without trying again."""
    bundle = service.adopt(DATA)
    store = BundleStore(tmp_path / "full", margin_bytes=0, free=lambda _: 1000)
    store.open()
    known = transfer_pb2.BundleRef(bundle_id=bundle.bundle_id, read_token=bundle.read_token)
    with pytest.raises(MeshError) as caught:
        await pull(service.peer, known, store)
    assert caught.value.reason is Reason.DISK_FULL
    assert files(tmp_path / "full") == []


async def test_a_cancelled_pull_leaves_nothing(
    play: Play, own: BundleStore, tmp_path: Path
) -> None:
    """Cancelled in the middle: no file, and the cancellation arrives."""
    service, _ = await play(lambda offset: [opening(DATA), *honest(0)[:2], None])
    begun = asyncio.Event()

    def progress(done: int, total: int) -> None:
        if done:
            begun.set()

    task = asyncio.create_task(pull(service.peer, ref(), own, progress=progress))
    await begun.wait()
    assert files(tmp_path / "own")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path / "own") == []
    assert own.list() == []


async def test_a_temporary_copy_ends_with_its_process(
    play: Play, own: BundleStore, tmp_path: Path
) -> None:
    """It is a bundle like any other, but the next opening of the store finds nothing of it."""
    service, _ = await play(lambda offset: [opening(DATA), *honest(offset)])
    copy = await pull(service.peer, ref(), own, temporary=True)
    assert own.path(copy.bundle_id).read_bytes() == DATA
    again = BundleStore(tmp_path / "own", margin_bytes=0)
    again.open()
    assert again.list() == []
    assert files(tmp_path / "own") == []
