"""What PostgreSQL alone brings: its URL, restarts, conflicts, several migrations at once."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlmodel import Session, select

from reelmesh.v1 import jobs_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.database import Database, make_engine
from services.registry.lifecycle import Stage
from services.registry.migration import migrate, require_schema
from services.registry.postgres import connect_arguments
from services.registry.records.bindings import mark_sent, withdraw_unsent
from services.registry.records.changes import lock_run
from services.registry.records.claims import claim
from services.registry.records.owners import create_owner
from services.registry.schema import OwnerRow
from tests.conftest import require_postgres
from tests.postgres import Server
from tests.registry.mesh import Mesh, until
from tests.registry.test_database import add_instance, add_jobs


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    """A fresh database as the registry uses it."""
    database = Database(make_engine(postgres_url), lambda names: None)
    yield database
    database.close()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server to stop and to crash, which keeps what it has committed."""
    server = Server(require_postgres(), durable=True)
    server.start()
    yield server
    server.remove()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_way_to_write_the_url_is_understood(postgres_url: str, scheme: str) -> None:
    """With or without the driver's name."""
    require_schema(scheme + postgres_url[postgres_url.index(":") :])


def test_a_session_of_ours_waits_for_nothing_for_ever(postgres_url: str) -> None:
    """Statements, locks and idle transactions have their limits; times are told in UTC."""
    with psycopg.connect(**connect_arguments(postgres_url)) as connection:
        shown = {
            name: connection.execute(f"SHOW {name}").fetchone()
            for name in ("statement_timeout", "lock_timeout", "TimeZone")
        }
    assert shown == {"statement_timeout": ("30s",), "lock_timeout": ("5s",), "TimeZone": ("UTC",)}


async def test_a_server_that_is_away_is_named_without_the_password(tmp_path: Path) -> None:
    """Exit code 1: whoever started the registry may try again."""
    url = "postgresql://somebody:secret-word@127.0.0.1:1/reelmesh"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.registry"),
        env={
            **os.environ,
            "REELMESH_HOME": str(tmp_path),
            "REELMESH_REGISTRY_DATABASE_URL": url,
        },
        stderr=asyncio.subprocess.PIPE,
    )
    _, words = await child.communicate()
    assert child.returncode == 1
    assert b"127.0.0.1:1/reelmesh cannot be reached" in words
    assert b"secret-word" not in words


def test_several_that_migrate_at_once_do_it_once(postgres: Server) -> None:
    """The others wait and find it done."""
    name = postgres.create()
    url = postgres.url(name)
    with ThreadPoolExecutor(6) as pool:
        starts = [pool.submit(require_schema, url) for _ in range(3)]
        migrations = [pool.submit(migrate, url) for _ in range(3)]
        for start in starts:
            start.result()
        assert len({migration.result() for migration in migrations}) == 1
    postgres.drop(name)


def test_transactions_that_wait_for_each_other_both_succeed_in_the_end(database: Database) -> None:
    """The server undoes one of a deadlock, and it is run again."""
    database.transact(lambda session: [create_owner(session, name, admin=False) for name in "ab"])
    met = threading.Barrier(2, timeout=20)
    tries: list[str] = []

    def bump(first: str, second: str) -> None:
        def work(session: Session) -> None:
            tries.append(first)
            for name in (first, second):
                owner = session.exec(
                    select(OwnerRow).where(OwnerRow.name == name).with_for_update()
                ).one()
                owner.revision += 1
                session.add(owner)
                session.flush()
                if len(tries) <= 2 and name == first:
                    met.wait()

        database.transact(work)

    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(bump, "a", "b"), pool.submit(bump, "b", "a")):
            done.result()
    assert len(tries) == 3
    with Session(database._engine) as session:
        assert [owner.revision for owner in session.exec(select(OwnerRow))] == [2, 2]


