"""One stream's turn on an upload: messages in, a finished file out. Blocks; run it in a thread."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.chunks import ChunkAssembler
from services.common.transfer.digest import RunningDigest
from services.common.transfer.uploads import Upload

# A wrong whole: sending it again would not make it right, so the upload ends.
_WRONG_WHOLE = (
    Reason.SIZE_MISMATCH,
    Reason.DIGEST_MISMATCH,
    Reason.BAD_TENSORS,
    Reason.NON_FINITE,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sink(Protocol[T_co]):
    """Takes the messages of one stream after its header."""

    @property
    def received_bytes(self) -> int:
        """How far the stream has come, in bytes of the bundle."""

    def take(self, messages: Sequence[Any]) -> None:
        """Check and store chunks and the finish."""

    def finish(self) -> T_co:
        """What the stream made, after its finish was taken."""

    def close(self) -> None:
        """End the stream, whether it came to its finish or not."""


class Writing(Generic[T]):
    """Writes one stream into an upload; `commit` makes what it is to become."""

    def __init__(self, upload: Upload, commit: Callable[[Upload, RunningDigest], T]) -> None:
        self._upload = upload
        self._commit = commit
        self._epoch = upload.attach()
        self._assembler = ChunkAssembler(upload.size_bytes, upload.persisted_bytes)

    @property
    def received_bytes(self) -> int:
        return self._assembler.next_offset

    def take(self, messages: Sequence[Any]) -> None:
        with self._upload.turn(self._epoch):
            try:
                for message in messages:
                    data = self._assembler.take(message)
                    if data:
                        self._upload.append(data, self._assembler.last_crc32c)
            except MeshError as error:
                self._end_if_wrong(error)
                raise

    def finish(self) -> T:
        end = self._assembler.finish
        if end is None:
            raise MeshError(Reason.STREAM_INCOMPLETE, "the stream ended before its finish")
        with self._upload.turn(self._epoch):
            try:
                return self._commit(self._upload, self._upload.seal(end.sha256))
            except MeshError as error:
                self._end_if_wrong(error)
                raise

    def close(self) -> None:
        try:
            with self._upload.turn(self._epoch):
                self._upload.detach()
        except MeshError as error:
            # Committed, discarded or taken over: nothing is left to close here.
            if error.reason not in (Reason.WRITER_SUPERSEDED, Reason.UPLOAD_NOT_FOUND):
                raise

    def _end_if_wrong(self, error: MeshError) -> None:
        if error.reason in _WRONG_WHOLE:
            self._upload.discard()


class Finished:
    """A stream for an upload that is a bundle already: checked, not stored, same answer."""

    def __init__(self, bundle: transfer_pb2.Bundle) -> None:
        self._bundle = bundle
        self._assembler = ChunkAssembler(bundle.size_bytes, bundle.size_bytes)

    @property
    def received_bytes(self) -> int:
        return self._assembler.next_offset

    def take(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._assembler.take(message)

    def finish(self) -> transfer_pb2.Bundle:
        end = self._assembler.finish
        if end is None or end.sha256 != self._bundle.sha256:
            raise MeshError(Reason.DIGEST_MISMATCH, "the upload was finished with another SHA-256")
        return self._bundle

    def close(self) -> None:
        """Nothing was opened."""
