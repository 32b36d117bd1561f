"""Deletes what nobody needs: consumed bundles at the stages, and strays in our own folders."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from services.common.ids import is_id
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.store import BundleStore
from services.registry.database import Database
from services.registry.peers import Peers
from services.registry.records.artifacts import all_artifact_ids
from services.registry.records.instances import present
from services.registry.records.outputs import (
    due_outputs,
    ended_runs,
    mark_deleted,
    mark_outputless,
    untold_outputs,
)
from services.registry.records.reports import apply_report
from services.registry.stages import StageCalls

log = structlog.get_logger()

_BATCH = 100


class Housekeeping:
    """Best effort: what cannot be deleted now is tried again in the next round."""

    def __init__(
        self,
        database: Database,
        peers: Peers,
        calls: StageCalls,
        store: BundleStore,
        folder: Path,
        retention_s: float,
        pause_s: float,
    ) -> None:
        self._database = database
        self._peers = peers
        self._calls = calls
        self._store = store
        self._folder = folder
        self._retention = timedelta(seconds=retention_s)
        self._pause_s = pause_s

    async def remove_strays(self) -> None:
        """At the start, before anything is published: files that no row names."""
        known = await self._database.read(all_artifact_ids)
        for path in self._folder.glob("art_*"):
            if not (is_id("art", path.stem) and path.stem in known):
                path.unlink()
                log.warning("stray_artifact_removed", file=path.name)
        for bundle in self._store.list():
            stored = self._store.find(bundle.bundle_id)
            if stored is not None and not stored.run_id:
                self._store.delete(bundle.bundle_id)

    async def run(self) -> None:
        """Round after round, until cancelled."""
        while True:
            instances = await self._database.read(present)
            reachable = list(self._peers.reachable(instances))
            await self._learn_outputs(reachable)
            await self._delete_outputs(reachable)
            await self._delete_uploads()
            await asyncio.sleep(self._pause_s)

    async def _learn_outputs(self, reachable: list[str]) -> None:
        untold = await self._database.read(
            lambda session: untold_outputs(session, reachable, _BATCH)
        )
        for run_id, endpoint in untold:
            try:
                answer = await self._calls.get_run(self._peers.peer(endpoint), run_id)
            except MeshError as error:
                if error.reason is Reason.RUN_NOT_FOUND:
                    await self._database.write(partial(mark_outputless, run_id=run_id))
            else:
                await self._database.write(partial(apply_report, run_id=run_id, report=answer.run))

    async def _delete_outputs(self, reachable: list[str]) -> None:
        ended_before = datetime.now(UTC) - self._retention
        due = await self._database.read(
            lambda session: due_outputs(session, ended_before, reachable, _BATCH)
        )
        for run_id, bundle_id, endpoint in due:
            try:
                await self._calls.delete_bundle(self._peers.peer(endpoint), bundle_id)
            except MeshError as error:
                log.debug("bundle_not_deleted", bundle_id=bundle_id, reason=error.reason)
            else:
                await self._database.write(partial(mark_deleted, run_id=run_id))

    async def _delete_uploads(self) -> None:
        """Uploads that came after their run had ended, and unfinished ones that expired."""
        await asyncio.to_thread(self._store.sweep, datetime.now(UTC))
        held = [
            (stored.run_id, bundle.bundle_id)
            for bundle in self._store.list()
            if (stored := self._store.find(bundle.bundle_id)) is not None and stored.run_id
        ]
        if not held:
            return
        ended = await self._database.read(
            lambda session: ended_runs(session, [run_id for run_id, _ in held])
        )
        for run_id, bundle_id in held:
            if run_id in ended:
                await asyncio.to_thread(self._store.delete, bundle_id)
