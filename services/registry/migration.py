"""Brings a database to the schema of this version, or says why it will not be touched."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from services.registry.database import make_engine


class SchemaMismatch(Exception):
    """The database is not of this version. `str()` says what to do."""


def migrate(url: str) -> str:
    """Bring the database at `url` to the newest schema; the revision it has now.

    Raises SchemaMismatch if it was made by a newer or by another program.
    """
    with_database = make_engine(url)
    try:
        with with_database.connect() as connection:
            _current(connection)
            connection.rollback()
        with with_database.execution_options(write=True).begin() as connection:
            command.upgrade(_config(connection), "head")
            return _current(connection) or ""
    finally:
        with_database.dispose()


def require_schema(url: str) -> None:
    """Migrate a fresh database; raise SchemaMismatch for one of any other version."""
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            current = _current(connection)
    finally:
        engine.dispose()
    head = _scripts().get_current_head()
    if current is None:
        migrate(url)
    elif current != head:
        raise SchemaMismatch(
            f"the database has schema {current} and this version needs {head}: stop every "
            "registry on it, make a backup and run `reelmesh migrate`"
        )


def _current(connection: Connection) -> str | None:
    """The database's revision; None if it is empty."""
    current = MigrationContext.configure(connection).get_current_revision()
    if current is None:
        tables = inspect(connection).get_table_names()
        if set(tables) - {"alembic_version"}:
            raise SchemaMismatch(
                "the database has tables but no schema version: it was not made by reelmesh, or "
                "it is damaged. Name another one, or restore a backup"
            )
        return None
    if current not in {script.revision for script in _scripts().walk_revisions()}:
        raise SchemaMismatch(
            f"the database has schema {current}, which this version does not know: a newer "
            "reelmesh made it. Upgrade reelmesh, or restore an older backup"
        )
    return current


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
