"""The store on a real disk: what survives a crash, what is removed, what a full disk leaves."""

import json
import resource
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import transfer_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.partial import SYNC_BYTES
from services.common.transfer.store import BundleStore
from services.common.transfer.uploads import Upload
from tests.common.transfer.harness import LATENTS, MEDIA, files, safetensors, sample, wire

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN = transfer_pb2.Manifest(kind=MEDIA)
DATA = sample(3 << 20)


def opened(folder: Path, **options: Any) -> BundleStore:
    """A store as after a start of the process."""
    store = BundleStore(folder, **{"margin_bytes": 0, **options})
    store.open()
    return store


def draft(store: BundleStore, data: bytes) -> Path:
    """A finished output."""
    path = store.draft()
    path.write_bytes(data)
    return path


def test_an_adopted_file_survives_a_restart(tmp_path: Path) -> None:
    """Same manifest, digest, time and read token; the draft is gone."""
    store = opened(tmp_path)
    bundle_id = new_id("bun")
    clip = transfer_pb2.Clip(mode=transfer_pb2.MODE_T2VA, height=256, width=256, frames=22)
    raw = safetensors({"latents": ("F32", (2, 3), bytes(24))})
    bundle = store.adopt(draft(store, raw), LATENTS, clip=clip, bundle_id=bundle_id)
    assert bundle.bundle_id == bundle_id
    assert bundle.manifest.clip == clip
    assert bundle.manifest.tensors[0].name == "latents"
    again = opened(tmp_path)
    assert again.get(bundle_id) == bundle
    assert again.path(bundle_id).read_bytes() == raw
    assert again.list() == [bundle]
    assert files(tmp_path) == [f"bundles/{bundle_id}.bin", f"bundles/{bundle_id}.json"]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (safetensors({"x": ("F32", (1,), bytes.fromhex("0000c07f"))}), Reason.NON_FINITE),
        (b"not a safetensors file", Reason.BAD_TENSORS),
    ],
)
def test_a_bad_output_is_not_adopted(tmp_path: Path, raw: bytes, reason: Reason) -> None:
    """Nothing is visible, and the file is gone."""
    store = opened(tmp_path)
    with pytest.raises(MeshError) as caught:
        store.adopt(draft(store, raw), LATENTS)
    assert caught.value.reason is reason
    assert files(tmp_path) == []
    assert store.list() == []


def test_a_start_removes_what_is_not_whole(tmp_path: Path) -> None:
    """Halves of bundles, a file of another size, stray drafts and parts: all go."""
    store = opened(tmp_path)
    kept, no_file, no_record, short = (store.adopt(draft(store, DATA), MEDIA) for _ in range(4))
    (tmp_path / "bundles" / f"{no_file.bundle_id}.bin").unlink()
    (tmp_path / "bundles" / f"{no_record.bundle_id}.json").unlink()
    (tmp_path / "bundles" / f"{short.bundle_id}.bin").write_bytes(DATA[:-1])
    (tmp_path / "bundles" / f"{kept.bundle_id}.json.tmp").write_text("{")
    (tmp_path / "bundles" / f"{new_id('bun')}.json").write_text('{"bundle": 3}')
    store.draft().write_bytes(b"half an output")
    (tmp_path / "uploads" / f"{new_id('up')}.part").write_bytes(b"no record")
    (tmp_path / "uploads" / f"{new_id('up')}.json").write_text("{}")
    again = opened(tmp_path)
    assert again.list() == [kept]
    assert len(files(tmp_path)) == 2


def test_deleting_twice_is_no_error(tmp_path: Path) -> None:
    """And an open reader reads on."""
    store = opened(tmp_path)
    bundle = store.adopt(draft(store, DATA), MEDIA)
    with store.path(bundle.bundle_id).open("rb") as reader:
        store.delete(bundle.bundle_id)
        store.delete(bundle.bundle_id)
        assert reader.read() == DATA
    assert files(tmp_path) == []
    with pytest.raises(MeshError):
        store.get(bundle.bundle_id)


