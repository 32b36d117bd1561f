"""What files of ours say when they cannot be used."""

import errno

# As Rust libraries (safetensors) tell them, in words alone: ENOSPC and EDQUOT.
_FULL_WORDS = (f"os error {errno.ENOSPC})", f"os error {errno.EDQUOT})")


class DamagedFile(OSError):
    """A file that this program wrote and cannot read. `str()` says which and what to do."""


def is_disk_full(error: Exception) -> bool:
    """Whether a write failed because the disk, or a quota on it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(words in str(error) for words in _FULL_WORDS)
