"""Who a client is: the owner of its key."""

from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Identity, Role
from services.registry.database import Database
from services.registry.records.owners import find_key


class KeyAccess:
    """Authenticates the client listener's callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def authenticate(self, key: str) -> Identity:
        """The key's owner, or UNAUTHENTICATED, whatever is wrong with the key."""
        found = await self._database.read(lambda session: find_key(session, key))
        if found is None:
            raise MeshError(Reason.UNAUTHENTICATED, "the API key is not valid here")
        known, owner = found
        telemetry.bind(owner_id=owner.owner_id)
        return Identity(Role.CLIENT, owner.owner_id, owner.admin, known.key_id)
