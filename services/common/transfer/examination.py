"""What a finished file is: its manifest from its own header, its digest, and that it is sound."""

import os
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.transfer.digest import RunningDigest, digest_file
from services.common.transfer.manifest import check_manifest, holds_tensors
from services.common.transfer.tensors import read_layout
from services.common.transfer.verification import verify_file


def examine(
    path: Path, kind: int, clip: transfer_pb2.Clip | None, media_type: str
) -> tuple[transfer_pb2.Manifest, RunningDigest]:
    """The manifest and the digest of the file at `path`, which is synced.

    Raises BAD_MANIFEST, BAD_TENSORS, NON_FINITE, DISK_FULL.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        manifest = transfer_pb2.Manifest(
            kind=transfer_pb2.BundleKind.Name(kind), media_type=media_type, clip=clip
        )
        if holds_tensors(manifest):
            manifest.tensors.extend(tensor.spec() for tensor in read_layout(descriptor))
        size_bytes = os.fstat(descriptor).st_size
        check_manifest(manifest, size_bytes)
        digest = digest_file(descriptor, size_bytes)
        verify_file(descriptor, manifest, size_bytes, digest, digest.sha256())
    finally:
        os.close(descriptor)
    return manifest, digest