def upload_some(store: BundleStore, data: bytes, announced: int, **options: Any) -> str:
    """An upload whose stream broke after `data`."""
    upload = store.start_upload(PLAIN, announced, **options)
    sink = store.attach(upload.upload_id)
    sink.take(wire(data)[:-1])
    sink.close()
    return upload.upload_id


def persisted(store: BundleStore, upload_id: str) -> int:
    """As GetUpload tells it."""
    found = store.find_upload(upload_id)
    assert isinstance(found, Upload)
    return found.persisted_bytes


def test_a_broken_upload_goes_on_in_another_process(tmp_path: Path) -> None:
    """What was synced is hashed again, and the bundle is that of the whole."""
    upload_id = upload_some(opened(tmp_path), DATA[: 2 << 20], len(DATA), run_id="run_1")
    store = opened(tmp_path)
    assert persisted(store, upload_id) == 2 << 20
    sink = store.attach(upload_id)
    sink.take(wire(DATA, offset=2 << 20))
    bundle = sink.finish()
    sink.close()
    assert store.path(bundle.bundle_id).read_bytes() == DATA
    found = opened(tmp_path).find_upload(upload_id)
    assert not isinstance(found, Upload)
    assert (found.bundle, found.run_id) == (bundle, "run_1")
    assert len(files(tmp_path)) == 2


def test_unsynced_bytes_are_forgotten_by_a_restart(tmp_path: Path) -> None:
    """Only what the record calls persisted counts, whatever the file's size."""
    upload_id = upload_some(opened(tmp_path), DATA[: 1 << 20], len(DATA))
    part = tmp_path / "uploads" / f"{upload_id}.part"
    part.write_bytes(part.read_bytes() + b"written, never synced")
    store = opened(tmp_path)
    assert persisted(store, upload_id) == 1 << 20
    sink = store.attach(upload_id)
    sink.take(wire(DATA, offset=1 << 20))
    assert sink.finish().size_bytes == len(DATA)


def test_a_crash_between_record_and_rename_keeps_the_upload(tmp_path: Path) -> None:
    """The orphan record goes, the upload is still there with all its bytes."""
    upload_id = upload_some(opened(tmp_path), DATA, len(DATA))
    orphan = tmp_path / "bundles" / f"{new_id('bun')}.json"
    orphan.write_text(json.dumps({"bundle": {"size_bytes": "3"}, "upload_id": upload_id}))
    store = opened(tmp_path)
    assert not orphan.exists()
    assert persisted(store, upload_id) == len(DATA)


def test_a_crash_after_the_rename_leaves_the_bundle(tmp_path: Path) -> None:
    """The upload's record that was not removed in time goes at the next start."""
    store = opened(tmp_path)
    upload_id = upload_some(store, DATA, len(DATA))
    record = tmp_path / "uploads" / f"{upload_id}.json"
    text = record.read_text()
    sink = store.attach(upload_id)
    sink.take(wire(DATA)[-1:])
    bundle = sink.finish()
    record.write_text(text)
    again = opened(tmp_path)
    assert not record.exists()
    assert again.list() == [bundle]


def test_long_uploads_are_synced_on_the_way(tmp_path: Path) -> None:
    """Without an end of the stream, all but the last few MiB become persisted."""
    store = opened(tmp_path)
    data = sample(3 * SYNC_BYTES)
    upload = store.start_upload(PLAIN, len(data) + 1)
    sink = store.attach(upload.upload_id)
    sink.take(wire(data)[:-1])
    assert upload.persisted_bytes >= SYNC_BYTES
    record = json.loads((tmp_path / "uploads" / f"{upload.upload_id}.json").read_text())
    assert record["persisted_bytes"] >= SYNC_BYTES
    sink.close()
    assert upload.persisted_bytes == len(data)


def test_the_newest_stream_fences_the_older(tmp_path: Path) -> None:
    """The older stream is refused, what it wrote counts, and it can end nothing."""
    store = opened(tmp_path)
    upload = store.start_upload(PLAIN, len(DATA))
    older = store.attach(upload.upload_id)
    older.take(wire(DATA)[:1])
    newer = store.attach(upload.upload_id)
    for messages in (wire(DATA)[1:2], wire(b"lie")):
        with pytest.raises(MeshError) as caught:
            older.take(messages)
        assert caught.value.reason is Reason.WRITER_SUPERSEDED
    older.close()
    newer.take(wire(DATA, offset=1 << 20))
    bundle = newer.finish()
    newer.close()
    assert store.path(bundle.bundle_id).read_bytes() == DATA


