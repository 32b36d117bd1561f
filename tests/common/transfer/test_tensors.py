"""Headers that lie: a safetensors file is refused unless it is exactly what it says."""

import json
import os
from pathlib import Path

import pytest

from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.manifest import MAX_HEADER_BYTES
from services.common.transfer.tensors import check_layout, read_layout
from tests.common.transfer.harness import Tensors, manifest_of, safetensors, with_header

GOOD: Tensors = {
    "latents": ("F32", (2, 3), bytes(24)),
    "audio_latents": ("BF16", (4,), bytes(8)),
    "empty": ("U8", (0, 5), b""),
}


def layout_of(path: Path, data: bytes) -> tuple[object, ...]:
    """Read a file's header."""
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_layout(descriptor)
    finally:
        os.close(descriptor)


def entry(begin: int, end: int, shape: object = (2,), dtype: object = "U8") -> dict[str, object]:
    """One header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def text(header: object) -> bytes:
    """As JSON."""
    return json.dumps(header).encode()


def test_a_good_file_equals_its_manifest(tmp_path: Path) -> None:
    """Order does not matter, metadata and padding neither."""
    layout = layout_of(tmp_path / "x", safetensors(GOOD))
    check_layout(layout, manifest_of(dict(reversed(GOOD.items()))))  # type: ignore[arg-type]
    padded = text({"__metadata__": {"a": "b"}, "x": entry(0, 2)}) + b"      "
    assert len(layout_of(tmp_path / "y", with_header(padded, b"ab"))) == 1


BAD = {
    "empty file": b"",
    "nine bytes": bytes(9),
    "header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "header over the limit": with_header(b"{" + b" " * MAX_HEADER_BYTES + b"}"),
    "not JSON": with_header(b"{nope"),
    "not UTF-8": with_header(b'{"\xff": 1}'),
    "a list": with_header(b"[1,2]"),
    "depth bomb": with_header(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "object bomb": with_header(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "name twice": with_header(
        b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"ab",
    ),
    "key twice": with_header(b'{"x":{"dtype":"U8","dtype":"U8"}}'),
    "overlap": with_header(text({"a": entry(0, 2), "b": entry(1, 3)}), b"abc"),
    "same bytes": with_header(text({"a": entry(0, 2), "b": entry(0, 2)}), b"ab"),
    "hole": with_header(text({"a": entry(0, 2), "b": entry(3, 5)}), b"abcde"),
    "starts late": with_header(text({"a": entry(1, 3)}), b"abc"),
    "trailing bytes": with_header(text({"a": entry(0, 2)}), b"abc"),
    "cut short": with_header(text({"a": entry(0, 2)}), b"a"),
    "offsets backwards": with_header(text({"a": entry(2, 0)}), b"ab"),
    "shape is not the size": with_header(text({"a": entry(0, 2, shape=[3])}), b"ab"),
    "negative axis": with_header(text({"a": entry(0, 2, shape=[-1, -2])}), b"ab"),
    "product overflows": with_header(text({"a": entry(0, 0, shape=[1 << 62, 4, 0])})),
    "product wraps to the size": with_header(
        text({"a": entry(0, 2, shape=[(1 << 63) + 1, 2])}), b"ab"
    ),
    "float axis": with_header(text({"a": entry(0, 2, shape=[2.0])}), b"ab"),
    "true as axis": with_header(text({"a": entry(0, 1, shape=[True])}), b"a"),
    "huge integer": with_header(b'{"a":' + b"9" * 5000 + b"}"),
    "NaN offset": with_header(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[NaN,1]}}', b"a"),
    "unknown dtype": with_header(text({"a": entry(0, 2, dtype="F4")}), b"ab"),
    "dtype as number": with_header(text({"a": entry(0, 2, dtype=2)}), b"ab"),
    "extra key": with_header(text({"a": {**entry(0, 2), "url": "file:///"}}), b"ab"),
    "missing key": with_header(text({"a": {"dtype": "U8", "shape": [2]}}), b"ab"),
    "metadata of numbers": with_header(text({"__metadata__": {"a": 1}})),
    "empty name": with_header(text({"": entry(0, 2)}), b"ab"),
    "long name": with_header(text({"n" * 257: entry(0, 2)}), b"ab"),
    "half an emoji as name": with_header(
        b'{"\\ud83d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"a"
    ),
    "too many tensors": with_header(text({f"t{i}": entry(0, 0, shape=[0]) for i in range(4097)})),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused(tmp_path: Path, name: str) -> None:
    """BAD_TENSORS, and no other exception, for every way to be wrong."""
    with pytest.raises(MeshError) as caught:
        layout_of(tmp_path / "x", BAD[name])
    assert caught.value.reason is Reason.BAD_TENSORS


OTHERS: dict[str, Tensors] = {
    "another name": {**GOOD, "latent": GOOD["latents"]},
    "another dtype": {**GOOD, "audio_latents": ("F16", (4,), bytes(8))},
    "another shape": {**GOOD, "latents": ("F32", (3, 2), bytes(24))},
    "one less": {"latents": GOOD["latents"]},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_manifest_that_is_not_the_header_is_refused(tmp_path: Path, name: str) -> None:
    """Names, dtypes and shapes all count."""
    layout = layout_of(tmp_path / "x", safetensors(GOOD))
    with pytest.raises(MeshError) as caught:
        check_layout(layout, manifest_of(OTHERS[name]))  # type: ignore[arg-type]
    assert caught.value.reason is Reason.BAD_TENSORS
