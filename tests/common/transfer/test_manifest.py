"""A manifest is judged before a byte arrives, and the field that is wrong is named."""

from collections.abc import Callable

import pytest

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.manifest import check_manifest
from tests.common.transfer.harness import LATENTS, MEDIA, Tensors, manifest_of, safetensors

GOOD: Tensors = {"a": ("F32", (2, 3), bytes(24)), "b": ("BF16", (4,), bytes(8))}
SIZE = len(safetensors(GOOD))
Change = Callable[[transfer_pb2.Manifest], object]

WRONG: dict[str, tuple[str, Change]] = {
    "no kind": ("manifest.kind", lambda m: m.ClearField("kind")),
    "unknown kind": ("manifest.kind", lambda m: m.MergeFromString(b"\x08\x63")),
    "media type": ("manifest.media_type", lambda m: setattr(m, "media_type", "a/b\r\nx: y")),
    "no tensors": ("manifest.tensors", lambda m: m.ClearField("tensors")),
    "media with tensors": ("manifest.tensors", lambda m: setattr(m, "kind", MEDIA)),
    "name twice": ("manifest.tensors[1].name", lambda m: setattr(m.tensors[1], "name", "a")),
    "empty name": ("manifest.tensors[0].name", lambda m: setattr(m.tensors[0], "name", "")),
    "no dtype": ("manifest.tensors[0].dtype", lambda m: m.tensors[0].ClearField("dtype")),
    "new dtype": ("manifest.tensors[0].dtype", lambda m: m.tensors[0].MergeFromString(b"\x10\x63")),
    "negative axis": ("manifest.tensors[0].shape", lambda m: m.tensors[0].shape.append(-1)),
    "overflow": ("manifest.tensors[0].shape", lambda m: m.tensors[0].shape.extend([1 << 62, 8])),
    "overflow behind a zero": (
        "manifest.tensors[0].shape",
        lambda m: m.tensors[0].shape.extend([0, 1 << 62, 8]),
    ),
    "many axes": ("manifest.tensors[0].shape", lambda m: m.tensors[0].shape.extend([1] * 17)),
    "wrong size": (
        "manifest.tensors[0].size_bytes",
        lambda m: setattr(m.tensors[0], "size_bytes", 23),
    ),
    "negative size": (
        "manifest.tensors[0].size_bytes",
        lambda m: setattr(m.tensors[0], "size_bytes", -24),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_manifest_is_refused_by_field(name: str) -> None:
    """BAD_MANIFEST with the path of the field."""
    field, change = WRONG[name]
    manifest = manifest_of(GOOD)
    check_manifest(manifest, SIZE)
    change(manifest)
    with pytest.raises(MeshError) as caught:
        check_manifest(manifest, SIZE)
    assert (caught.value.reason, caught.value.field) == (Reason.BAD_MANIFEST, field)


@pytest.mark.parametrize("size", [0, -1, 32, 32 + 9, 1 << 40, 1 << 63])
def test_tensors_must_fit_the_announced_size(size: int) -> None:
    """Too small for the tensors, or too large for any header: refused before allocating."""
    with pytest.raises(MeshError) as caught:
        check_manifest(manifest_of(GOOD), size)
    assert caught.value.reason is Reason.BAD_MANIFEST


def test_a_hostile_manifest_allocates_nothing() -> None:
    """A tensor of 2^62 bytes is arithmetic, not memory."""
    manifest = transfer_pb2.Manifest(kind=LATENTS)
    manifest.tensors.add(name="a", dtype="DTYPE_U8", shape=[1 << 62], size_bytes=1 << 62)
    with pytest.raises(MeshError):
        check_manifest(manifest, 1000)
    check_manifest(manifest, (1 << 62) + 64)
