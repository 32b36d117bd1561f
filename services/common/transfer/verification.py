"""The last look at a whole file before it may become a bundle, alike for every way in."""

import os
from concurrent.futures import wait

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.digest import RunningDigest
from services.common.transfer.finite import check_finite
from services.common.transfer.manifest import holds_tensors
from services.common.transfer.pools import SYNCING
from services.common.transfer.space import disk_errors
from services.common.transfer.tensors import check_layout, read_layout


def verify_file(
    descriptor: int,
    manifest: transfer_pb2.Manifest,
    size_bytes: int,
    digest: RunningDigest,
    sha256: bytes,
) -> None:
    """Check size, SHA-256 and tensors, and sync the file.

    Raises SIZE_MISMATCH, DIGEST_MISMATCH, BAD_TENSORS, NON_FINITE, DISK_FULL.
    """
    found = os.fstat(descriptor).st_size
    if not found == digest.size_bytes == size_bytes:
        raise MeshError(Reason.SIZE_MISMATCH, f"the file has {found} bytes, not {size_bytes}")
    if digest.sha256() != sha256:
        raise MeshError(Reason.DIGEST_MISMATCH, "the bytes are not those of the SHA-256")
    # The disk works while the tensors are looked at.
    syncing = SYNCING.submit(os.fsync, descriptor)
    try:
        if holds_tensors(manifest):
            layout = read_layout(descriptor)
            check_layout(layout, manifest)
            check_finite(descriptor, layout)
    finally:
        wait([syncing])  # the descriptor must stay open for it
    with disk_errors():
        syncing.result()
