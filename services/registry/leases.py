"""Leases of the instances: one that is not heard for a whole lease is SUSPECT.

A heartbeat may reach any registry; each of them sees it in the database.
"""

import asyncio
from functools import partial

import structlog

from services.registry.database import Database
from services.registry.records.instances import heard, suspect
from services.registry.sightings import Sightings

log = structlog.get_logger()


class Leases:
    """Suspects instances whose lease is over."""

    def __init__(self, database: Database, sightings: Sightings) -> None:
        self._database = database
        self._sightings = sightings

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._sightings.pause_s)

    async def look(self) -> None:
        """Suspect every instance that was not heard for a whole lease."""
        beats = await self._database.read(heard)
        for instance_id in self._sightings.look(beats):
            change = partial(suspect, instance_id=instance_id, heard_time=beats[instance_id])
            if await self._database.write(change):
                log.warning("instance_suspect", suspected=instance_id)
