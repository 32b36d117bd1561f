"""A file that is being written, and how much of it is safe.

Bytes count as safe once they were synced. With every sync the file's digest is remembered, so that
a write that fails can be taken back to the last safe byte without reading the file again. SHA-256
and syncing run in threads of their own beside the writing.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError
from services.common.transfer.digest import RunningDigest, digest_file
from services.common.transfer.pools import HASHING, SYNCING
from services.common.transfer.space import disk_errors
from services.common.transfer.verification import verify_file

# A sync costs milliseconds: often enough to resume well, seldom enough not to be felt.
SYNC_BYTES = 8 << 20


class PartialFile:
    """The file at `path`. `on_safe` is called, from a thread, with every new safe size.

    Not safe to use from several threads at once. Every method blocks.
    """

    def __init__(self, path: Path, on_safe: Callable[[int], None]) -> None:
        self.path = path
        self.safe_bytes = 0
        self._on_safe = on_safe
        self._file = -1
        self._digest = RunningDigest()
        self._safe = RunningDigest()
        self._syncing: Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._file >= 0

    def create(self) -> None:
        """Make it, empty. Raises DISK_FULL."""
        with disk_errors():
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def open(self) -> None:
        """Open it after its last safe byte; what an earlier process wrote is hashed again."""
        self._file = os.open(self.path, os.O_RDWR)
        if self._safe.size_bytes != self.safe_bytes:
            self._safe = digest_file(self._file, self.safe_bytes)
            self.safe_bytes = self._safe.size_bytes
        self._take_back()

    def append(self, data: bytes, crc32c: int | None = None) -> None:
        """Write bytes at the end. A failure, DISK_FULL for one, leaves what was safe."""
        hashing = HASHING.submit(self._digest.update, data, crc32c)
        try:
            try:
                self._write(data)
            finally:
                hashing.result()
            self._sync_sometimes()
        except (OSError, MeshError):
            self._take_back()
            raise

    def _write(self, data: bytes) -> None:
        with disk_errors():
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]

    def settle(self) -> None:
        """Make all that was written safe."""
        try:
            self._end_sync()
            if self._digest.size_bytes != self.safe_bytes:
                self._begin_sync()
                self._end_sync()
        except (OSError, MeshError):
            self._take_back()
            raise

    def _sync_sometimes(self) -> None:
        """Begin a sync every SYNC_BYTES; wait for it when twice that is not safe."""
        unsafe = self._digest.size_bytes - self.safe_bytes
        if unsafe < SYNC_BYTES:
            return
        if self._syncing is not None and (unsafe >= 2 * SYNC_BYTES or self._syncing.done()):
            self._end_sync()
        if self._syncing is None:
            self._begin_sync()

    def _begin_sync(self) -> None:
        self._syncing = SYNCING.submit(self._sync, self._digest.copy())

    def _sync(self, covered: RunningDigest) -> None:
        with disk_errors():
            os.fdatasync(self._file)
            self._on_safe(covered.size_bytes)
        self._safe, self.safe_bytes = covered, covered.size_bytes

    def _end_sync(self) -> None:
        """Wait for the sync that was begun, if one was."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def _take_back(self) -> None:
        """Return to the last byte that is surely on the disk."""
        with suppress(OSError, MeshError):
            self._end_sync()
        os.ftruncate(self._file, self.safe_bytes)
        os.lseek(self._file, 0, os.SEEK_END)
        self._digest = self._safe.copy()

    def seal(
        self, manifest: transfer_pb2.Manifest, size_bytes: int, sha256: bytes
    ) -> RunningDigest:
        """Verify the whole, sync it, and give its digest. Raises what `verify_file` raises."""
        try:
            verify_file(self._file, manifest, size_bytes, self._digest, sha256)
        except (OSError, MeshError):
            self._take_back()  # after a sync that failed nothing unsynced can be trusted
            raise
        return self._digest

    def close(self) -> None:
        """Close it. Repeating it does nothing."""
        if self._syncing is not None:
            wait([self._syncing])
            self._syncing = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
