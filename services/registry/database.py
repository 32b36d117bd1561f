"""The database: one engine, and one way to run a transaction, always outside the event loop.

On SQLite a write begins IMMEDIATE and only one is open at a time in this process, and a lock file
keeps every other registry out; so no statement ever waits for a lock that it could lose. Reads see
a snapshot (WAL) and wait for nobody.
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlmodel import Session

T = TypeVar("T")

_TOUCHED = "touched"
_READERS = 4


class DatabaseHeld(Exception):
    """Another registry has this SQLite file. `str()` says which."""


def make_engine(url: str) -> Engine:
    """An engine for `url`; on SQLite with WAL, foreign keys and explicit BEGINs."""
    if not is_sqlite(url):
        return create_engine(url)
    sqlite_path(url).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": 5.0, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        # The driver would begin by itself, and only at the first write: too late to be sure.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def is_sqlite(url: str) -> bool:
    """Whether the URL names a SQLite file."""
    return make_url(url).get_backend_name() == "sqlite"


def sqlite_path(url: str) -> Path:
    """The file that a SQLite URL names."""
    return Path(make_url(url).database or "")


def touch(session: Session, *names: str) -> None:
    """Tell those who wait for these names, after the transaction under way has committed."""
    session.info.setdefault(_TOUCHED, set()).update(names)


class Database:
    """Runs transactions. `on_commit` is called on the loop with the names that were touched."""

    def __init__(self, engine: Engine, on_commit: Callable[[frozenset[str]], None]) -> None:
        self._engine = engine
        self._on_commit = on_commit
        self._sqlite = engine.dialect.name == "sqlite"
        self._turn = threading.Lock()
        # SQLite takes one writer at a time, so one thread is all that writing can use.
        self._writers = ThreadPoolExecutor(1 if self._sqlite else _READERS, "write")
        self._readers = ThreadPoolExecutor(_READERS, "read")

    def transact(self, work: Callable[[Session], T]) -> tuple[T, frozenset[str]]:
        """`work` in one write transaction, in this thread: its answer, and what it touched."""
        with ExitStack() as stack:
            if self._sqlite:
                stack.enter_context(self._turn)
            connection = stack.enter_context(self._engine.connect())
            connection = connection.execution_options(write=True)
            session = stack.enter_context(Session(connection, expire_on_commit=False))
            answer = work(session)
            session.commit()
            return answer, frozenset(session.info.get(_TOUCHED, ()))

    async def write(self, work: Callable[[Session], T]) -> T:
        """`work` in one write transaction in a thread; whoever waits for what it touched wakes.

        A caller that is cancelled does not undo it.
        """
        loop = asyncio.get_running_loop()

        def transact() -> T:
            answer, touched = self.transact(work)
            if touched and not loop.is_closed():
                loop.call_soon_threadsafe(self._on_commit, touched)
            return answer

        return await loop.run_in_executor(self._writers, transact)

    async def read(self, work: Callable[[Session], T]) -> T:
        """`work` on one snapshot in a thread. It must not write."""

        def inspect() -> T:
            with self._engine.connect() as connection, Session(connection) as session:
                return work(session)

        return await asyncio.get_running_loop().run_in_executor(self._readers, inspect)

    def close(self) -> None:
        """Finish what is under way and close the connections."""
        self._writers.shutdown(wait=True)
        self._readers.shutdown(wait=True)
        self._engine.dispose()


class FileLock:
    """Keeps a second registry off the same SQLite file; a process that dies lets go of it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take it, or raise DatabaseHeld. On PostgreSQL replicas are welcome: nothing to take."""
        if not is_sqlite(self._url):
            return
        file = sqlite_path(self._url)
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DatabaseHeld(
                f"another registry is running on {file}: stop it, or give this one its own "
                "REELMESH_HOME or REELMESH_REGISTRY_DATABASE_URL"
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
