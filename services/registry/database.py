"""The database: one engine, and one way to run a transaction, always outside the event loop.

On SQLite a write begins IMMEDIATE and only one is open at a time in this process, and a lock file
keeps every other registry out; so no statement ever waits for a lock that it could lose. Reads see
a snapshot (WAL) and wait for nobody.

On PostgreSQL a write is READ COMMITTED and locks what it decides on; one that loses against
another transaction is run again. A read sees one snapshot (REPEATABLE READ), as on SQLite. While
the server is away every call fails UNAVAILABLE, and the next one tries to connect.
"""

import asyncio
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session

from services.common.rpc.errors import MeshError, Reason
from services.registry.postgres import (
    is_away,
    is_conflict,
    is_cut,
    is_duplicate,
    is_postgres,
    make_postgres_engine,
)

T = TypeVar("T")

_TOUCHED = "touched"
_READERS = _WRITERS = 4
# A transaction that lost against another is run again, this often in all.
_ATTEMPTS = 6
_PAUSE_S = 0.02
_RETRY_S = 1.0


class DatabaseHeld(Exception):
    """Another registry has this SQLite file. `str()` says which."""


def make_engine(url: str) -> Engine:
    """An engine for `url`; on SQLite with WAL, foreign keys and explicit BEGINs."""
    if is_postgres(url):
        return make_postgres_engine(url)
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
    return not is_postgres(url) and make_url(url).get_backend_name() == "sqlite"


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
        self._snapshots = engine
        if not self._sqlite:
            self._snapshots = engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        self._turn = threading.Lock()
        # SQLite takes one writer at a time, so one thread is all that writing can use.
        self._writers = ThreadPoolExecutor(1 if self._sqlite else _WRITERS, "write")
        self._readers = ThreadPoolExecutor(_READERS, "read")

    def transact(self, work: Callable[[Session], T]) -> tuple[T, frozenset[str]]:
        """`work` in one write transaction, in this thread: its answer, and what it touched.

        Run again if the transaction lost against another one or its connection was cut before the
        commit, so `work` must be able to begin anew. UNREACHABLE if the database is away.
        """
        return self._guarded(lambda: self._transact(work))

    def inspect(self, work: Callable[[Session], T]) -> T:
        """`work` on one snapshot, in this thread. It must not write. UNREACHABLE as `transact`."""
        return self._guarded(lambda: self._inspect(work))

    def _guarded(self, once: Callable[[], T]) -> T:
        try:
            return self._attempt(once)
        except (DBAPIError, PoolTimeout) as error:
            if not self._sqlite and (is_conflict(error) or is_away(error)):
                raise _unreachable() from error
            raise

    def _attempt(self, once: Callable[[], T]) -> T:
        for attempt in range(1, _ATTEMPTS):
            try:
                return once()
            except (DBAPIError, PoolTimeout) as error:
                if not self._may_retry(error):
                    raise
                if not is_cut(error):
                    time.sleep(random.uniform(0, _PAUSE_S * 2**attempt))
        return once()

    def _may_retry(self, error: Exception) -> bool:
        """Whether the same work may succeed now; raises UNREACHABLE if the server is away."""
        if self._sqlite:
            return False
        if is_conflict(error) or is_duplicate(error) or is_cut(error):
            return True
        if is_away(error):
            raise _unreachable() from error
        return False

    def _transact(self, work: Callable[[Session], T]) -> tuple[T, frozenset[str]]:
        with ExitStack() as stack:
            if self._sqlite:
                stack.enter_context(self._turn)
            connection = stack.enter_context(self._engine.connect())
            connection = connection.execution_options(write=True)
            session = stack.enter_context(Session(connection, expire_on_commit=False))
            answer = work(session)
            session.flush()
            try:
                session.commit()
            except DBAPIError as error:
                if self._sqlite or is_conflict(error):
                    raise
                # It may have been written: only whoever asks again can know.
                raise _unreachable() from error
            return answer, frozenset(session.info.get(_TOUCHED, ()))

    def _inspect(self, work: Callable[[Session], T]) -> T:
        with self._snapshots.connect() as connection, Session(connection) as session:
            answer = work(session)
            # Nothing is written, but after a rollback psycopg forgets what the server has prepared.
            session.expunge_all()
            session.commit()
            return answer

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
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self.inspect, work)

    def close(self) -> None:
        """Finish what is under way and close the connections."""
        self._writers.shutdown(wait=True)
        self._readers.shutdown(wait=True)
        self._engine.dispose()


def _unreachable() -> MeshError:
    words = "the registry cannot reach its database now; ask again"
    return MeshError(Reason.UNREACHABLE, words, retry_after_s=_RETRY_S)


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
