"""Leases of the instances, by this process's monotonic clock: no change of the date expires one."""

import asyncio
import time
from functools import partial

import structlog

from services.registry.database import Database
from services.registry.records.instances import present, suspect

log = structlog.get_logger()


class Leases:
    """When each instance has to be heard again. Kept in memory: a restart grants full leases."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self._lease_s = lease_s
        self._until: dict[str, float] = {}

    def grant(self, instance_id: str) -> None:
        """It was heard: one full lease from now on."""
        self._until[instance_id] = time.monotonic() + self._lease_s

    async def run(self) -> None:
        """Suspect every instance whose lease expires, until cancelled."""
        for instance in await self._database.read(present):
            self._until.setdefault(instance.instance_id, time.monotonic() + self._lease_s)
        pause_s = min(1.0, self._lease_s / 8)
        looked = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            if now - looked > self._lease_s / 2:
                # We ourselves stood still, and heard nobody: that says nothing of them.
                for instance_id in self._until:
                    self.grant(instance_id)
            looked = now
            await self._expire(now)

    async def _expire(self, now: float) -> None:
        for instance_id in [name for name, until in self._until.items() if until <= now]:
            del self._until[instance_id]
            if await self._database.write(partial(suspect, instance_id=instance_id)):
                log.warning("instance_suspect", suspected=instance_id)
