"""Where a run's input comes from: a bundle that is here, or one pulled from its producer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role, caller
from services.common.stage.order import Order
from services.common.transfer.gate import StageGate
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from services.common.work import Watch


@dataclass(frozen=True)
class Source:
    """The input of a run while it is needed; `path` is None where a stage takes none."""

    path: Path | None


class Sources:
    """Resolves and fetches inputs for one instance."""

    def __init__(
        self, store: BundleStore, instance_id: str, token: str, peers: dict[str, str]
    ) -> None:
        self._store = store
        self._gate = StageGate(store)
        self._instance_id = instance_id
        self._token = token
        self._peers = peers

    async def resolve(self, ref: transfer_pb2.BundleRef, field: str) -> transfer_pb2.BundleRef:
        """The reference with its endpoint settled. Called while the caller is known.

        An endpoint in a request is honoured only from the registry: anyone else could make this
        service call any address with its own token.
        """
        resolved = transfer_pb2.BundleRef()
        resolved.CopyFrom(ref)
        if ref.instance_id in ("", self._instance_id):
            resolved.endpoint = ""
        elif caller().role is not Role.REGISTRY:
            if ref.endpoint:
                raise MeshError(
                    Reason.INVALID_FIELD,
                    "an endpoint is honoured only from the registry; name a configured peer",
                    field=f"{field}.endpoint",
                )
            if ref.instance_id not in self._peers:
                raise MeshError(
                    Reason.INVALID_FIELD,
                    "no such peer is configured here; write the bundle to this instance instead",
                    field=f"{field}.instance_id",
                )
            resolved.endpoint = self._peers[ref.instance_id]
        elif not ref.endpoint:
            raise MeshError(
                Reason.INVALID_FIELD, "say where the bundle is", field=f"{field}.endpoint"
            )
        if not resolved.endpoint:
            await self._gate.may_read(ref.bundle_id, ref.read_token)
        return resolved

    async def fetch(self, order: Order, watch: Watch) -> AbstractAsyncContextManager[Source]:
        """The input as a file, checked to be what it should; a pulled copy is deleted after."""
        ref = order.source
        if ref is None:
            return _lend(Source(None), self._store, None)
        if not ref.endpoint:
            bundle = self._store.get(ref.bundle_id)
            check_input(bundle.manifest, order)
            return _lend(Source(self._store.path(bundle.bundle_id)), self._store, None)
        peer = Peer(ref.endpoint, self._token)
        try:
            copy = await pull(
                peer,
                ref,
                self._store,
                accept=lambda manifest: check_input(manifest, order),
                progress=lambda done, total: watch.report("pull", done, total),
                temporary=True,
            )
        finally:
            await peer.close()
        return _lend(Source(self._store.path(copy.bundle_id)), self._store, copy.bundle_id)


def check_input(manifest: transfer_pb2.Manifest, order: Order) -> None:
    """INPUT_MISMATCH unless a bundle is of the kind, and of the clip, that the order is for."""
    if manifest.kind != order.source_kind:
        kind = transfer_pb2.BundleKind.Name(order.source_kind)
        raise MeshError(Reason.INPUT_MISMATCH, f"the input is not a bundle of {kind}")
    if manifest.HasField("clip") and manifest.clip != order.clip:
        made, asked = (
            f"{clip.width}x{clip.height}, {clip.frames} frames"
            for clip in (manifest.clip, order.clip)
        )
        raise MeshError(Reason.INPUT_MISMATCH, f"the input was made for {made}, not for {asked}")


@asynccontextmanager
async def _lend(source: Source, store: BundleStore, copy: str | None) -> AsyncIterator[Source]:
    try:
        yield source
    finally:
        if copy is not None:
            await asyncio.to_thread(store.delete, copy)
