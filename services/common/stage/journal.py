"""A stage's own durable record of its runs: one append-only file, one holder at a time.

Every line is the whole state of one run; the last line of a run counts. A line is durable before
`append` returns, so whatever a caller was told about a run survives the process. The file's first
line is the journal's own id: only the journal that took a run can say what became of it.
"""

import errno
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.common.files import DamagedFile
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason

_REWRITE_LINES = 10_000  # above that, a start rewrites the file with one line a run


class JournalHeld(Exception):
    """Another process holds this journal."""


class Journal:
    """The journal in a folder. `open` first; then `append`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "journal.jsonl"
        self._lock: int | None = None
        self._file: int | None = None
        self.journal_id = ""

    def open(self) -> dict[str, dict[str, Any]]:
        """Lock the journal and read it: the last record of every run, oldest run first.

        A torn last line, as a crash during a write leaves it, was never told to anyone and is cut.
        Raises JournalHeld if another process has it open, DamagedFile for any other line that is
        not a record.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._folder / "journal.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JournalHeld(
                f"another process works in {self._folder}; stop it, or give this one another "
                "instance id or home"
            ) from None
        records, lines = self._read()
        if lines > _REWRITE_LINES or not self.journal_id:
            self._rewrite(records)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        return records

    def append(self, run_id: str, record: Mapping[str, Any]) -> None:
        """Write the whole state of a run and sync it. DISK_FULL leaves the file as it was."""
        if self._file is None:
            raise RuntimeError("the journal is not open")
        line = json.dumps({"run_id": run_id, **record}, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, "the line did not fit")
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, before)
            raise MeshError(Reason.DISK_FULL, f"the journal cannot grow: {error}") from error

    def close(self) -> None:
        """Let another process have it."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def _read(self) -> tuple[dict[str, dict[str, Any]], int]:
        records: dict[str, dict[str, Any]] = {}
        if not self._path.exists():
            return records, 0
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        lines = whole.splitlines()
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
                if number == 0:
                    self.journal_id = str(record["journal_id"])
                else:
                    records[str(record.pop("run_id"))] = record
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._damaged(number + 1, error) from error
        return records, len(lines)

    def _damaged(self, line: int, error: Exception) -> DamagedFile:
        return DamagedFile(
            f"{self._path}, line {line}, is no record of a run ({type(error).__name__}: {error}): "
            "nothing is guessed about what this instance did. Restore the file, or move its folder "
            "away: then the instance begins anew, and its runs in doubt have to be ruled on "
            "(`reelmesh resolve`)"
        )

    def _rewrite(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        self.journal_id = self.journal_id or new_id("jrn")
        draft = self._path.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"journal_id": self.journal_id}) + "\n")
            for run_id, record in records.items():
                file.write(json.dumps({"run_id": run_id, **record}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
