"""Finds NaN and infinity in the float tensors of a file, without torch and in bounded memory.

A value is not finite when all bits of its exponent are set; that is one AND and one maximum a
block, for every float type alike. F8_E4M3 (the "fn" kind) has no infinity: its only NaNs have
exponent and mantissa all set (https://arxiv.org/abs/2209.05433, table 1).
"""

import os
from collections.abc import Iterable, Mapping

import numpy as np

from reelmesh.v1.transfer_pb2 import Dtype
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.tensors import PlacedTensor

# Element as an unsigned integer, and the bits that are all set in NaN and infinity.
_NON_FINITE: Mapping[int, tuple[str, int]] = {
    Dtype.DTYPE_F16: ("<u2", 0x7C00),
    Dtype.DTYPE_BF16: ("<u2", 0x7F80),
    Dtype.DTYPE_F32: ("<u4", 0x7F80_0000),
    Dtype.DTYPE_F64: ("<u8", 0x7FF0_0000_0000_0000),
    Dtype.DTYPE_F8_E4M3: ("u1", 0x7F),
    Dtype.DTYPE_F8_E5M2: ("u1", 0x7C),
}
# Fits a core's second-level cache together with the masked copy.
_BLOCK_BYTES = 256 << 10


def check_finite(descriptor: int, layout: Iterable[PlacedTensor]) -> None:
    """Raise NON_FINITE, naming the tensor, if a float tensor of the file holds NaN or infinity."""
    block = bytearray(_BLOCK_BYTES)
    masked = bytearray(_BLOCK_BYTES)
    for tensor in layout:
        if tensor.dtype in _NON_FINITE:
            _check_tensor(descriptor, tensor, block, masked)


def _check_tensor(
    descriptor: int, tensor: PlacedTensor, block: bytearray, masked: bytearray
) -> None:
    element, bits = _NON_FINITE[tensor.dtype]
    mask = np.dtype(element).type(bits)
    for start in range(0, tensor.size_bytes, _BLOCK_BYTES):
        wanted = min(_BLOCK_BYTES, tensor.size_bytes - start)
        # Read, not mapped: a mapped file that shrinks kills the process.
        if os.preadv(descriptor, [memoryview(block)[:wanted]], tensor.offset + start) != wanted:
            raise MeshError(Reason.BAD_TENSORS, f"tensor {tensor.name!r} is cut short")
        values = np.frombuffer(block, element, wanted // np.dtype(element).itemsize)
        exponents = np.frombuffer(masked, element, len(values))
        np.bitwise_and(values, mask, out=exponents)
        if exponents.max() == mask:
            raise MeshError(
                Reason.NON_FINITE,
                f"tensor {tensor.name!r} holds NaN or infinity",
                info={"tensor": tensor.name[:64]},
            )
