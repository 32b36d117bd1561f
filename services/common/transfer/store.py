"""A service's own disk as bundles and uploads, with the disk space that they are promised.

Everything here blocks and is safe to call from several threads; nobody calls it on the event loop.
One process at a time may have a folder open.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.ids import is_id, new_id, new_secret
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.bundles import BundleFolder, StoredBundle
from services.common.transfer.digest import RunningDigest
from services.common.transfer.examination import examine
from services.common.transfer.inbox import Inbox
from services.common.transfer.space import DiskSpace, disk_errors, free_bytes
from services.common.transfer.uploads import Upload
from services.common.transfer.writing import Finished, Sink, Writing

UPLOAD_TTL_S = 3600.0
# What stays free for records, journals and logs.
MARGIN_BYTES = 256 << 20


def utc_now() -> datetime:
    """The time, aware."""
    return datetime.now(UTC)


class BundleStore:
    """Bundles, uploads and drafts below one folder. Call `open` before anything else.

    `space` is public: a start reserves there what its output will need.
    """

    def __init__(
        self,
        folder: Path,
        *,
        margin_bytes: int = MARGIN_BYTES,
        upload_ttl_s: float = UPLOAD_TTL_S,
        clock: Callable[[], datetime] = utc_now,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.space = DiskSpace(folder, margin_bytes, free)
        self._bundles = BundleFolder(folder / "bundles")
        self._inbox = Inbox(folder / "uploads", self.space, timedelta(seconds=upload_ttl_s), clock)
        self._drafts = folder / "drafts"
        self._clock = clock

    def open(self) -> None:
        """Find what an earlier process left: keep what is whole or resumable, remove the rest."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        for draft in self._drafts.iterdir():
            draft.unlink()
        self._bundles.open()
        self._inbox.open()

    def sweep(self, now: datetime) -> None:
        """Delete expired uploads. For a timer."""
        self._inbox.sweep(now)

    # Uploads: bytes that come over a wire.

    def start_upload(
        self,
        manifest: transfer_pb2.Manifest,
        size_bytes: int,
        *,
        run_id: str = "",
        durable: bool = True,
    ) -> Upload:
        """Open an upload and reserve its space. One that is not durable ends with the process.

        Raises BAD_MANIFEST, DISK_FULL.
        """
        return self._inbox.start(manifest, size_bytes, run_id, durable=durable)

    def find_upload(self, upload_id: str) -> Upload | StoredBundle:
        """An upload, or the bundle that it became. Raises UPLOAD_NOT_FOUND."""
        done = self._bundles.of_upload(upload_id)
        if done is not None:
            return done
        try:
            return self._inbox.find(upload_id)
        except MeshError:
            done = self._bundles.of_upload(upload_id)  # it may have been committed just now
            if done is None:
                raise
            return done

    def expire_time(self, upload: Upload) -> datetime:
        """When the upload is deleted if nothing more arrives."""
        return self._inbox.expire_time(upload)

    def attach(self, upload_id: str) -> Sink[transfer_pb2.Bundle]:
        """Begin a stream on an upload; older streams on it are refused from now on.

        Raises UPLOAD_NOT_FOUND.
        """
        upload = self.find_upload(upload_id)
        if isinstance(upload, Upload):
            with upload.lock:
                # It may have become a bundle while this waited for an older stream.
                done = self._bundles.of_upload(upload_id)
                if done is None:
                    return Writing(upload, self._commit)
                upload = done
        return Finished(upload.bundle)

    def abandon(self, upload_id: str) -> None:
        """Delete an upload; one that has ended is no error."""
        upload = self.find_upload(upload_id)
        if isinstance(upload, Upload):
            upload.discard()

    def _commit(self, upload: Upload, digest: RunningDigest) -> transfer_pb2.Bundle:
        stored = self._stored(new_id("bun"), upload.manifest, digest, upload)
        with disk_errors():
            self._bundles.publish(upload.part, stored)
        upload.retire()
        return stored.bundle

    def _stored(
        self,
        bundle_id: str,
        manifest: transfer_pb2.Manifest,
        digest: RunningDigest,
        upload: Upload | None = None,
    ) -> StoredBundle:
        bundle = transfer_pb2.Bundle(
            bundle_id=bundle_id,
            manifest=manifest,
            size_bytes=digest.size_bytes,
            sha256=digest.sha256(),
            read_token=new_secret("rmb"),
        )
        bundle.create_time.FromDatetime(self._clock())
        upload_id, run_id = (upload.upload_id, upload.run_id) if upload else ("", "")
        return StoredBundle(bundle, digest.block_sums(), upload_id, run_id)

    # Outputs: files that an engine of this process made.

    def draft(self, suffix: str = "") -> Path:
        """A fresh path on the bundles' disk for an output that is being made."""
        return self._drafts / f"{new_id('bun')}{suffix}"

    def adopt(
        self,
        path: Path,
        kind: int,
        *,
        clip: transfer_pb2.Clip | None = None,
        media_type: str = "",
        bundle_id: str | None = None,
    ) -> transfer_pb2.Bundle:
        """Make a finished file on the same disk (see `draft`) a bundle; the file moves.

        With `bundle_id` the caller can write the id down first. The manifest of a safetensors file
        is its header. On an error the file is deleted: it is of no use. Raises BAD_TENSORS,
        NON_FINITE, DISK_FULL.
        """
        if bundle_id is not None and (not is_id("bun", bundle_id) or self._bundles.find(bundle_id)):
            raise MeshError(Reason.BAD_ID, "a bundle needs a fresh id")
        try:
            manifest, digest = examine(path, kind, clip, media_type)
            stored = self._stored(bundle_id or new_id("bun"), manifest, digest)
            with disk_errors():
                self._bundles.publish(path, stored)
        except (OSError, MeshError):
            path.unlink(missing_ok=True)
            raise
        return stored.bundle

    # Bundles.

    def find(self, bundle_id: str) -> StoredBundle | None:
        """A bundle, if there is one with this id. Text that is no id is just not found."""
        return self._bundles.find(bundle_id)

    def get(self, bundle_id: str) -> transfer_pb2.Bundle:
        """A bundle with its read token. Raises BUNDLE_NOT_FOUND."""
        return self._existing(bundle_id).bundle

    def path(self, bundle_id: str) -> Path:
        """The file of a bundle. Raises BUNDLE_NOT_FOUND."""
        return self._bundles.path(self._existing(bundle_id).bundle.bundle_id)

    def delete(self, bundle_id: str) -> None:
        """Delete a bundle; one that is gone already is no error. Open readers read on."""
        self._bundles.delete(bundle_id)

    def list(self) -> list[transfer_pb2.Bundle]:
        """All bundles with their read tokens, oldest first."""
        return [stored.bundle for stored in self._bundles.list()]

    def _existing(self, bundle_id: str) -> StoredBundle:
        stored = self._bundles.find(bundle_id)
        if stored is None:
            raise bundle_not_found()
        return stored


def bundle_not_found() -> MeshError:
    """Alike for a bundle that is not there and a token that does not open it."""
    return MeshError(Reason.BUNDLE_NOT_FOUND, "there is no such bundle, or the token is not its")
