"""The header of a safetensors file, read with distrust and without loading a tensor.

Format: https://github.com/huggingface/safetensors#format: eight bytes with the header's length
(little-endian), a JSON object of name -> {dtype, shape, data_offsets}, then the data without holes.
"""

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from reelmesh.v1 import transfer_pb2
from reelmesh.v1.transfer_pb2 import Dtype
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.manifest import (
    MAX_HEADER_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_TENSORS,
    tensor_bytes,
)

_DTYPES = {name.removeprefix("DTYPE_"): number for name, number in Dtype.items() if number}
_DTYPES["F8_E4M3FN"] = Dtype.DTYPE_F8_E4M3  # two names are in use for one type
_METADATA = "__metadata__"
# The header, a tensor, its shape.
_MAX_DEPTH = 3
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor and where its bytes lie in the file."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    def spec(self) -> transfer_pb2.TensorSpec:
        """As a manifest says it."""
        return transfer_pb2.TensorSpec(
            name=self.name,
            dtype=Dtype.Name(self.dtype),
            shape=self.shape,
            size_bytes=self.size_bytes,
        )


def read_layout(descriptor: int) -> tuple[PlacedTensor, ...]:
    """The tensors of a safetensors file in the order of their bytes, or BAD_TENSORS.

    Reads only the header, at most MAX_HEADER_BYTES.
    """
    file_bytes = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if file_bytes < 10 or not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
        raise _bad("the file does not begin with a safetensors header")
    begin = 8 + length
    header = _parse(os.pread(descriptor, length, 8))
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise _bad("the header's metadata is not a map of strings")
    if len(header) > MAX_TENSORS:
        raise _bad(f"the header lists more than {MAX_TENSORS} tensors")
    placed = sorted(
        (_place(name, entry, begin) for name, entry in header.items()),
        key=lambda tensor: (tensor.offset, tensor.size_bytes),
    )
    at = begin
    for tensor in placed:
        if tensor.offset != at:
            raise _bad(f"the bytes of tensor {tensor.name!r} overlap others or leave a hole")
        at += tensor.size_bytes
    if at != file_bytes:
        raise _bad(f"the tensors end at byte {at} of {file_bytes}")
    return tuple(placed)


def check_layout(layout: tuple[PlacedTensor, ...], manifest: transfer_pb2.Manifest) -> None:
    """Raise BAD_TENSORS unless the manifest lists exactly the tensors of the file."""
    promised = {spec.name: spec for spec in manifest.tensors}
    for tensor in layout:
        if promised.pop(tensor.name, None) != tensor.spec():
            raise _bad(f"tensor {tensor.name!r} is not as the manifest says")
    if promised:
        raise _bad(f"tensor {next(iter(promised))!r} of the manifest is not in the file")


def _parse(text: bytes) -> dict[str, Any]:
    _check_depth(text)
    try:
        header = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_no_number,
            parse_constant=_no_number,
        )
    except ValueError as error:
        raise _bad("the header is not the JSON that it should be") from error
    if not isinstance(header, dict) or text[:1] != b"{":
        raise _bad("the header is not a JSON object")
    return header


def _check_depth(text: bytes) -> None:
    """Refuse deep nesting before the parser sees it, because the parser recurses."""
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", text)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > _MAX_DEPTH:
            raise _bad("the header is nested too deeply")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text[:20]} is not an integer")


def _place(name: str, entry: Any, begin: int) -> PlacedTensor:
    words = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:32]}…"
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS or any(
        "\ud800" <= letter <= "\udfff" for letter in name
    ):
        raise _bad(f"the name of tensor {words!r} is empty, too long or not text")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(f"tensor {words!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _bad(f"tensor {words!r} has a dtype that reelmesh does not know")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _bad(f"tensor {words!r} has a shape or offsets that are not natural numbers")
    first, end = offsets
    if end - first != tensor_bytes(_DTYPES[dtype], shape):
        raise _bad(f"tensor {words!r}: dtype, shape and data_offsets disagree")
    return PlacedTensor(name, _DTYPES[dtype], tuple(shape), begin + first, end - first)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _bad(message: str) -> MeshError:
    return MeshError(Reason.BAD_TENSORS, message)
