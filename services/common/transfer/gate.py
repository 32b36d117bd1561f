"""Who may move which bundle. The rules differ between stages and the registry; the moves do not."""

import hmac
from typing import Protocol

from reelmesh.v1 import transfer_pb2
from services.common.ids import is_id
from services.common.rpc.identity import Role, caller, require_role
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.store import BundleStore, bundle_not_found


class Gate(Protocol):
    """Answers by raising the MeshError that the caller gets. Knows the caller by its identity."""

    async def may_write(self, lease: transfer_pb2.Lease) -> None:
        """Whether the caller may open an upload, or write to one that it can name."""

    async def may_read(self, bundle_id: str, read_token: str) -> StoredBundle:
        """The bundle, if the caller may read it."""

    async def may_delete(self, bundle_id: str, read_token: str) -> StoredBundle | None:
        """The bundle, if the caller may delete it; None if it is gone and the caller may know."""


class StageGate:
    """A stage's rules: the mesh may write; a bundle's read token or the registry opens it."""

    def __init__(self, store: BundleStore) -> None:
        self._store = store

    async def may_write(self, lease: transfer_pb2.Lease) -> None:
        require_role(Role.REGISTRY, Role.STAGE, Role.OPERATOR)

    async def may_read(self, bundle_id: str, read_token: str) -> StoredBundle:
        stored = self._store.find(bundle_id)
        # Compared also when there is no bundle, so that the time tells nothing either.
        secret = stored.bundle.read_token if stored else "none"
        opened = hmac.compare_digest(secret.encode(), read_token.encode())
        if stored is None or not (opened or caller().role is Role.REGISTRY):
            raise bundle_not_found()
        return stored

    async def may_delete(self, bundle_id: str, read_token: str) -> StoredBundle | None:
        if caller().role is Role.REGISTRY and is_id("bun", bundle_id):
            return self._store.find(bundle_id)
        return await self.may_read(bundle_id, read_token)
