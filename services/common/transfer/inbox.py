"""The unfinished uploads of one disk, by id: opened, found again after a restart, expired."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from google.protobuf import json_format

from reelmesh.v1 import transfer_pb2
from services.common.ids import is_id, new_id
from services.common.transfer.manifest import check_manifest
from services.common.transfer.records import read_record, sync_folder
from services.common.transfer.space import DiskSpace, disk_errors
from services.common.transfer.uploads import Upload, upload_not_found


class Inbox:
    """Uploads in a folder. Safe to use from several threads of one process."""

    def __init__(
        self, folder: Path, space: DiskSpace, ttl: timedelta, clock: Callable[[], datetime]
    ) -> None:
        self._folder = folder
        self._space = space
        self._ttl = ttl
        self._clock = clock
        self._uploads: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Take over resumable uploads and remove everything else."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.glob("up_*.json")):
            self._restore(path)
        for path in self._folder.iterdir():
            if path.suffix not in (".part", ".json") or path.stem not in self._uploads:
                path.unlink()
        self.sweep(self._clock())

    def _restore(self, path: Path) -> None:
        record = read_record(path)
        if record is None or not is_id("up", path.stem) or not self._part(path.stem).exists():
            return
        try:
            manifest = json_format.ParseDict(record["manifest"], transfer_pb2.Manifest())
            size_bytes, run_id = int(record["size_bytes"]), str(record["run_id"])
            upload = self._new(path.stem, manifest, size_bytes, run_id, durable=True)
            upload.restore(record)
        except (KeyError, ValueError, TypeError, json_format.ParseError):
            return  # not a record of ours: what has no entry is removed
        self._uploads[upload.upload_id] = upload

    def _part(self, upload_id: str) -> Path:
        return self._folder / f"{upload_id}.part"

    def _new(
        self,
        upload_id: str,
        manifest: transfer_pb2.Manifest,
        size_bytes: int,
        run_id: str,
        *,
        durable: bool,
    ) -> Upload:
        return Upload(
            upload_id,
            self._part(upload_id),
            manifest,
            size_bytes,
            space=self._space,
            clock=self._clock,
            run_id=run_id,
            record_path=self._folder / f"{upload_id}.json" if durable else None,
        )

    def start(
        self, manifest: transfer_pb2.Manifest, size_bytes: int, run_id: str, *, durable: bool
    ) -> Upload:
        """Open an upload. Raises BAD_MANIFEST, DISK_FULL."""
        check_manifest(manifest, size_bytes)
        upload = self._new(new_id("up"), manifest, size_bytes, run_id, durable=durable)
        upload.create()
        if durable:
            with disk_errors():
                sync_folder(self._folder)
        with self._lock:
            self._uploads[upload.upload_id] = upload
        return upload

    def find(self, upload_id: str) -> Upload:
        """The upload with this id, or UPLOAD_NOT_FOUND. Text that is no id is just not found."""
        upload = self._uploads.get(upload_id)
        if upload is None or upload.gone:
            raise upload_not_found()
        return upload

    def expire_time(self, upload: Upload) -> datetime:
        """When the upload is deleted if nothing more arrives."""
        return upload.touched + self._ttl

    def sweep(self, now: datetime) -> None:
        """Delete uploads that have expired, and forget those that ended."""
        with self._lock:
            uploads = list(self._uploads.values())
        for upload in uploads:
            if self.expire_time(upload) <= now:
                upload.discard()
        with self._lock:
            self._uploads = {
                upload_id: upload for upload_id, upload in self._uploads.items() if not upload.gone
            }