def test_expired_uploads_are_removed(tmp_path: Path) -> None:
    """An hour after the last byte, in this process or at the start of the next; not before."""
    clock = [NOW]
    options = {"clock": lambda: clock[0]}
    store = opened(tmp_path, **options)
    first = upload_some(store, DATA[: 1 << 20], len(DATA))
    clock[0] = NOW + timedelta(minutes=59)
    second = upload_some(store, DATA[: 1 << 20], len(DATA))
    store.sweep(clock[0])
    assert persisted(store, first)
    clock[0] = NOW + timedelta(minutes=61)
    store.sweep(clock[0])
    with pytest.raises(MeshError) as caught:
        store.find_upload(first)
    assert caught.value.reason is Reason.UPLOAD_NOT_FOUND
    assert files(tmp_path) == [f"uploads/{second}.json", f"uploads/{second}.part"]
    clock[0] = NOW + timedelta(hours=3)
    opened(tmp_path, **options)
    assert files(tmp_path) == []


def test_an_expiry_ends_an_open_stream(tmp_path: Path) -> None:
    """Its next step is refused and leaves no file."""
    store = opened(tmp_path)
    upload = store.start_upload(PLAIN, len(DATA))
    sink = store.attach(upload.upload_id)
    store.sweep(datetime.now(UTC) + timedelta(hours=2))
    with pytest.raises(MeshError) as caught:
        sink.take(wire(DATA))
    assert caught.value.reason is Reason.UPLOAD_NOT_FOUND
    sink.close()
    assert files(tmp_path) == []


def test_space_is_promised_once(tmp_path: Path) -> None:
    """What is promised to one cannot be promised to another; what is written counts as used."""
    free = [100 << 20]
    store = opened(tmp_path, margin_bytes=10 << 20, free=lambda _: free[0])
    store.space.reserve("run", 50 << 20)
    with pytest.raises(MeshError) as caught:
        store.start_upload(PLAIN, 41 << 20)
    assert caught.value.reason is Reason.DISK_FULL
    upload_id = upload_some(store, DATA, 40 << 20)
    free[0] -= len(DATA)
    with pytest.raises(MeshError):
        store.start_upload(PLAIN, 1)
    again = opened(tmp_path, margin_bytes=0, free=lambda _: 38 << 20)
    with pytest.raises(MeshError):
        again.start_upload(PLAIN, 2 << 20)  # the upload found again keeps its promise
    again.abandon(upload_id)
    again.start_upload(PLAIN, 2 << 20)
    store.space.release("run")
    store.start_upload(PLAIN, 50 << 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def size_limit() -> Iterator[None]:
    """No file of this process may pass 2.5 MiB."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 19, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def fill(folder: Path) -> None:
    """Write until the disk refuses; what is left is the persisted part, then nothing."""
    clock = [NOW]
    store = opened(folder, clock=lambda: clock[0], free=lambda _: 1 << 40)
    data = sample(8 << 20)
    upload_id = upload_some(store, data[: 1 << 20], len(data))
    sink = store.attach(upload_id)
    with pytest.raises(MeshError) as caught:
        sink.take(wire(data, offset=1 << 20))
    sink.close()
    assert caught.value.reason is Reason.DISK_FULL
    part = folder / "uploads" / f"{upload_id}.part"
    assert persisted(store, upload_id) == part.stat().st_size == 1 << 20
    assert part.read_bytes() == data[: 1 << 20]
    assert store.list() == []
    clock[0] = NOW + timedelta(hours=2)
    store.sweep(clock[0])
    assert files(folder) == []


def test_a_full_disk_leaves_what_was_synced(small_disk: Path) -> None:
    """ENOSPC is DISK_FULL; the upload can go on from the last synced byte."""
    fill(small_disk)


def test_a_size_limit_leaves_what_was_synced(tmp_path: Path, size_limit: None) -> None:
    """EFBIG is DISK_FULL too."""
    fill(tmp_path)
