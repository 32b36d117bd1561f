"""Which registry the command speaks to, and with which key."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from services.common.config import ServiceSettings, load_settings

KEY_FILE = "client.json"


class NoAccess(Exception):
    """No address or no key was found; says what to do."""


@dataclass(frozen=True)
class Access:
    """Where to call and as whom."""

    address: str
    key: str


def find_access(home: Path | None) -> Access:
    """From REELMESH_ADDRESS and REELMESH_KEY, and what they leave open from the home's key file."""
    address, key = os.environ.get("REELMESH_ADDRESS", ""), os.environ.get("REELMESH_KEY", "")
    if address and key:
        return Access(address, key)
    folder = home.expanduser() if home else load_settings(ServiceSettings).home_folder
    path = folder / KEY_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Access(address or str(stored["address"]), key or str(stored["key"]))
    except FileNotFoundError:
        raise NoAccess(
            f"no key: {path} does not exist. Start a mesh with `reelmesh up`, name its home with "
            "--home, or set REELMESH_ADDRESS and REELMESH_KEY."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoAccess(f"cannot read the key file {path}: {error}") from error
