"""Passes on to the other registries what was touched here, and wakes whoever waits for theirs.

PostgreSQL's NOTIFY, and only as a hint: it is sent after the commit, in batches, because a NOTIFY
inside the transactions would make them commit one by one. Whoever waits also looks by itself, so a
notice that is lost costs a second and never a job.
"""

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psycopg
import structlog

from services.registry.signals import Signals

log = structlog.get_logger()

_CHANNEL = "reelmesh"
# A payload has less than 8000 bytes; a name at most 64.
_BATCH = 80
_RETRY_S = 1.0


class Notices:
    """`notify` is for the event loop."""

    def __init__(self, arguments: dict[str, Any], replica_id: str, signals: Signals) -> None:
        self._arguments = arguments
        self._replica_id = replica_id
        self._signals = signals
        self._waiting: set[str] = set()
        self._news = asyncio.Event()

    def notify(self, names: Iterable[str]) -> None:
        """Wake whoever waits for these names, here and elsewhere."""
        names = list(names)
        self._signals.notify(names)
        self._waiting.update(names)
        self._news.set()

    async def run(self) -> None:
        """Send and listen, until cancelled; what happened while cut off is only looked for."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._listen())
                    group.create_task(self._send())
            except* (psycopg.Error, OSError) as errors:
                log.warning("notices_cut", error=type(errors.exceptions[0]).__name__)
            await asyncio.sleep(_RETRY_S)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(**self._arguments, autocommit=True)

    async def _listen(self) -> None:
        async with await self._connect() as connection:
            await connection.execute(f"LISTEN {_CHANNEL}")
            self._signals.notify_all()
            async for notice in connection.notifies():
                with suppress(ValueError, KeyError, TypeError):
                    said = json.loads(notice.payload)
                    if said["from"] != self._replica_id:
                        self._signals.notify(said["names"])

    async def _send(self) -> None:
        async with await self._connect() as connection:
            while True:
                await self._news.wait()
                names, self._waiting = sorted(self._waiting), set()
                self._news.clear()
                for start in range(0, len(names), _BATCH):
                    said = {"from": self._replica_id, "names": names[start : start + _BATCH]}
                    await connection.execute(
                        "SELECT pg_notify(%s, %s)", (_CHANNEL, json.dumps(said))
                    )
