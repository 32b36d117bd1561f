"""The database: claims, locks, times, migrations, and whose file it is."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, StatementError
from sqlmodel import Session, SQLModel, select

from reelmesh.v1 import stage_pb2
from services.common.ids import new_id
from services.registry.database import Database, DatabaseHeld, FileLock, make_engine
from services.registry.lifecycle import InstanceState, RunState, Stage
from services.registry.migration import SchemaMismatch, _config, migrate, require_schema
from services.registry.records.claims import claim
from services.registry.records.instances import register, suspect
from services.registry.records.owners import create_owner
from services.registry.records.submissions import create_jobs
from services.registry.schema import InstanceRow, JobRow, OwnerRow, RunRow
from tests.registry.queue import create_job, draft


@pytest.fixture
def url(empty_url: str) -> str:
    """A database without tables, of both kinds."""
    return empty_url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """A migrated one."""
    migrate(url)
    engine = make_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def database(engine: Engine) -> Iterator[Database]:
    """The same as the registry uses it."""
    database = Database(engine, lambda names: None)
    yield database
    database.close()


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that does not live in UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def add_instance(session: Session, instance_id: str, slots: int) -> None:
    """A registered encoder."""
    capabilities = stage_pb2.Capabilities(stage=stage_pb2.STAGE_ENCODE, slots=slots)
    instance = stage_pb2.Instance(
        instance_id=instance_id,
        endpoint="127.0.0.1:1",
        boot_id=new_id("boot"),
        journal_id=new_id("jrn"),
        capabilities=capabilities,
    )
    register(session, instance, Stage.ENCODE)


def add_jobs(session: Session, count: int) -> None:
    """Queued jobs of one owner."""
    owner = create_owner(session, "somebody", admin=False)
    for _ in range(count):
        create_job(session, owner.owner_id)


def test_eight_claimers_claim_every_job_once(database: Database) -> None:
    """100 jobs, 100 distinct runs, no lock errors, first come first served."""
    database.transact(lambda session: add_instance(session, "encoder-0", 100))
    database.transact(lambda session: add_jobs(session, 100))
    claimed: list[str] = []
    errors: list[Exception] = []

    def work() -> None:
        names = ["encoder-0"]
        try:
            while run_id := database.transact(
                lambda session: claim(session, Stage.ENCODE, names, names, 1000)
            )[0]:
                claimed.append(run_id)
        except Exception as error:  # noqa: BLE001 - told by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(claimed)) == len(claimed) == 100
    with Session(database._engine) as session:
        assert len({run.job_id for run in session.exec(select(RunRow))}) == 100


def test_claims_through_two_engines_never_fail_as_locked(url: str, database: Database) -> None:
    """A write begins IMMEDIATE, so it waits for its turn instead of losing it half-way."""
    other = Database(make_engine(url), lambda names: None)
    database.transact(lambda session: add_instance(session, "encoder-0", 100))
    database.transact(lambda session: add_jobs(session, 40))
    claimed: list[str] = []

    def work(mine: Database) -> None:
        names = ["encoder-0"]
        while run_id := mine.transact(
            lambda session: claim(session, Stage.ENCODE, names, names, 1000)
        )[0]:
            claimed.append(run_id)

    threads = [threading.Thread(target=work, args=(one,)) for one in (database, other) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert len(set(claimed)) == len(claimed) == 40


def test_a_slot_is_bound_once(database: Database) -> None:
    """Two jobs, one slot: the second waits."""
    database.transact(lambda session: add_instance(session, "encoder-0", 1))
    database.transact(lambda session: add_jobs(session, 2))
    names = ["encoder-0"]
    first, second = (
        database.transact(lambda session: claim(session, Stage.ENCODE, names, names, 9))[0]
        for _ in range(2)
    )
    assert first
    assert second is None


def test_the_database_itself_refuses_a_second_live_run_of_a_job(database: Database) -> None:
    """Whatever the code above does."""
    database.transact(lambda session: add_instance(session, "encoder-0", 9))
    database.transact(lambda session: add_jobs(session, 1))
    names = ["encoder-0"]
    database.transact(lambda session: claim(session, Stage.ENCODE, names, names, 9))

    def bind_again(session: Session) -> None:
        run = session.exec(select(RunRow)).one()
        twin = RunRow(**{**run.model_dump(), "run_id": new_id("run")})
        session.add(twin)

    with pytest.raises(IntegrityError):
        database.transact(bind_again)


def test_what_is_read_again_and_again_stays_prepared(postgres_url: str) -> None:
    """The server plans a query once: no read ends in a way that makes psycopg forget it."""
    database = Database(make_engine(postgres_url), lambda names: None)
    prepared = text("SELECT count(*) FROM pg_prepared_statements")
    try:
        for _ in range(10):
            database.inspect(lambda session: session.exec(select(OwnerRow)).all())
        assert database.inspect(lambda session: session.execute(prepared).scalar_one()) >= 1
    finally:
        database.close()


@pytest.mark.usefixtures("tokyo")
def test_times_are_aware_utc_and_enums_are_values(database: Database) -> None:
    """What goes in comes out, and a raw query finds a state by its word."""
    at = datetime(2026, 3, 1, 2, 3, 4, 5678, timezone(timedelta(hours=9)))

    def write(session: Session) -> None:
        session.add(OwnerRow(owner_id="own_1", name="x", create_time=at))
        session.flush()
        create_jobs(session, [replace(draft("own_1"), seed=2**64 - 1)])

    database.transact(write)
    with Session(database._engine) as session:
        owner = session.get_one(OwnerRow, "own_1")
        assert owner.create_time == at
        assert owner.create_time.tzinfo is UTC
        raw = text("SELECT job_id FROM job WHERE state = 'QUEUED' AND stage = 'ENCODE'")
        job = session.get_one(JobRow, session.execute(raw).scalar_one())
        assert abs(datetime.now(UTC) - job.create_time) < timedelta(minutes=1)
        assert job.seed == str(2**64 - 1)


def test_a_naive_time_is_refused(database: Database) -> None:
    """It would mean something else elsewhere."""
    naive = datetime(2026, 3, 1)

    def write(session: Session) -> None:
        session.add(OwnerRow(owner_id="own_1", name="x", create_time=naive))

    with pytest.raises(StatementError):
        database.transact(write)


@pytest.mark.usefixtures("tokyo")
def test_an_expired_lease_keeps_the_slot_and_requeues_nothing(database: Database) -> None:
    """SUSPECT and UNKNOWN; only a binding whose start was never sent is taken back."""
    database.transact(lambda session: add_instance(session, "encoder-0", 2))
    database.transact(lambda session: add_jobs(session, 2))
    names = ["encoder-0"]
    sent, unsent = (
        database.transact(lambda session: claim(session, Stage.ENCODE, names, names, 9))[0]
        for _ in range(2)
    )

    def send(session: Session) -> None:
        run = session.get_one(RunRow, sent)
        run.start_sent = True
        session.add(run)

    database.transact(send)
    assert database.transact(lambda session: suspect(session, "encoder-0"))[0]
    with Session(database._engine) as session:
        assert session.get_one(InstanceRow, "encoder-0").state is InstanceState.SUSPECT
        assert session.get_one(RunRow, sent).state is RunState.UNKNOWN
        assert session.get_one(RunRow, unsent).state is RunState.REFUSED
        states = [(job.state, job.waiting) for job in session.exec(select(JobRow))]
    assert sorted(states) == [("QUEUED", True), ("VERIFYING", False)]


def test_the_migrations_make_what_the_models_say(engine: Engine) -> None:
    """Tables, columns and indexes."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []


