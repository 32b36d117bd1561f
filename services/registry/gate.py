"""Who may move bytes to and from the registry: a decode run with the lease of its own binding, and
whoever was given the token of one of our copies.
"""

import asyncio
import hmac

from reelmesh.v1 import transfer_pb2
from services.common.ids import is_id
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role, require_role
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.store import bundle_not_found
from services.registry.database import Database
from services.registry.records import artifacts
from services.registry.records.copies import forget_copy
from services.registry.shelf import Shelf


class RegistryGate:
    """A lease opens and writes; a token reads a copy; nothing is deleted from outside."""

    def __init__(self, database: Database, shelf: Shelf) -> None:
        self._database = database
        self._shelf = shelf

    async def may_write(self, lease: transfer_pb2.Lease) -> None:
        """STALE_RUN without a valid lease, JOB_ENDED after a cancel.

        GetUpload asks with an empty lease: the upload's own id is what opens it then.
        """
        require_role(Role.STAGE)
        if not lease.run_id and not lease.token:
            return
        run, job = await self._database.read(
            lambda session: artifacts.check_lease(session, lease.run_id, lease.token)
        )
        artifacts.check_publishable(run, job)

    async def may_read(self, bundle_id: str, read_token: str) -> StoredBundle:
        """A copy, with its token. Artifacts are downloaded, by their owners."""
        require_role(Role.STAGE)
        stored = await asyncio.to_thread(self._shelf.find, bundle_id)
        if stored is None and is_id("bun", bundle_id):
            # If a row names it, its file has gone: nobody is to be sent here for it again.
            await self._database.write(lambda session: forget_copy(session, bundle_id, read_token))
        # Compared also when there is no copy, so that the time tells nothing either.
        secret = stored.bundle.read_token if stored else "none"
        opened = hmac.compare_digest(secret.encode(), read_token.encode())
        if stored is None or not opened:
            raise bundle_not_found()
        return stored

    async def may_delete(self, bundle_id: str, read_token: str) -> StoredBundle | None:
        """Never."""
        require_role(Role.STAGE)
        raise bundle_not_found()


def require_lease(lease: transfer_pb2.Lease) -> None:
    """An upload here always belongs to a run."""
    if not lease.run_id:
        raise MeshError(Reason.STALE_RUN, "an upload to the registry needs a run's lease")
