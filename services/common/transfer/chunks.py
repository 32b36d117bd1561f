"""Framing: a bundle as chunks, without a network, so that every fault can be tried in memory.

Messages go into a `ChunkAssembler` and verified bytes come out; `fill_chunk` makes what it takes.
"""

import os
from typing import Any

import google_crc32c

from reelmesh.v1 import transfer_pb2
from services.common.rpc.errors import MeshError, Reason

CHUNK_BYTES = 1 << 20
# Every language's default message limit is 4 MiB: a chunk and its frame stay far below.
MAX_CHUNK_BYTES = 2 << 20
SHA256_BYTES = 32


class ChunkAssembler:
    """Checks one stream of chunks against what was announced and what is there already.

    It stores nothing but positions. After an error the stream is over: a new one needs a new
    assembler.
    """

    def __init__(self, size_bytes: int, persisted_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self.next_offset = persisted_bytes
        self.finish: transfer_pb2.Finish | None = None
        # CRC-32C of the bytes that `accept` returned last, if it was compared with the sender's.
        self.last_crc32c: int | None = None
        self._first = True

    def take(self, message: Any) -> bytes:
        """The new bytes of a message with the oneof `header | chunk | finish`; empty for a finish.

        Raises BAD_STREAM if the message is out of place, and what `accept` and `end` raise.
        """
        kind = message.WhichOneof("message")
        if self.finish is None and kind == "chunk":
            return self.accept(message.chunk)
        if self.finish is None and kind == "finish":
            self.end(message.finish)
            return b""
        raise MeshError(Reason.BAD_STREAM, "send one header, then chunks, then one finish")

    def accept(self, chunk: transfer_pb2.Chunk) -> bytes:
        """The bytes of `chunk` that are new, verified.

        Raises CHUNK_TOO_LARGE, CHUNK_CHECKSUM, UPLOAD_GAP, CHUNK_SEQUENCE, SIZE_MISMATCH.
        """
        offset, data = chunk.offset, chunk.data  # each access of data copies
        if not 0 < len(data) <= MAX_CHUNK_BYTES:
            raise MeshError(
                Reason.CHUNK_TOO_LARGE,
                f"a chunk has {len(data)} bytes; it must have 1 to {MAX_CHUNK_BYTES}",
            )
        if chunk.HasField("crc32c") and google_crc32c.value(data) != chunk.crc32c:
            raise MeshError(Reason.CHUNK_CHECKSUM, f"the chunk at {offset} fails its CRC-32C")
        overlap = self._overlap(offset)
        end = offset + len(data)
        if end > self.size_bytes:
            raise MeshError(
                Reason.SIZE_MISMATCH,
                f"a chunk ends at {end}, but {self.size_bytes} bytes were announced",
            )
        self._first = False
        self.next_offset = max(self.next_offset, end)
        whole = chunk.HasField("crc32c") and not overlap
        self.last_crc32c = chunk.crc32c if whole else None
        return data[overlap:] if overlap else data

    def _overlap(self, offset: int) -> int:
        """How many bytes of a chunk that starts at `offset` are there already."""
        if self._first and offset > self.next_offset:
            raise MeshError(
                Reason.UPLOAD_GAP,
                f"the first chunk starts at {offset}, beyond the {self.next_offset} bytes kept",
                info={"persisted_size_bytes": str(self.next_offset)},
            )
        # Only a stream's first chunk may overlap; what follows has to start where it ends.
        if offset != self.next_offset and not (self._first and offset >= 0):
            raise MeshError(
                Reason.CHUNK_SEQUENCE, f"a chunk starts at {offset}, not at {self.next_offset}"
            )
        return self.next_offset - offset

    def end(self, finish: transfer_pb2.Finish) -> None:
        """Check the end of the stream. Raises BAD_STREAM, SIZE_MISMATCH, CHUNK_SEQUENCE."""
        if len(finish.sha256) != SHA256_BYTES:
            raise MeshError(
                Reason.BAD_STREAM,
                f"finish.sha256 has {len(finish.sha256)} bytes; a SHA-256 has {SHA256_BYTES}",
                field="finish.sha256",
            )
        if finish.size_bytes != self.size_bytes:
            raise MeshError(
                Reason.SIZE_MISMATCH,
                f"the finish says {finish.size_bytes} bytes; {self.size_bytes} were announced",
            )
        if self.next_offset != self.size_bytes:
            # The sender agrees on the size, so the last chunks were lost on their way.
            raise MeshError(
                Reason.CHUNK_SEQUENCE,
                f"the finish came after {self.next_offset} of {self.size_bytes} bytes",
            )
        self.finish = finish


def read_block(descriptor: int, offset: int, end: int) -> bytes:
    """The bytes from `offset` to the next multiple of CHUNK_BYTES, or to `end`.

    Shorter than that only if the file is. Blocks start on one grid whatever the offset, so that
    stored block sums can be compared.
    """
    return os.pread(descriptor, min(CHUNK_BYTES - offset % CHUNK_BYTES, end - offset), offset)


def fill_chunk(chunk: transfer_pb2.Chunk, offset: int, data: bytes) -> None:
    """Set offset, data and CRC in place: assigning a whole Chunk would copy the bytes again."""
    chunk.offset = offset
    chunk.data = data
    chunk.crc32c = google_crc32c.value(data)
