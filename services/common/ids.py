"""Ids: opaque, lower-case, made by whoever the design says makes them.

An id names files, so nothing that is not exactly of this form ever becomes a path.
"""

import re
import secrets
from typing import Literal

Kind = Literal["job", "art", "up", "bun", "own", "key", "run", "boot", "jrn", "rul"]

_ID = re.compile(r"^(job|art|up|bun|own|key|run|boot|jrn|rul)_[0-9a-f]{32}$")
_INSTANCE = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")


def new_id(kind: Kind) -> str:
    """A fresh id, for example "job_0123…" with 32 random hexadecimal digits."""
    return f"{kind}_{secrets.token_hex(16)}"


def is_id(kind: Kind, text: str) -> bool:
    """Whether `text` has the exact form of an id of this kind."""
    match = _ID.match(text)
    return match is not None and match.group(1) == kind and len(text) == len(kind) + 33


def is_instance_id(text: str) -> bool:
    """Whether `text` can name an instance: lower-case letters, digits, '.', '_', '-'."""
    return _INSTANCE.match(text) is not None


def new_secret(prefix: str) -> str:
    """A fresh secret of 256 bits, for example "rmk_…" for an API key."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"
