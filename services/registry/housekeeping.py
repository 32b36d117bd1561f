"""Deletes what nobody needs: consumed bundles at the stages, strays in our own folders, old events.

Also finds what is missing: inputs that are nowhere any more, and receipts beside their artifacts.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog

from services.common.ids import is_id
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.store import BundleStore
from services.registry.copies import Copies
from services.registry.database import Database
from services.registry.peers import Peers
from services.registry.receipts import ReceiptFiles
from services.registry.records.artifacts import all_artifact_ids
from services.registry.records.events import are_events_old, compact
from services.registry.records.instances import present
from services.registry.records.losses import find_losses, settle_loss
from services.registry.records.outputs import (
    are_outputs_due,
    ended_runs,
    give_up_outputs,
    given_up_outputs,
    mark_deleted,
    untold_outputs,
)
from services.registry.records.replicas import beats
from services.registry.records.reports import apply_report
from services.registry.records.requests import are_answers_old, forget_answers
from services.registry.stages import StageCalls

log = structlog.get_logger()

_BATCH = 100
_EVENTS = 1000
# Of a store that others write to, a file that no row names may be one that is being published.
_STRAY_AGE = timedelta(hours=1)


class Housekeeping:
    """Best effort: what cannot be done now is tried again in the next round."""

    def __init__(
        self,
        database: Database,
        peers: Peers,
        calls: StageCalls,
        store: BundleStore,
        folder: Path,
        copies: Copies,
        receipts: ReceiptFiles,
        replica_id: str,
        *,
        alone: bool,
        retention_s: float,
        events_s: float,
        pause_s: float,
    ) -> None:
        self._database = database
        self._peers = peers
        self._calls = calls
        self._store = store
        self._folder = folder
        self._copies = copies
        self._receipts = receipts
        self._replica_id = replica_id
        self._alone = alone
        self._retention = timedelta(seconds=retention_s)
        self._events = timedelta(seconds=events_s)
        self._pause_s = pause_s

    async def remove_strays(self) -> None:
        """At the start, before anything is published: files that no row names."""
        before = (datetime.now(UTC) - _STRAY_AGE).timestamp()
        found = [path for path in self._folder.glob("art_*") if path.is_file()]
        others = set(await self._database.read(beats)) - {self._replica_id}
        alone = self._alone or not others
        files = [path for path in found if alone or path.stat().st_ctime < before]
        known = await self._database.read(all_artifact_ids)
        for path in files:
            if not (is_id("art", path.stem) and path.stem in known):
                path.unlink(missing_ok=True)
                log.warning("stray_artifact_removed", file=path.name)
        for bundle in self._store.list():
            stored = self._store.find(bundle.bundle_id)
            if stored is not None and not stored.run_id:
                self._store.delete(bundle.bundle_id)

    async def run(self) -> None:
        """Round after round, until cancelled."""
        await self._receipts.restore_all()
        while True:
            instances = await self._database.read(present)
            reachable = list(self._peers.reachable(instances))
            await self._settle_losses()
            await self._learn_outputs(reachable)
            await self._delete_outputs(reachable)
            await self._delete_uploads()
            await self._copies.tidy()
            await self._receipts.restore_recent()
            await self._compact()
            await self._forget_answers()
            await asyncio.sleep(self._pause_s)

    async def _settle_losses(self) -> None:
        for job_id in await self._database.read(partial(find_losses, limit=_BATCH)):
            log.warning("input_lost", job_id=job_id)
            await self._database.write(partial(settle_loss, job_id=job_id))

    async def _learn_outputs(self, reachable: list[str]) -> None:
        untold = await self._database.read(
            lambda session: untold_outputs(session, reachable, _BATCH)
        )
        for run_id, endpoint in untold:
            try:
                answer = await self._calls.get_run(self._peers.peer(endpoint), run_id)
            except MeshError as error:
                if error.reason is Reason.RUN_NOT_FOUND:
                    await self._database.write(partial(mark_deleted, run_id=run_id))
            else:
                await self._database.write(partial(apply_report, run_id=run_id, report=answer.run))

    async def _delete_outputs(self, reachable: list[str]) -> None:
        ended_before = datetime.now(UTC) - self._retention
        # Nobody waits for a write that would find nothing.
        if await self._database.read(partial(are_outputs_due, ended_before=ended_before)):
            await self._database.write(
                partial(give_up_outputs, ended_before=ended_before, limit=_BATCH)
            )
        given_up = await self._database.read(
            lambda session: given_up_outputs(session, reachable, _BATCH)
        )
        for run_id, bundle_id, endpoint in given_up:
            try:
                await self._calls.delete_bundle(self._peers.peer(endpoint), bundle_id)
            except MeshError as error:
                log.debug("bundle_not_deleted", bundle_id=bundle_id, reason=error.reason)
            else:
                await self._database.write(partial(mark_deleted, run_id=run_id))

    async def _compact(self) -> None:
        older_than = datetime.now(UTC) - self._events
        forget = partial(compact, older_than=older_than, limit=_EVENTS)
        if not await self._database.read(partial(are_events_old, older_than=older_than)):
            return
        while count := await self._database.write(forget):
            log.info("events_forgotten", count=count)

    async def _forget_answers(self) -> None:
        if await self._database.read(are_answers_old):
            await self._database.write(forget_answers)

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
