"""One upload: a partial file, how much of it is safe, and whose turn it is to write.

Bytes count as persisted once they were synced. With every sync the upload remembers its digest, so
that a write that fails can be taken back to the last safe byte without reading the file again.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.digest import RunningDigest, digest_file
from services.common.transfer.pools import HASHING, SYNCING
from services.common.transfer.records import write_record
from services.common.transfer.space import DiskSpace, disk_errors
from services.common.transfer.verification import verify_file

# A sync costs milliseconds: often enough to resume well, seldom enough not to be felt.
SYNC_BYTES = 8 << 20


class Upload:
    """An unfinished file. Every method blocks; `turn` keeps streams apart.

    With a `record_path` the state survives the process; without one the upload is this process's
    own (a pull) and is synced only at its end.
    """

    def __init__(
        self,
        upload_id: str,
        part: Path,
        manifest: transfer_pb2.Manifest,
        size_bytes: int,
        *,
        space: DiskSpace,
        clock: Callable[[], datetime],
        run_id: str = "",
        record_path: Path | None = None,
    ) -> None:
        self.upload_id = upload_id
        self.part = part
        self.manifest = manifest
        self.size_bytes = size_bytes
        self.run_id = run_id
        self.persisted_bytes = 0
        self.touched = clock()
        self.lock = threading.RLock()
        self._record_path = record_path
        self._space = space
        self._clock = clock
        self._epoch = 0
        self.gone = False
        self._file = -1
        self._digest = RunningDigest()
        self._safe = RunningDigest()
        self._mark = self._safe
        self._syncing: Future[None] | None = None

    def create(self) -> None:
        """Reserve the space, make the empty partial file and its record. Raises DISK_FULL."""
        self._space.reserve(self.upload_id, self.size_bytes)
        try:
            self._create()
        except (OSError, MeshError):
            self.discard()
            raise

    def _create(self) -> None:
        with disk_errors():
            os.close(os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            self._write_record(0)

    def attach(self) -> int:
        """Begin a stream: its epoch. Older streams are refused from now on."""
        with self.lock:
            if self.gone:
                raise upload_not_found()
            self._epoch += 1
            if self._file >= 0:
                self._settle()  # what an older stream left
            else:
                self._reopen()
            return self._epoch

    def _reopen(self) -> None:
        self._file = os.open(self.part, os.O_RDWR)
        if self._safe.size_bytes != self.persisted_bytes:  # another process wrote it
            self._safe = digest_file(self._file, self.persisted_bytes)
            self.persisted_bytes = self._safe.size_bytes
        self._take_back()

    @contextmanager
    def turn(self, epoch: int) -> Iterator[None]:
        """Hold the upload for one step of the stream of this epoch, if it is still the newest."""
        with self.lock:
            if epoch != self._epoch:
                raise MeshError(Reason.WRITER_SUPERSEDED, "a newer stream writes this upload")
            if self.gone:
                raise upload_not_found()
            yield

    def append(self, data: bytes) -> None:
        """Write bytes at the end. In a turn. DISK_FULL leaves what was persisted."""
        hashing = HASHING.submit(self._digest.update, data)
        try:
            with disk_errors():
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
        except (OSError, MeshError):
            hashing.result()
            self._take_back()
            raise
        hashing.result()
        self.touched = self._clock()
        if self._syncing is not None and self._syncing.done():
            self._end_sync()
        if self._syncing is None and self._digest.size_bytes - self.persisted_bytes >= SYNC_BYTES:
            self._begin_sync()

    def detach(self) -> None:
        """End a stream: what it wrote becomes persisted. In a turn."""
        try:
            self._settle()
        finally:
            self._close()

    def _begin_sync(self) -> None:
        self._mark = self._digest.copy()
        self._syncing = SYNCING.submit(self._sync, self._mark.size_bytes)

    def _sync(self, size_bytes: int) -> None:
        with disk_errors():
            os.fdatasync(self._file)
            self._write_record(size_bytes)

    def _end_sync(self) -> None:
        """Wait for the sync that was begun: what it covers is persisted."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()
            self._safe, self.persisted_bytes = self._mark, self._mark.size_bytes
            self._space.settle(self.upload_id, self.size_bytes - self.persisted_bytes)

    def _settle(self) -> None:
        """Make all that was written persisted."""
        try:
            self._end_sync()
            if self._digest.size_bytes != self.persisted_bytes:
                self._begin_sync()
                self._end_sync()
        except (OSError, MeshError):
            self._take_back()
            raise

    def _take_back(self) -> None:
        """Return to the last byte that is surely on the disk."""
        with suppress(OSError, MeshError):
            self._end_sync()
        os.ftruncate(self._file, self.persisted_bytes)
        os.lseek(self._file, 0, os.SEEK_END)
        self._digest = self._safe.copy()

    def seal(self, sha256: bytes) -> RunningDigest:
        """Verify the whole and sync it. In a turn.

        Raises SIZE_MISMATCH, DIGEST_MISMATCH, BAD_TENSORS or NON_FINITE.
        """
        try:
            verify_file(self._file, self.manifest, self.size_bytes, self._digest, sha256)
        except (OSError, MeshError):
            self._take_back()  # after a sync that failed nothing unsynced can be trusted
            raise
        return self._digest

    def discard(self) -> None:
        """Delete the partial file and refuse every stream. Repeating it does nothing."""
        with self.lock:
            self.retire()
            self.part.unlink(missing_ok=True)

    def retire(self) -> None:
        """Forget the upload, whose file has become a bundle or is no longer wanted."""
        with self.lock:
            self.gone = True
            self._close()
            if self._record_path:
                self._record_path.unlink(missing_ok=True)
            self._space.release(self.upload_id)

    def _close(self) -> None:
        if self._syncing is not None:
            wait([self._syncing])
            self._syncing = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write_record(self, persisted_bytes: int) -> None:
        if self._record_path:
            write_record(
                self._record_path,
                {
                    "manifest": json_format.MessageToDict(self.manifest),
                    "size_bytes": self.size_bytes,
                    "persisted_bytes": persisted_bytes,
                    "run_id": self.run_id,
                    "touched": self.touched.isoformat(),
                },
            )

    def restore(self, record: dict[str, Any]) -> None:
        """Take over how far an earlier process came. Raises KeyError or ValueError."""
        self.persisted_bytes = int(record["persisted_bytes"])
        self.touched = datetime.fromisoformat(record["touched"])
        self._space.settle(self.upload_id, self.size_bytes - self.persisted_bytes)


def upload_not_found() -> MeshError:
    """Alike for every upload that is not there."""
    return MeshError(Reason.UPLOAD_NOT_FOUND, "there is no such upload")
