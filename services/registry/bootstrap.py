"""The local owner and its key file, so that a mesh on one machine is usable at once."""

import json
import os
from pathlib import Path

from sqlmodel import Session

from services.common.transfer.records import sync_folder
from services.registry.database import Database
from services.registry.records.owners import (
    create_key,
    create_owner,
    find_by_name,
    find_by_secret,
)

LOCAL_OWNER = "local"


async def bootstrap_local_owner(database: Database, key_file: Path, address: str) -> None:
    """See to it that `key_file` (mode 0600) holds {"address", "owner_id", "key"} that work.

    A key that this database knows is kept; otherwise, as with a new database, one is made for the
    owner "local", an admin without limits.
    """
    known = _read(key_file)

    def ensure(session: Session) -> dict[str, str]:
        owner = find_by_secret(session, known.get("key", ""))
        if owner is not None:
            return {"address": address, "owner_id": owner.owner_id, "key": known["key"]}
        local = find_by_name(session, LOCAL_OWNER)
        if local is None:
            local = create_owner(session, LOCAL_OWNER, admin=True)
            local.max_running = local.max_waiting = -1
        _, secret = create_key(session, local.owner_id, f"made for {key_file.name}")
        return {"address": address, "owner_id": local.owner_id, "key": secret}

    wanted = await database.write(ensure)
    if wanted != known:
        _write(key_file, wanted)


def _read(key_file: Path) -> dict[str, str]:
    try:
        content = json.loads(key_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(key_file: Path, content: dict[str, str]) -> None:
    key_file.parent.mkdir(parents=True, exist_ok=True)
    draft = key_file.with_name(f".{key_file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(key_file)
    sync_folder(key_file.parent)
