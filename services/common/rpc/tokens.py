"""Mesh tokens: one secret per role, in a file that only its owner may read.

They make the mesh usable on one machine before certificates are set up. The file is made on
first use, so that a single stage started by hand is never open to whoever finds its port.
"""

import hmac
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from services.common.files import DamagedFile
from services.common.ids import new_secret
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Identity, Role

_ROLES = (Role.REGISTRY, Role.STAGE, Role.OPERATOR)


class MeshTokens:
    """The tokens of a mesh, role by role."""

    def __init__(self, tokens: dict[Role, str]) -> None:
        self._tokens = tokens

    def of(self, role: Role) -> str:
        """The token to show as this role."""
        return self._tokens[role]

    async def authenticate(self, token: str) -> Identity:
        """Whose token this is; UNAUTHENTICATED if it is nobody's. Takes the same time for all."""
        found: Role | None = None
        for role, known in self._tokens.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = role
        if found is None:
            raise MeshError(Reason.UNAUTHENTICATED, "the mesh token is not valid here")
        return Identity(role=found)


def load_tokens(path: Path) -> MeshTokens:
    """The tokens in `path`, made there (mode 0600) if there is no such file.

    Raises DamagedFile if it holds something else.
    """
    if not path.exists():
        _make(path)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return MeshTokens({role: str(stored[role.value]) for role in _ROLES})
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            f"{path} does not hold the mesh's tokens ({type(error).__name__}: {error}): restore "
            "it, or delete it and start every service of this mesh anew"
        ) from error


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".tokens-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({role.value: new_secret("rmt") for role in _ROLES}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        # A hard link fails if the file is there: of several starting processes one wins.
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
