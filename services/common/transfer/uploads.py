"""One upload: a partial file, whose turn it is to write it, and what survives the process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.digest import RunningDigest
from services.common.transfer.partial import PartialFile
from services.common.transfer.records import write_record
from services.common.transfer.space import DiskSpace, disk_errors


class Upload:
    """An unfinished bundle. Every method blocks; `turn` keeps streams apart.

    With a `record_path` it survives the process; without one it is this process's own (a pull).
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
        self.touched = clock()
        self.lock = threading.RLock()
        self.gone = False
        self._record_path = record_path
        self._space = space
        self._clock = clock
        self._epoch = 0
        self._file = PartialFile(part, self._keep)

    @property
    def persisted_bytes(self) -> int:
        """Bytes that are synced to disk."""
        return self._file.safe_bytes

    def create(self) -> None:
        """Reserve the space, make the empty partial file and its record. Raises DISK_FULL."""
        self._space.reserve(self.upload_id, self.size_bytes)
        try:
            self._file.create()
            with disk_errors():
                self._keep(0)
        except (OSError, MeshError):
            self.discard()
            raise

    def restore(self, record: dict[str, Any]) -> None:
        """Take over how far an earlier process came. Raises KeyError, ValueError, TypeError."""
        self._file.safe_bytes = int(record["persisted_bytes"])
        self.touched = datetime.fromisoformat(record["touched"])
        self._space.settle(self.upload_id, self.size_bytes - self.persisted_bytes)

    def _keep(self, persisted_bytes: int) -> None:
        """Note durably that this much is on the disk."""
        if self._record_path is not None:
            record = {
                "manifest": json_format.MessageToDict(self.manifest),
                "size_bytes": self.size_bytes,
                "persisted_bytes": persisted_bytes,
                "run_id": self.run_id,
                "touched": self.touched.isoformat(),
            }
            write_record(self._record_path, record)
        self._space.settle(self.upload_id, self.size_bytes - persisted_bytes)

    def attach(self) -> int:
        """Begin a stream: its epoch. Older streams are refused from now on."""
        with self.lock:
            if self.gone:
                raise upload_not_found()
            self._epoch += 1
            if self._file.is_open:
                self._file.settle()  # what an older stream left
            else:
                self._file.open()
            return self._epoch

    @contextmanager
    def turn(self, epoch: int) -> Iterator[None]:
        """Hold the upload for one step of the stream of this epoch, if it is still the newest."""
        with self.lock:
            if epoch != self._epoch:
                raise MeshError(Reason.WRITER_SUPERSEDED, "a newer stream writes this upload")
            if self.gone:
                raise upload_not_found()
            yield

    def append(self, data: bytes, crc32c: int | None = None) -> None:
        """Write bytes at the end. In a turn. DISK_FULL leaves what was persisted."""
        self._file.append(data, crc32c)
        self.touched = self._clock()

    def detach(self) -> None:
        """End a stream: what it wrote becomes persisted, and no more of it comes. In a turn."""
        try:
            self._file.settle()
        finally:
            self._epoch += 1
            self._file.close()

    def seal(self, sha256: bytes) -> RunningDigest:
        """Verify the whole and sync it. In a turn.

        Raises SIZE_MISMATCH, DIGEST_MISMATCH, BAD_TENSORS or NON_FINITE.
        """
        return self._file.seal(self.manifest, self.size_bytes, sha256)

    def discard(self) -> None:
        """Delete the partial file and refuse every stream. Repeating it does nothing."""
        with self.lock:
            self.retire()
            self.part.unlink(missing_ok=True)

    def retire(self) -> None:
        """Forget the upload, whose file has become a bundle or is no longer wanted."""
        with self.lock:
            self.gone = True
            self._file.close()
            if self._record_path:
                self._record_path.unlink(missing_ok=True)
            self._space.release(self.upload_id)


def upload_not_found() -> MeshError:
    """Alike for every upload that is not there."""
    return MeshError(Reason.UPLOAD_NOT_FOUND, "there is no such upload")
