"""From a finished upload to an artifact: the file in its place first, then one transaction.

A crash between the two leaves a file that no row names; the next start removes it.
"""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from sqlmodel import Session

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.bundles import StoredBundle
from services.common.transfer.records import sync_folder
from services.common.transfer.store import BundleStore
from services.common.transfer.uploads import Upload, upload_not_found
from services.registry.database import Database
from services.registry.messages import clip_message
from services.registry.receipts import ReceiptFiles
from services.registry.records import artifacts
from services.registry.schema import ArtifactRow, JobRow


class Publisher:
    """Publishes what runs have uploaded, or what was fetched for them."""

    def __init__(
        self, database: Database, store: BundleStore, folder: Path, receipts: ReceiptFiles
    ) -> None:
        self._database = database
        self._store = store
        self._folder = folder
        self._receipts = receipts

    def path(self, artifact_id: str) -> Path:
        """Where an artifact's file lies: named by its id alone."""
        return self._folder / f"{artifact_id}.mp4"

    async def publish_upload(
        self, lease: transfer_pb2.Lease, upload_id: str, timings: Iterable[stage_pb2.PhaseTime] = ()
    ) -> ArtifactRow:
        """Publish a finished upload of the lease's run; a repeat returns the artifact.

        Raises STALE_RUN, JOB_ENDED, UPLOAD_NOT_FOUND, INPUT_MISMATCH.
        """

        def look(session: Session) -> tuple[ArtifactRow | None, JobRow]:
            run, job = artifacts.check_lease(session, lease.run_id, lease.token)
            known = artifacts.find_of_run(session, run.run_id)
            if known is None:
                artifacts.check_publishable(run, job)
            return known, job

        known, job = await self._database.read(look)
        if known is not None:
            return known
        stored = self._store.find_upload(upload_id)
        if isinstance(stored, Upload) or stored.run_id != lease.run_id:
            raise upload_not_found()
        measured = stage_pb2.Run(timings=timings).SerializeToString()
        return await self._publish(lease.run_id, job, stored, measured)

    async def publish_bundle(
        self,
        run_id: str,
        job: JobRow,
        bundle_id: str,
        timings: Iterable[stage_pb2.PhaseTime] = (),
    ) -> ArtifactRow:
        """Publish a bundle that was fetched from the run's instance. Raises as `publish_upload`."""
        stored = self._store.find(bundle_id)
        if stored is None:
            raise upload_not_found()
        measured = stage_pb2.Run(timings=timings).SerializeToString()
        return await self._publish(run_id, job, stored, measured)

    async def _publish(
        self, run_id: str, job: JobRow, stored: StoredBundle, timings: bytes = b""
    ) -> ArtifactRow:
        bundle = stored.bundle
        _check_video(bundle.manifest, job)
        source = self._store.path(bundle.bundle_id)
        draft = artifacts.Draft(
            artifact_id=new_id("art"),
            manifest=bundle.manifest,
            size_bytes=bundle.size_bytes,
            sha256=bundle.sha256,
            block_sums=stored.block_sums,
            timings=timings,
        )
        target = self.path(draft.artifact_id)

        def publish(session: Session) -> ArtifactRow:
            # Inside the transaction: a caller that gives up must not part file and row.
            # A transaction that lost against another one is run again, and its file is there.
            with suppress(FileExistsError):
                os.link(source, target)
            sync_folder(self._folder)
            try:
                if target.stat().st_size != draft.size_bytes:
                    raise MeshError(Reason.BUNDLE_CORRUPT, "the uploaded file is not whole")
                artifact = artifacts.publish(session, run_id, draft)
            except BaseException:
                target.unlink()
                raise
            if artifact.artifact_id != draft.artifact_id:
                target.unlink()
            return artifact

        artifact = await self._database.write(publish)
        await self._receipts.write([artifact.artifact_id])
        await asyncio.to_thread(self._store.delete, bundle.bundle_id)
        return artifact


def _check_video(manifest: transfer_pb2.Manifest, job: JobRow) -> None:
    if manifest.kind != transfer_pb2.BUNDLE_KIND_VIDEO:
        raise MeshError(Reason.INPUT_MISMATCH, "only a video can be published")
    if manifest.HasField("clip") and manifest.clip != clip_message(job):
        raise MeshError(Reason.INPUT_MISMATCH, "the video is not the clip that the job asks for")
