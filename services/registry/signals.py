"""Who waits for what inside this process: watches, followers and the dispatcher, by name.

Only a hint that something committed: whoever waits reads the database again, and looks from time
to time without any hint, so a missed one costs a second and never a job.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Signals:
    """Events by name. All methods are for the event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.draining = False

    def notify(self, names: Iterable[str]) -> None:
        """Wake whoever listens to one of these."""
        for name in names:
            for event in self._waiting.get(name, ()):
                event.set()

    def notify_all(self) -> None:
        """Wake everybody: something may have been missed."""
        self.notify(list(self._waiting))

    def drain(self) -> None:
        """The registry is stopping: wake everybody, to end what they serve."""
        self.draining = True
        self.notify_all()

    @contextmanager
    def listening(self, *names: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the names is notified; clear it, then look."""
        event = asyncio.Event()
        for name in names:
            self._waiting.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            for name in names:
                self._waiting[name].discard(event)
                if not self._waiting[name]:
                    del self._waiting[name]


async def wait(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, at most so long; whether it was."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
