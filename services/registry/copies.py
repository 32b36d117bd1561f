"""Copies latents into the registry's own store, so that a lost sampler host loses nothing.

It goes on behind the samplers' backs: their slots are free as soon as their latents are durable.
"""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog

from reelmesh.v1 import transfer_pb2
from services.common import telemetry
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.reader import pull
from services.common.transfer.store import BundleStore
from services.registry.database import Database
from services.registry.peers import Peers
from services.registry.records.copies import (
    are_copies_over,
    copy_ids,
    due_copies,
    forget_copies,
    give_up_copies,
    keep_copy,
    lose_output,
)
from services.registry.shelf import Shelf

log = structlog.get_logger()

_LOOK_S = 1.0
_REST_S = 5.0
_BATCH = 100
# Outputs looked at in one round; some may be at instances that cannot be reached.
_PAGE = 64
# A copy that no row names may be one that is just being written down, here or by another registry.
_STRAY_AGE = timedelta(hours=1)


class Copies:
    """At most `at_once` copies at a time."""

    def __init__(
        self,
        database: Database,
        peers: Peers,
        store: BundleStore,
        shelf: Shelf,
        replica_id: str,
        retention_s: float,
        at_once: int,
    ) -> None:
        self._database = database
        self._peers = peers
        self._store = store
        self._shelf = shelf
        self._replica_id = replica_id
        self._retention = timedelta(seconds=retention_s)
        self._at_once = at_once
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Runs whose copy failed lately, with the monotonic time to try again at.
        self._resting: dict[str, float] = {}

    async def run(self) -> None:
        """Copy what is due, until cancelled."""
        await self._check()
        try:
            while True:
                await self._begin()
                await asyncio.sleep(_LOOK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def tidy(self) -> None:
        """Delete the copies that nobody can need any more, and strays."""
        now = datetime.now(UTC)
        ended_before = now - self._retention
        if await self._database.read(partial(are_copies_over, ended_before=ended_before)):
            over = await self._database.write(
                partial(give_up_copies, ended_before=ended_before, limit=_BATCH)
            )
            for bundle_id in over:
                await asyncio.to_thread(self._shelf.delete, bundle_id)
        known = await self._database.read(copy_ids)
        await asyncio.to_thread(self._shelf.remove_strays, known, now, _STRAY_AGE)

    async def _check(self) -> None:
        """At the start: a row may name a file that is not there any more."""
        known = await self._database.read(copy_ids)
        missing = await asyncio.to_thread(self._shelf.missing, known)
        if missing:
            log.error("copies_missing", count=len(missing))
            await self._database.write(partial(forget_copies, bundle_ids=missing))

    async def _begin(self) -> None:
        now = time.monotonic()
        self._resting = {run_id: at for run_id, at in self._resting.items() if at > now}
        free = self._at_once - len(self._tasks)
        if free <= 0:
            return
        busy = {*self._tasks, *self._resting}
        fresh = [
            (run_id, ref)
            for run_id, ref in await self._due(_PAGE + len(busy))
            if run_id not in busy and self._peers.is_open(ref.endpoint)
        ]
        for run_id, ref in fresh[:free]:
            task = asyncio.create_task(self._copy(run_id, ref), name=f"copy of {run_id}")
            self._tasks[run_id] = task
            task.add_done_callback(partial(self._forget, run_id))

    def _forget(self, run_id: str, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(run_id, None)

    async def _due(self, limit: int) -> Sequence[tuple[str, transfer_pb2.BundleRef]]:
        ended_after = datetime.now(UTC) - self._retention
        return await self._database.read(
            lambda session: due_copies(session, self._replica_id, ended_after, limit)
        )

    async def _copy(self, run_id: str, ref: transfer_pb2.BundleRef) -> None:
        telemetry.bind(run_id=run_id)
        try:
            bundle = await pull(self._peers.peer(ref.endpoint), ref, self._store)
            try:
                await self._keep(run_id, bundle)
            finally:
                await asyncio.to_thread(self._store.delete, bundle.bundle_id)
        except (MeshError, OSError) as error:
            log.warning("output_not_copied", error=str(error))
            self._resting[run_id] = time.monotonic() + _REST_S
            if isinstance(error, MeshError) and error.reason is Reason.BUNDLE_NOT_FOUND:
                await self._database.write(partial(lose_output, run_id=run_id))

    async def _keep(self, run_id: str, bundle: transfer_pb2.Bundle) -> None:
        stored = self._store.find(bundle.bundle_id)
        if stored is None:
            return
        path = self._store.path(bundle.bundle_id)
        await asyncio.to_thread(self._shelf.put, path, stored)
        if await self._database.write(partial(keep_copy, run_id=run_id, bundle=stored.bundle)):
            log.info("output_copied", size_bytes=bundle.size_bytes)
        else:
            await asyncio.to_thread(self._shelf.delete, bundle.bundle_id)
