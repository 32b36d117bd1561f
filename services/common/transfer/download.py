"""Brings a stream of chunks into a plain file: what the command line does with an artifact."""

from collections.abc import Callable
from pathlib import Path

from reelmesh.v1 import transfer_pb2
from services.common.ids import new_id
from services.common.transfer.digest import RunningDigest
from services.common.transfer.landing import Landing, Stream
from services.common.transfer.patience import Patience
from services.common.transfer.pump import IDLE_S
from services.common.transfer.records import sync_folder
from services.common.transfer.space import DiskSpace, disk_errors
from services.common.transfer.store import utc_now
from services.common.transfer.uploads import Upload
from services.common.transfer.writing import Writing


async def receive_to_file(
    open_stream: Callable[[int], Stream],
    path: Path,
    *,
    progress: Callable[[int, int], None] | None = None,
    patience: Patience | None = None,
    idle_s: float = IDLE_S,
) -> Path:
    """Store a whole stream at `path`, which appears complete and verified or not at all.

    `open_stream(offset)` gives a stream of `header | chunk | finish` from that byte on, for example
    an `ArtifactService.Download` call; it is called again after a break. An existing file is
    replaced. Raises what the stream raises, SIZE_MISMATCH, DIGEST_MISMATCH, DISK_FULL.
    """

    def begin(header: transfer_pb2.StreamHeader) -> Upload:
        upload_id = new_id("up")
        upload = Upload(
            upload_id,
            path.with_name(f".{path.name}.{upload_id[-8:]}"),
            transfer_pb2.Manifest(),  # a plain file: its tensors were checked where it was made
            header.size_bytes,
            space=DiskSpace(path.parent, margin_bytes=0),
            clock=utc_now,
        )
        upload.create()
        return upload

    def commit(upload: Upload, digest: RunningDigest) -> Path:
        with disk_errors():
            upload.part.replace(path)
            sync_folder(path.parent)
        upload.retire()
        return path

    landing = Landing(
        open_stream, begin, lambda upload: Writing(upload, commit), Path.unlink, progress, idle_s
    )
    return await landing.run(patience or Patience())
