"""This registry among the others on its database: says that it is alive, and takes over the runs
of those that are not.

To take over too early would be harmless: what a run may do next is decided in the database, row by
row. A start is sent by whoever committed its binding as sent, and whoever takes the run over asks
for it, and has it buried before it is bound again. So the lease here is only about how soon.
"""

import asyncio
from functools import partial

import structlog
from sqlmodel import Session

from services.common.rpc.errors import MeshError
from services.registry.database import Database
from services.registry.records.replicas import (
    adopt,
    beat,
    beats,
    bury,
    count_orphans,
    forget_others,
    leave,
)
from services.registry.sightings import Sightings

log = structlog.get_logger()


class Replicas:
    """`join` before anything is followed, `leave` at the end."""

    def __init__(self, database: Database, replica_id: str, sightings: Sightings) -> None:
        self._database = database
        self._replica_id = replica_id
        self._sightings = sightings

    async def join(self, *, alone: bool) -> None:
        """Be known. `alone`: nobody else can be on this database, so all runs are ours."""

        def enter(session: Session) -> int:
            beat(session, self._replica_id)
            session.flush()
            if alone:
                forget_others(session, self._replica_id)
            return adopt(session, self._replica_id)

        self._tell(await self._database.write(enter))

    async def run(self) -> None:
        """Beat, bury and adopt, until cancelled."""
        while True:
            await self._database.write(partial(beat, replica_id=self._replica_id))
            await self.look()
            await asyncio.sleep(self._sightings.pause_s)

    async def look(self) -> None:
        """Take over the runs of replicas that were not heard for a whole lease."""
        known = await self._database.read(beats)
        for replica_id in self._sightings.look(known):
            change = partial(bury, replica_id=replica_id, beat_time=known[replica_id])
            if replica_id != self._replica_id and await self._database.write(change):
                log.warning("replica_lost", lost=replica_id)
        if await self._database.read(count_orphans):
            self._tell(await self._database.write(partial(adopt, replica_id=self._replica_id)))

    async def leave(self) -> None:
        """Let the others have our runs at once."""
        try:
            await self._database.write(partial(leave, replica_id=self._replica_id))
        except MeshError as error:
            log.warning("replica_not_signed_off", reason=error.reason)

    def _tell(self, adopted: int) -> None:
        if adopted:
            log.info("runs_adopted", count=adopted)
