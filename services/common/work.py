"""What an engine may tell and ask while it works, and how it says that it cannot.

Engines know nothing of gRPC, journals or queues. They get a `Watch` from whoever runs them, report
what they measured to it, ask it between two pieces of work whether to go on, and raise one of the
errors below. The caller runs in another thread (or feeds the watch from another process), so a
watch is safe to use from several threads.
"""

import threading
from collections.abc import Callable


class Cancelled(Exception):
    """The work was cancelled. Raised by `Watch.raise_if_cancelled`; never a failure."""


class EngineError(Exception):
    """The work cannot be done: `reason` for programs (UPPER_SNAKE), `message` for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class NonFinite(EngineError):
    """A tensor holds NaN or infinity. `what` names it, e.g. "latents after evaluation 3 of 49"."""

    def __init__(self, what: str) -> None:
        super().__init__("NON_FINITE", f"{what} hold NaN or infinity")
        self.what = what

    def __reduce__(self) -> tuple[type["NonFinite"], tuple[str]]:
        # The default would rebuild it from (reason, message): errors cross process borders.
        return type(self), (self.what,)


class Watch:
    """Progress outwards, cancellation inwards.

    `on_report(phase, done, total)` is called in the engine's thread, one call at a time. Phases are
    snake_case words: "encode_text", "evaluate", "decode_audio", "decode_video", "mux", "verify".
    """

    def __init__(self, on_report: Callable[[str, int, int], None] | None = None) -> None:
        self._on_report = on_report
        self._report_lock = threading.Lock()
        self._cancelled = threading.Event()

    def report(self, phase: str, done: int, total: int) -> None:
        """Say that `done` of `total` pieces of a phase are finished."""
        if self._on_report is None:
            return
        with self._report_lock:
            self._on_report(phase, done, total)

    def cancel(self) -> None:
        """Ask the work to stop at its next check. Cancelling twice changes nothing."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if `cancel` was called."""
        if self._cancelled.is_set():
            raise Cancelled("the work was cancelled")
