"""Tells instances that are back which of their runs were ruled over meanwhile.

They would work for nobody: their reports are dropped and counted, and they are told to stop.
"""

import asyncio
from functools import partial

import structlog

from services.common.rpc.errors import MeshError, Reason
from services.registry.database import Database
from services.registry.follower import Follower
from services.registry.peers import Peers
from services.registry.records.burials import Burial, owed_burials, take_burial
from services.registry.stages import StageCalls

log = structlog.get_logger()

_LOOK_S = 1.0
_BATCH = 100


class Burials:
    """Asks again and again until each run has ended at its instance."""

    def __init__(
        self, database: Database, peers: Peers, calls: StageCalls, follower: Follower
    ) -> None:
        self._database = database
        self._peers = peers
        self._calls = calls
        self._follower = follower

    async def run(self) -> None:
        """Bury what is owed, until cancelled."""
        while True:
            owed = await self._database.read(partial(owed_burials, limit=_BATCH))
            await asyncio.gather(*map(self._bury, owed))
            await asyncio.sleep(_LOOK_S)

    async def _bury(self, burial: Burial) -> None:
        peer = self._peers.peer(burial.endpoint)
        try:
            report = await self._calls.cancel_run(peer, burial.run_id, burial.journal_id)
        except MeshError as error:
            if error.reason is not Reason.UNREACHABLE:
                log.warning("run_not_buried", run_id=burial.run_id, reason=error.reason)
            return
        change = partial(take_burial, run_id=burial.run_id, report=report)
        if await self._database.write(change):
            self._follower.drop(report)
        log.info("run_buried", run_id=burial.run_id, job_id=burial.job_id, state=report.state)
