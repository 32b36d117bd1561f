"""What the instances are, read once and kept until one of them changes.

A thousand instances are not read again for every job and every binding. What is decided by it is
only a first look: a claim asks the database whether an instance is still READY.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import select
from sqlmodel import Session, col

from services.registry.database import Database
from services.registry.lifecycle import InstanceState, Stage
from services.registry.records.events import INSTANCES
from services.registry.schema import InstanceRow
from services.registry.signals import Signals

# A change that we were not told of is seen after this long.
_KEPT_S = 1.0


@dataclass(frozen=True)
class Known:
    """One instance that is not GONE, as far as placing goes."""

    instance_id: str
    stage: Stage
    endpoint: str
    state: InstanceState
    pool: str
    # The Capabilities message; alike for instances that are alike.
    capabilities: bytes


class Roster:
    """The instances by name. `read` is for the event loop."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._listening: AbstractContextManager[asyncio.Event] = signals.listening(INSTANCES)
        self._news: asyncio.Event | None = None
        self._turn = asyncio.Lock()
        self._known: Sequence[Known] = ()
        self._read_at = 0.0

    async def read(self) -> Sequence[Known]:
        """All instances that are not GONE: the same object until one has changed."""
        async with self._turn:  # who comes while it is read again waits for that
            if self._news is None:
                self._news = self._listening.__enter__()
                self._news.set()
            if self._news.is_set() or time.monotonic() - self._read_at > _KEPT_S:
                self._news.clear()
                began = time.monotonic()
                known = await self._database.read(_read)
                self._read_at = began
                if known != self._known:
                    self._known = known
            return self._known


def _read(session: Session) -> list[Known]:
    query = select(
        col(InstanceRow.instance_id),
        col(InstanceRow.stage),
        col(InstanceRow.endpoint),
        col(InstanceRow.state),
        col(InstanceRow.pool),
        col(InstanceRow.capabilities),
    ).where(col(InstanceRow.state) != InstanceState.GONE)
    rows = session.execute(query.order_by(col(InstanceRow.instance_id)))
    return [Known(*row) for row in rows]
