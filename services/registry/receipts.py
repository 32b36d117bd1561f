"""Receipts as JSON files beside their artifacts, for whoever has the folder and no registry.

They are made from the database, so one that is missing can be made again.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
from google.protobuf import json_format

from services.common.transfer.records import write_record
from services.registry.columns import utc_now
from services.registry.database import Database
from services.registry.records.artifacts import all_artifact_ids, artifact_ids_since
from services.registry.records.receipts import receipt_of_artifact

log = structlog.get_logger()

# One that a crash left out is that young; all others are looked at when a registry starts.
_RECENT = timedelta(hours=1)


class ReceiptFiles:
    """The files `art_*.json` in a folder."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def path(self, artifact_id: str) -> Path:
        """Where an artifact's receipt lies."""
        return self._folder / f"{artifact_id}.json"

    async def write(self, artifact_ids: Sequence[str]) -> None:
        """Write these artifacts' receipts. A full disk is not an artifact's fault: only logged."""
        for artifact_id in artifact_ids:
            receipt = await self._database.read(
                partial(receipt_of_artifact, artifact_id=artifact_id)
            )
            record = json_format.MessageToDict(receipt)
            try:
                await asyncio.to_thread(write_record, self.path(artifact_id), record)
            except OSError as error:
                log.warning("receipt_not_written", artifact_id=artifact_id, error=str(error))

    async def restore_all(self) -> None:
        """Write every receipt that is missing."""
        await self._restore(await self._database.read(all_artifact_ids))

    async def restore_recent(self) -> None:
        """Write the missing receipts of artifacts that were published lately."""
        since = partial(artifact_ids_since, time=utc_now() - _RECENT)
        await self._restore(await self._database.read(since))

    async def _restore(self, artifact_ids: Iterable[str]) -> None:
        missing = await asyncio.to_thread(
            lambda: [one for one in artifact_ids if not self.path(one).exists()]
        )
        if missing:
            await self.write(missing)
            log.info("receipts_restored", count=len(missing))
