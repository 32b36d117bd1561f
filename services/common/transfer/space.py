"""Disk space: promised before it is used, so that a run never finds the disk full at its end."""

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from services.common.rpc.errors import MeshError, Reason

# A full disk, a full quota, a file-size limit: to a caller all the same.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def free_bytes(folder: Path) -> int:
    """Bytes that this process may still write below `folder`."""
    return shutil.disk_usage(folder).free


class DiskSpace:
    """Who was promised how much of one disk. Safe to use from several threads."""

    def __init__(
        self, folder: Path, margin_bytes: int, free: Callable[[Path], int] = free_bytes
    ) -> None:
        self._folder = folder
        self._margin_bytes = margin_bytes
        self._free = free
        self._promised: dict[str, int] = {}
        self._lock = threading.Lock()

    def reserve(self, key: str, size_bytes: int) -> None:
        """Promise `size_bytes` to `key`, or DISK_FULL. Again with the same key: replaces it."""
        with self._lock:
            others = sum(size for name, size in self._promised.items() if name != key)
            left = self._free(self._folder) - others - self._margin_bytes
            if size_bytes > left:
                raise MeshError(
                    Reason.DISK_FULL,
                    f"{size_bytes} bytes are needed and {max(left, 0)} can be promised",
                )
            self._promised[key] = size_bytes

    def settle(self, key: str, remaining_bytes: int) -> None:
        """Promise `key` only what it has still to write: the rest is counted on the disk itself.

        Never refused: what was promised before a restart stays promised after it.
        """
        with self._lock:
            self._promised[key] = remaining_bytes

    def release(self, key: str) -> None:
        """Take the promise back. Without one: nothing."""
        with self._lock:
            self._promised.pop(key, None)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Around writes: a full disk leaves as DISK_FULL."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise MeshError(Reason.DISK_FULL, "the instance's disk is full") from error
        raise
