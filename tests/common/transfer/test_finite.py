"""NaN and infinity are found in every float type, anywhere, and nothing else is mistaken."""

import os
from pathlib import Path

import pytest

from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.finite import check_finite
from services.common.transfer.tensors import read_layout
from tests.common.transfer.harness import ITEM, Tensors, safetensors

# Bit patterns, written little-endian: NaNs and infinities, and the largest finite values.
BAD = {
    "F16": (0x7C00, 0xFC00, 0x7E00, 0x7C01),
    "BF16": (0x7F80, 0xFF80, 0x7FC0, 0x7F81),
    "F32": (0x7F80_0000, 0xFF80_0000, 0x7FC0_0000, 0xFF80_0001),
    "F64": (0x7FF0 << 48, 0xFFF0 << 48, (0x7FF0 << 48) + 1),
    "F8_E5M2": (0x7C, 0xFC, 0x7D, 0xFF),
    "F8_E4M3": (0x7F, 0xFF),
}
FINE = {
    "F16": (0x7BFF, 0xFBFF, 0x0001),
    "BF16": (0x7F7F, 0xFF7F, 0x0001),
    "F32": (0x7F7F_FFFF, 0xFF7F_FFFF, 0x0000_0001),
    "F64": (0x7FEF << 48, 0xFFEF_FFFF_FFFF_FFFF, 1),
    "F8_E5M2": (0x7B, 0xFB, 0x01),
    "F8_E4M3": (0x7E, 0xFE, 0x78, 0xF8),  # with all exponent bits set, yet finite
    "U8": (0xFF, 0x7F),
}
COUNT = 300_000  # more than one block of every type


def check(path: Path, tensors: Tensors) -> None:
    """Look through a file."""
    path.write_bytes(safetensors(tensors))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        check_finite(descriptor, read_layout(descriptor))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("where", [0, COUNT // 2, COUNT - 1])
@pytest.mark.parametrize("dtype", BAD)
def test_one_bad_value_is_found(tmp_path: Path, dtype: str, where: int) -> None:
    """The first, a middle and the last element are all looked at; the tensor is named."""
    size = ITEM[dtype]
    for bits in BAD[dtype]:
        raw = bytearray(COUNT * size)
        raw[where * size : (where + 1) * size] = bits.to_bytes(size, "little")
        tensors: Tensors = {"odd": ("U8", (3,), b"abc"), "x": (dtype, (COUNT,), bytes(raw))}
        with pytest.raises(MeshError) as caught:
            check(tmp_path / "file", tensors)
        assert caught.value.reason is Reason.NON_FINITE
        assert caught.value.info == {"tensor": "x"}


@pytest.mark.parametrize("dtype", FINE)
def test_the_largest_values_are_fine(tmp_path: Path, dtype: str) -> None:
    """Extremes pass, and so does an empty tensor."""
    size = ITEM[dtype]
    raw = b"".join(bits.to_bytes(size, "little") for bits in FINE[dtype])
    check(tmp_path / "file", {"x": (dtype, (len(FINE[dtype]),), raw), "e": (dtype, (0,), b"")})
