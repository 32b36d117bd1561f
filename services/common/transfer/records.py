"""Small JSON files beside big ones: replaced whole and synced, or left as they were."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Put `record` at `path`; a crash leaves the old one or the new one, never half of one.

    The folder is not synced: who needs the name itself to be durable calls `sync_folder`.
    """
    draft = path.with_name(f"{path.name}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read_record(path: Path) -> dict[str, Any] | None:
    """The record at `path`; None if there is none or it is not whole."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
