"""What a rank says of the error that ended its work: short, its own words, never a tensor.

No torch here: the supervisor reads complaints, and a rank may fail before torch is there.
"""

import re
import signal
import traceback
from dataclasses import dataclass

from services.common.checkpoint.files import CheckpointError
from services.common.files import is_disk_full
from services.common.work import EngineError

_LINES, _LINE_CHARS, _CHARS = 24, 400, 3000
_FRAMES = 8  # of a traceback, the last ones
_DUMP = re.compile(r"(tensor|array)\(\s*\[.*?\]\s*(,[^()]*)?\)", re.DOTALL)
_CPU_MEMORY = "DefaultCPUAllocator"  # torch raises a bare RuntimeError when the host has no more


@dataclass(frozen=True)
class Complaint:
    """Why a rank could not do its work."""

    reason: str
    words: str
    sound: bool
    """Whether the rank may go on: an error that was foreseen, and not a broken device."""


def explain(error: Exception) -> Complaint:
    """The complaint that an exception out of a rank's work is."""
    if isinstance(error, EngineError):
        return Complaint(error.reason, shorten(error.message), sound=True)
    if isinstance(error, CheckpointError):
        return Complaint("ENGINE_FAILED", shorten(str(error)), sound=False)
    kind = type(error).__name__
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or _CPU_MEMORY in str(error):
        # The figures are in the error's own words: what was asked for, what is held, what is free.
        return Complaint("OUT_OF_MEMORY", shorten(f"{kind}: {error}"), sound=False)
    if is_disk_full(error):
        return Complaint("DISK_FULL", shorten(str(error)), sound=True)
    lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-_FRAMES)
    return Complaint("ENGINE_FAILED", shorten("".join(lines)), sound=False)


def shorten(words: str) -> str:
    """The last lines, without the contents of tensors."""
    lines = _DUMP.sub(r"\1(…)", words).strip().splitlines()[-_LINES:]
    text = "\n".join(
        line if len(line) <= _LINE_CHARS else line[: _LINE_CHARS - 1] + "…" for line in lines
    )
    return text if len(text) <= _CHARS else "…" + text[-(_CHARS - 1) :]


def tell_exit(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None:
        return "has closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    if -code == signal.SIGKILL:
        return f"was ended by {name}: by somebody, or by the kernel when the host's memory ran out"
    return f"was ended by {name}"
