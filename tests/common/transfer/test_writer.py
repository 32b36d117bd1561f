"""Pushing a file: nothing is sent twice, and what is wrong is not sent at all."""

import asyncio
from pathlib import Path

import pytest

from reelmesh.v1 import transfer_pb2
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.common.transfer.patience import Patience
from services.common.transfer.records import read_record
from services.common.transfer.writer import push
from tests.common.transfer.harness import (
    MEDIA,
    TOKENS,
    Proxy,
    Service,
    Tensors,
    eventually,
    files,
    holders,
    manifest_of,
    safetensors,
    sample,
)
from tests.common.transfer.test_finite import BAD as NON_FINITE

PLAIN = transfer_pb2.Manifest(kind=MEDIA)


def local(tmp_path: Path, data: bytes) -> Path:
    """A file to push."""
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


async def test_a_pushed_file_is_the_peers_bundle(service: Service, tmp_path: Path) -> None:
    """A tensor of 4 MiB and a byte, with progress to the end."""
    tensors: Tensors = {"x": ("U8", ((4 << 20) + 1,), sample((4 << 20) + 1))}
    raw = safetensors(tensors)
    told: list[tuple[int, int]] = []
    path = local(tmp_path, raw)
    pushed = await push(
        service.peer, path, manifest_of(tensors), progress=lambda *done: told.append(done)
    )
    bundle = pushed.bundle
    assert service.store.path(bundle.bundle_id).read_bytes() == raw
    assert bundle.read_token
    assert told[-1] == (len(raw), len(raw))


@pytest.mark.parametrize("dtype", NON_FINITE)
async def test_non_finite_tensors_are_not_sent(
    service: Service, tmp_path: Path, dtype: str
) -> None:
    """The sender looks first: the peer hears nothing of it."""
    size = {"F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1}.get(dtype, 2)
    raw = NON_FINITE[dtype][0].to_bytes(size, "little")
    tensors: Tensors = {"x": (dtype, (1,), raw)}
    with pytest.raises(MeshError) as caught:
        await push(service.peer, local(tmp_path, safetensors(tensors)), manifest_of(tensors))
    assert caught.value.reason is Reason.NON_FINITE
    assert files(service.folder) == []


async def test_a_refusal_is_told_at_once(tmp_path: Path) -> None:
    """A full disk is not tried again."""
    service = await Service(tmp_path / "full", free=lambda _: 10).start()
    with pytest.raises(MeshError) as caught:
        await push(service.peer, local(tmp_path, sample(1 << 20)), PLAIN)
    assert caught.value.reason is Reason.DISK_FULL
    await service.stop()


async def test_an_unreachable_peer_is_given_up(tmp_path: Path) -> None:
    """After as many tries as the patience has."""
    peer = Peer("127.0.0.1:1", "token")
    with pytest.raises(MeshError) as caught:
        await push(peer, local(tmp_path, b"x"), PLAIN, patience=Patience(tries=2, first_s=0.0))
    assert caught.value.reason is Reason.UNREACHABLE
    await peer.close()


async def test_a_broken_push_sends_only_what_is_missing(service: Service, tmp_path: Path) -> None:
    """The connection breaks in the middle; the second stream starts at the persisted size."""
    data = sample(24 << 20)
    proxy = await Proxy(service.server.port, lambda way: way.up_bytes >= 20 << 20).start()
    peer = Peer(f"127.0.0.1:{proxy.port}", TOKENS.of(Role.STAGE))
    task = asyncio.create_task(push(peer, local(tmp_path, data), PLAIN))
    await eventually(lambda: proxy.holds, "most of it is sent")
    port, proxy.upstream = proxy.upstream, 1
    proxy.cut()
    (part,) = (service.folder / "uploads").glob("*.part")
    await eventually(lambda: holders(part) == 0, "the service has seen the break")
    kept = int((read_record(part.with_suffix(".json")) or {})["persisted_bytes"])
    assert kept
    proxy.upstream = port
    bundle = (await task).bundle
    assert service.store.path(bundle.bundle_id).read_bytes() == data
    assert proxy.up_bytes < len(data) - kept + (1 << 20)
    await peer.close()
    await proxy.stop()


async def test_a_lost_answer_is_asked_for(service: Service, tmp_path: Path) -> None:
    """Everything arrived and only the answer was lost: GetUpload gives the bundle."""
    data = sample(2 << 20)
    proxy = await Proxy(service.server.port, lambda _: bool(service.store.list())).start()
    peer = Peer(f"127.0.0.1:{proxy.port}", TOKENS.of(Role.STAGE))
    task = asyncio.create_task(push(peer, local(tmp_path, data), PLAIN))
    await eventually(lambda: proxy.holds, "the bundle is committed")
    proxy.cut()
    assert (await task).bundle == service.store.list()[0]
    assert len(service.store.list()) == 1
    assert proxy.up_bytes < 10_000
    await peer.close()
    await proxy.stop()
