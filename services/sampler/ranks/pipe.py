"""A rank's end of the pipe to its supervisor: events out, commands in, and whether to stop."""

import functools
import os
import threading
from multiprocessing.connection import Connection
from typing import Any, Protocol

from services.common.work import Watch

CANCEL = "cancel"


class Agreement(Protocol):
    """How ranks decide together."""

    def agree(self, wish: bool) -> bool:
        """Whether any rank wishes it; every rank has to ask."""


class Pipe:
    """The rank's end of its pipe, for several threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, *event: Any) -> None:
        """Tell the supervisor; without one there is nobody to work for."""
        with self._lock:
            try:
                self._connection.send(event)
            except OSError:
                os._exit(1)

    def receive(self) -> Any:
        """The next command. EOFError when the supervisor has gone."""
        return self._connection.recv()

    def cancelled(self) -> bool:
        """Whether the supervisor asked to stop, since the last look."""
        asked = False
        while self._connection.poll():
            asked = self._connection.recv() == CANCEL or asked
        return asked

    def beat(self, interval_s: float) -> None:
        """Say for ever that this process lives."""
        pause = threading.Event()
        while not pause.wait(interval_s):
            self.send("alive")


class RankWatch(Watch):
    """A watch whose other end is at the far side of the pipe; all ranks stop, or none."""

    def __init__(self, pipe: Pipe, others: Agreement | None) -> None:
        super().__init__(functools.partial(pipe.send, "report"))
        self._pipe = pipe
        self._others = others

    def raise_if_cancelled(self) -> None:
        """Look whether the supervisor asked any rank to stop. Called by all ranks alike."""
        asked = self._pipe.cancelled() or self.cancelled
        if asked if self._others is None else self._others.agree(asked):
            self.cancel()
        super().raise_if_cancelled()
