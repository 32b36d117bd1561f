"""Who may move bytes to the registry: a decode run, with the lease of its own binding."""

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role, require_role
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.store import bundle_not_found
from services.registry.database import Database
from services.registry.records import artifacts


class RegistryGate:
    """A lease opens and writes; nothing is read or deleted from outside."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
        """Never: artifacts are downloaded, by their owners."""
        require_role(Role.STAGE)
        raise bundle_not_found()

    async def may_delete(self, bundle_id: str, read_token: str) -> StoredBundle | None:
        """Never."""
        require_role(Role.STAGE)
        raise bundle_not_found()


def require_lease(lease: transfer_pb2.Lease) -> None:
    """An upload here always belongs to a run."""
    if not lease.run_id:
        raise MeshError(Reason.STALE_RUN, "an upload to the registry needs a run's lease")
