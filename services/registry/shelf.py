"""Copies of outputs as files that every registry on the same store can read.

Nothing is kept in memory: a copy is there if its record and its whole file are.
"""

import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from services.common.ids import is_id
from services.common.transfer.bundles import StoredBundle, parse_stored
from services.common.transfer.records import read_record, sync_folder, write_record


class Shelf:
    """Copies in a folder, by bundle id. Everything here blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, bundle_id: str) -> Path:
        """Where a copy's bytes lie. Only for ids that were found here."""
        return self._folder / f"{bundle_id}.bin"

    def put(self, file: Path, stored: StoredBundle) -> None:
        """Have a synced file on the same disk here too, under its bundle's id."""
        bundle_id = stored.bundle.bundle_id
        os.link(file, self.path(bundle_id))
        write_record(self._record(bundle_id), stored.record())
        sync_folder(self._folder)

    def find(self, bundle_id: str) -> StoredBundle | None:
        """The copy with this id, if it is an id at all and the copy is whole."""
        if not is_id("bun", bundle_id):
            return None
        try:
            stored = parse_stored(read_record(self._record(bundle_id)) or {})
            whole = self.path(bundle_id).stat().st_size == stored.bundle.size_bytes
        except (KeyError, ValueError, FileNotFoundError):
            return None
        return stored if whole else None

    def delete(self, bundle_id: str) -> None:
        """Delete a copy; one that is gone is no error. Open readers read on."""
        self._record(bundle_id).unlink(missing_ok=True)
        self.path(bundle_id).unlink(missing_ok=True)

    def remove_strays(self, known: Iterable[str], now: datetime, age: timedelta) -> None:
        """Delete copies that no row names and that are too old to be on their way into one."""
        kept = set(known)
        for file in self._folder.iterdir():
            bundle_id = file.name.partition(".")[0]
            if bundle_id not in kept and _is_older(file, now - age):
                file.unlink(missing_ok=True)

    def missing(self, known: Iterable[str]) -> list[str]:
        """Those of the ids that have no whole copy here."""
        return [bundle_id for bundle_id in known if self.find(bundle_id) is None]

    def _record(self, bundle_id: str) -> Path:
        return self._folder / f"{bundle_id}.json"


def _is_older(file: Path, than: datetime) -> bool:
    try:
        # Of its inode's last change: a link is one, though the bytes are older.
        return file.stat().st_ctime < than.timestamp()
    except FileNotFoundError:
        return False
