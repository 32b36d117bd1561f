"""What is computed over a bundle's bytes as they pass: SHA-256, and a sum for every block.

The block sums are kept with the bundle. A reader's chunks need that CRC anyway, so comparing it
with the stored one tells damage on our own disk from damage on the way, at no cost.
"""

import hashlib
import os
from typing import Self

import google_crc32c

from services.common.transfer.chunks import CHUNK_BYTES


class RunningDigest:
    """SHA-256 of all bytes so far and CRC-32C of every block of CHUNK_BYTES."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._sums: list[int] = []
        self._open_sum = 0

    def update(self, data: bytes, crc32c: int | None = None) -> None:
        """Add bytes; their CRC-32C, where it is known already, saves computing it for a block."""
        self._sha256.update(data)
        if crc32c is not None and len(data) == CHUNK_BYTES and not self.size_bytes % CHUNK_BYTES:
            self._sums.append(crc32c)
            self.size_bytes += CHUNK_BYTES
            return
        at = 0
        while at < len(data):
            room = CHUNK_BYTES - self.size_bytes % CHUNK_BYTES
            piece = data if at == 0 and len(data) <= room else data[at : at + room]
            self._open_sum = google_crc32c.extend(self._open_sum, piece)
            self.size_bytes += len(piece)
            at += len(piece)
            if self.size_bytes % CHUNK_BYTES == 0:
                self._sums.append(self._open_sum)
                self._open_sum = 0

    def copy(self) -> Self:
        """The state now: what to go back to when later bytes turn out to be lost."""
        twin = type(self)()
        twin.size_bytes = self.size_bytes
        twin._sha256 = self._sha256.copy()
        twin._sums = list(self._sums)
        twin._open_sum = self._open_sum
        return twin

    def sha256(self) -> bytes:
        """The SHA-256, 32 bytes."""
        return self._sha256.digest()

    def block_sums(self) -> tuple[int, ...]:
        """CRC-32C of every block; the last block may be short."""
        tail = (self._open_sum,) if self.size_bytes % CHUNK_BYTES else ()
        return (*self._sums, *tail)


def digest_file(descriptor: int, size_bytes: int) -> RunningDigest:
    """The digest of a file's first `size_bytes` bytes, or of all it has if that is less."""
    digest = RunningDigest()
    while digest.size_bytes < size_bytes:
        wanted = min(CHUNK_BYTES, size_bytes - digest.size_bytes)
        data = os.pread(descriptor, wanted, digest.size_bytes)
        if not data:
            break
        digest.update(data)
    return digest