def test_a_row_that_another_wrote_first_is_met_on_the_second_try(database: Database) -> None:
    """A name that two take at once is OWNER_EXISTS for one of them, not a crash."""
    met = threading.Barrier(2, timeout=20)
    looked: list[int] = []

    def make(number: int) -> str:
        def work(session: Session) -> None:
            first = number not in looked
            if first and not session.exec(select(OwnerRow)).all():
                looked.append(number)
                met.wait()
            create_owner(session, "twin", admin=False)

        try:
            database.transact(work)
        except MeshError as error:
            return error.reason
        return "made"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(make, (1, 2))) == sorted([Reason.OWNER_EXISTS, "made"])


def test_a_binding_is_not_taken_back_while_its_start_is_sent(database: Database) -> None:
    """Whoever decides on a run holds it: the other one sees what was decided, and does not call."""
    run_id = database.transact(_bind)[0]
    deciding, decide = threading.Event(), threading.Event()

    def take_back(session: Session) -> bool:
        locked = lock_run(session, run_id)
        assert locked is not None
        deciding.set()
        assert decide.wait(20)
        return withdraw_unsent(session, run_id)

    with ThreadPoolExecutor(2) as pool:
        withdrawn = pool.submit(database.transact, take_back)
        assert deciding.wait(20)
        sent = pool.submit(database.transact, lambda session: mark_sent(session, run_id))
        with pytest.raises(TimeoutError):
            sent.result(0.3)
        decide.set()
        assert withdrawn.result()[0]
        assert not sent.result()[0]


def _bind(session: Session) -> str:
    add_instance(session, "encoder-0", 1)
    add_jobs(session, 1)
    session.flush()
    run_id = claim(session, Stage.ENCODE, ["encoder-0"], ["encoder-0"], 9)
    assert run_id is not None
    return run_id


def test_a_read_sees_one_moment(database: Database) -> None:
    """What commits in its middle is seen by the next one, and a read cannot write."""
    database.transact(lambda session: create_owner(session, "first", admin=False))

    def look(session: Session) -> tuple[int, int]:
        before = len(session.exec(select(OwnerRow)).all())
        database.transact(lambda other: create_owner(other, "second", admin=False))
        return before, len(session.exec(select(OwnerRow)).all())

    assert database.inspect(look) == (1, 1)
    with pytest.raises(Exception, match="read-only"):
        database.inspect(lambda session: session.execute(text("DELETE FROM owner")))


@pytest.fixture
async def mesh_on_own_server(own_server: Server, tmp_path: Path) -> AsyncIterator[Mesh]:
    """A mesh whose database can be taken away."""
    url = own_server.url(own_server.create())
    mesh = Mesh(tmp_path / "home", database_url=url)
    await mesh.start()
    yield mesh
    await mesh.stop()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
async def test_the_registry_outlives_its_server(
    mesh_on_own_server: Mesh, own_server: Server, number: signal.Signals
) -> None:
    """A fast stop or a crash: calls fail UNAVAILABLE, then go on; no job is lost or run twice."""
    mesh = mesh_on_own_server
    encoder, sampler, decoder = await mesh.add_all()
    await sampler.hold()
    first, second = [(await mesh.local.create()).job_id for _ in range(2)]

    async def sampling() -> bool:
        return bool(sampler.journal.begun)

    await until(sampling)
    await asyncio.to_thread(own_server.stop, number)
    with pytest.raises(MeshError) as away:
        await mesh.local.get(first)
    assert away.value.reason is Reason.UNREACHABLE
    assert away.value.retryable
    await sampler.release()
    await asyncio.to_thread(own_server.resume)

    async def answers() -> bool:
        try:
            await mesh.local.get(first)
        except MeshError as error:
            assert error.reason is Reason.UNREACHABLE
            return False
        return True

    await until(answers)
    for job_id in (first, second):
        done = await mesh.local.ended(job_id)
        assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
    for stage in (encoder, sampler, decoder):
        assert len(stage.journal.begun) == 2
