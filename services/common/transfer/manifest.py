"""What a manifest may say, checked before a byte is accepted or a buffer allocated."""

import re
from collections.abc import Iterable, Mapping

from reelmesh.v1 import transfer_pb2
from reelmesh.v1.transfer_pb2 import BundleKind, Dtype
from services.common.rpc.errors import MeshError, Reason

TENSOR_KINDS = (BundleKind.BUNDLE_KIND_CONDITIONING, BundleKind.BUNDLE_KIND_LATENTS)

ITEM_BYTES: Mapping[int, int] = {
    Dtype.DTYPE_BOOL: 1,
    Dtype.DTYPE_U8: 1,
    Dtype.DTYPE_I8: 1,
    Dtype.DTYPE_U16: 2,
    Dtype.DTYPE_I16: 2,
    Dtype.DTYPE_U32: 4,
    Dtype.DTYPE_I32: 4,
    Dtype.DTYPE_U64: 8,
    Dtype.DTYPE_I64: 8,
    Dtype.DTYPE_F16: 2,
    Dtype.DTYPE_BF16: 2,
    Dtype.DTYPE_F32: 4,
    Dtype.DTYPE_F64: 8,
    Dtype.DTYPE_F8_E4M3: 1,
    Dtype.DTYPE_F8_E5M2: 1,
}

# A header of ours has some kilobytes; the format itself would allow 100 MB of JSON.
MAX_HEADER_BYTES = 1 << 20
# Length of the header's length, and of the shortest header, "{}".
_LENGTH_BYTES, _MIN_HEADER_BYTES = 8, 2
MAX_TENSORS = 4096
MAX_AXES = 16
MAX_NAME_CHARACTERS = 256
_MAX_INT64 = (1 << 63) - 1
_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,64}")


def holds_tensors(manifest: transfer_pb2.Manifest) -> bool:
    """Whether the bundle is a safetensors file."""
    return manifest.kind in TENSOR_KINDS


def check_manifest(manifest: transfer_pb2.Manifest, size_bytes: int) -> None:
    """Raise BAD_MANIFEST, naming the field, unless a bundle of `size_bytes` can be like this."""
    if manifest.kind not in BundleKind.values() or not manifest.kind:
        raise _bad("manifest.kind", "say what the bundle is")
    if manifest.media_type and not _MEDIA_TYPE.fullmatch(manifest.media_type):
        raise _bad("manifest.media_type", "use a media type such as video/mp4")
    if not 1 <= size_bytes <= _MAX_INT64:
        raise _bad("size_bytes", "a bundle has 1 byte or more")
    if not holds_tensors(manifest):
        if manifest.tensors:
            raise _bad("manifest.tensors", "only conditioning and latents have tensors")
        return
    if not 1 <= len(manifest.tensors) <= MAX_TENSORS:
        raise _bad("manifest.tensors", f"list 1 to {MAX_TENSORS} tensors")
    names: set[str] = set()
    for index, spec in enumerate(manifest.tensors):
        _check_spec(spec, f"manifest.tensors[{index}]")
        if spec.name in names:
            raise _bad(f"manifest.tensors[{index}].name", "two tensors have this name")
        names.add(spec.name)
    payload = sum(spec.size_bytes for spec in manifest.tensors)
    header = size_bytes - payload - _LENGTH_BYTES
    if not _MIN_HEADER_BYTES <= header <= MAX_HEADER_BYTES:
        raise _bad(
            "size_bytes", f"the tensors have {payload} bytes, which {size_bytes} cannot hold"
        )


def _check_spec(spec: transfer_pb2.TensorSpec, path: str) -> None:
    if not 1 <= len(spec.name) <= MAX_NAME_CHARACTERS or spec.name == "__metadata__":
        raise _bad(f"{path}.name", f"a name has 1 to {MAX_NAME_CHARACTERS} characters")
    if spec.dtype not in ITEM_BYTES:
        raise _bad(f"{path}.dtype", "use a dtype of the list")
    expected = tensor_bytes(spec.dtype, spec.shape)
    if expected is None:
        raise _bad(f"{path}.shape", "an axis is negative, or the tensor is too large to count")
    if spec.size_bytes != expected:
        raise _bad(f"{path}.size_bytes", f"this dtype and shape make {expected} bytes")


def tensor_bytes(dtype: int, shape: Iterable[int]) -> int | None:
    """Bytes of a tensor; None for a negative axis, too many axes, or a product over 2^63 - 1.

    Zero axes do not hide an overflow of the others: who multiplies in another order would wrap.
    """
    axes = list(shape)
    if len(axes) > MAX_AXES:
        return None
    product = ITEM_BYTES[dtype]
    for axis in axes:
        if axis < 0:
            return None
        product *= axis or 1
        if product > _MAX_INT64:
            return None
    return 0 if 0 in axes else product


def _bad(field: str, message: str) -> MeshError:
    return MeshError(Reason.BAD_MANIFEST, f"{field}: {message}", field=field)
