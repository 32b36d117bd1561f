"""The finished bundles of one disk: a file each, and beside it a record of what it is.

A bundle is visible when both are there and the file has its size. The record is synced first,
then the file is renamed to its place: a crash in between leaves a record without a file, which the
next start removes.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from google.protobuf import json_format

from reelmesh.v1 import transfer_pb2
from services.common.ids import is_id
from services.common.transfer.records import read_record, sync_folder, write_record

log = structlog.get_logger()


@dataclass(frozen=True)
class StoredBundle:
    """A finished bundle. `bundle` holds the read token: strip it before it goes to others."""

    bundle: transfer_pb2.Bundle
    block_sums: tuple[int, ...]
    upload_id: str = ""
    run_id: str = ""

    def public(self) -> transfer_pb2.Bundle:
        """The bundle without its read token."""
        answer = transfer_pb2.Bundle()
        answer.CopyFrom(self.bundle)
        answer.ClearField("read_token")
        return answer

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "bundle": json_format.MessageToDict(self.bundle, preserving_proto_field_name=True),
            "block_crc32c": list(self.block_sums),
            "upload_id": self.upload_id,
            "run_id": self.run_id,
        }


def parse_stored(record: dict[str, Any]) -> StoredBundle:
    """The bundle of a record. Raises KeyError or ValueError if it is no such record."""
    try:
        bundle = json_format.ParseDict(record["bundle"], transfer_pb2.Bundle())
    except (json_format.ParseError, TypeError) as error:
        raise ValueError(str(error)) from error
    sums = tuple(int(value) for value in record["block_crc32c"])
    return StoredBundle(bundle, sums, str(record["upload_id"]), str(record["run_id"]))


# Instead of a run's id: a copy that only the process which made it needs.
TEMPORARY = "temporary"


class BundleFolder:
    """Bundles by id, in a folder. Safe to use from several threads of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bundles: dict[str, StoredBundle] = {}
        self._of_upload: dict[str, str] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Find what is there and remove what is not whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.iterdir()):
            if path.suffix == ".json" and is_id("bun", path.stem):
                self._load(path)
        for path in sorted(self._folder.iterdir()):
            if path.suffix not in (".bin", ".json") or path.stem not in self._bundles:
                path.unlink()

    def _load(self, path: Path) -> None:
        try:
            stored = parse_stored(read_record(path) or {})
            whole = self.path(path.stem).stat().st_size == stored.bundle.size_bytes
        except (KeyError, ValueError, FileNotFoundError):
            whole = False
        if whole:
            self._index(stored)
        else:
            log.warning("bundle_not_whole", bundle_id=path.stem)

    def _index(self, stored: StoredBundle) -> None:
        self._bundles[stored.bundle.bundle_id] = stored
        if stored.upload_id:
            self._of_upload[stored.upload_id] = stored.bundle.bundle_id

    def path(self, bundle_id: str) -> Path:
        """Where a bundle's bytes lie. Only for ids that were found or made here."""
        return self._folder / f"{bundle_id}.bin"

    def publish(self, file: Path, stored: StoredBundle) -> None:
        """Make `file`, whole and synced and on the same disk, visible as this bundle."""
        bundle_id = stored.bundle.bundle_id
        if stored.run_id == TEMPORARY:
            # Without a record the next `open` removes it, as it should: nothing needs a sync.
            file.rename(self.path(bundle_id))
            with self._lock:
                self._index(stored)
            return
        record = self._folder / f"{bundle_id}.json"
        write_record(record, stored.record())
        try:
            file.rename(self.path(bundle_id))
        except OSError:
            record.unlink()
            raise
        with self._lock:
            self._index(stored)
        sync_folder(self._folder)

    def find(self, bundle_id: str) -> StoredBundle | None:
        """The bundle with this id, if it is an id at all."""
        return self._bundles.get(bundle_id)

    def of_upload(self, upload_id: str) -> StoredBundle | None:
        """The bundle that an upload became."""
        return self._bundles.get(self._of_upload.get(upload_id, ""))

    def delete(self, bundle_id: str) -> None:
        """Delete a bundle; one that is gone already is no error. Open readers read on."""
        with self._lock:
            stored = self._bundles.pop(bundle_id, None)
            if stored is None:
                return
            self._of_upload.pop(stored.upload_id, None)
        self.path(bundle_id).unlink(missing_ok=True)
        self.path(bundle_id).with_suffix(".json").unlink(missing_ok=True)
        if stored.run_id != TEMPORARY:
            sync_folder(self._folder)

    def list(self) -> list[StoredBundle]:
        """All bundles, oldest first."""
        with self._lock:
            found = list(self._bundles.values())
        return sorted(
            found,
            key=lambda stored: (
                stored.bundle.create_time.ToNanoseconds(),
                stored.bundle.bundle_id,
            ),
        )
