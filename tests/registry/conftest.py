"""A mesh for each test, on each of the databases."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.common.telemetry import configure
from services.registry.database import Database, make_engine
from services.registry.migration import migrate
from tests.postgres import Server
from tests.registry.mesh import Mesh
from tests.registry.queue import Queue


@pytest.fixture(scope="session")
def template(postgres: Server) -> str:
    """An empty PostgreSQL database of this version, to be copied."""
    name = postgres.create()
    migrate(postgres.url(name))
    return name


@pytest.fixture
def postgres_url(postgres: Server, template: str) -> Iterator[str]:
    """A fresh PostgreSQL database."""
    name = postgres.create(template)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database, of both kinds one after the other."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'home' / 'registry' / 'registry.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables, of both kinds one after the other."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'registry.db'}"
        return
    postgres: Server = request.getfixturevalue("postgres")
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
async def mesh(tmp_path: Path, database_url: str) -> AsyncIterator[Mesh]:
    """A running registry with no stages yet."""
    mesh = Mesh(tmp_path / "home", database_url=database_url)
    await mesh.start()
    yield mesh
    await mesh.stop()


@pytest.fixture
def queue(database_url: str) -> Iterator[Queue]:
    """A registry's database without a registry."""
    migrate(database_url)
    database = Database(make_engine(database_url), lambda names: None)
    yield Queue(database)
    database.close()


@pytest.fixture(autouse=True)
def quiet_log() -> None:
    """Only what went wrong."""
    configure("registry", "registry", "warning")