def test_migrating_twice_changes_nothing(url: str) -> None:
    """And a fresh database is migrated by the registry itself."""
    require_schema(url)
    assert migrate(url) == migrate(url) == ScriptDirectory.from_config(_config()).get_current_head()
    require_schema(url)


@pytest.mark.parametrize(
    ("revision", "words"), [("9999", "newer reelmesh"), (None, "not made by reelmesh")]
)
def test_a_newer_or_foreign_schema_is_refused(
    url: str, engine: Engine, revision: str | None, words: str
) -> None:
    """With what to do, and without touching it."""
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        if revision:
            connection.execute(text(f"INSERT INTO alembic_version VALUES ('{revision}')"))
    for refuse in (require_schema, migrate):
        with pytest.raises(SchemaMismatch, match=words):
            refuse(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """By its name, and left as it is."""
    path = tmp_path / "registry.db"
    path.write_bytes(content := b"this is a letter, not a database" * 99)
    for refuse in (require_schema, migrate):
        with pytest.raises(SchemaMismatch, match=r"registry\.db cannot be used.*not a database"):
            refuse(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_an_older_schema_is_refused_with_the_command_that_helps(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody migrates a database with work in it without asking."""
    monkeypatch.setattr(ScriptDirectory, "get_current_head", lambda self: "9999")
    with pytest.raises(SchemaMismatch, match="reelmesh migrate"):
        require_schema(url)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("ALTER TABLE job DROP COLUMN resumes", "column job.resumes"),
        ("DROP TABLE ruling", "table ruling"),
        ("DROP INDEX ux_run_live_job", "index ux_run_live_job"),
    ],
)
def test_a_damaged_schema_is_refused_naming_what_is_missing(
    url: str, engine: Engine, damage: str, words: str
) -> None:
    """Its version alone proves nothing."""
    with engine.begin() as connection:
        connection.execute(text(damage))
    with pytest.raises(SchemaMismatch, match=f"damaged: the {words} is missing"):
        require_schema(url)


def test_a_second_holder_of_the_file_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    """The message names the file."""
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    first, second = FileLock(url), FileLock(url)
    first.acquire()
    with pytest.raises(DatabaseHeld, match=r"registry\.db"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
