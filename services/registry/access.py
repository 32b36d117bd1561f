"""Who a client is: the owner of its key."""

from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Identity, Role
from services.registry.database import Database
from services.registry.records.owners import find_by_secret


class KeyAccess:
    """Authenticates the client listener's callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def authenticate(self, key: str) -> Identity:
        """The key's owner, or UNAUTHENTICATED, whatever is wrong with the key."""
        owner = await self._database.read(lambda session: find_by_secret(session, key))
        if owner is None:
            raise MeshError(Reason.UNAUTHENTICATED, "the API key is not valid here")
        telemetry.bind(owner_id=owner.owner_id)
        return Identity(role=Role.CLIENT, owner_id=owner.owner_id, admin=owner.admin)
