"""Brings a database to the schema of this version, or says why it will not be touched."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlmodel import SQLModel

import services.registry.schema  # noqa: F401 - fills the metadata
from services.registry.database import is_sqlite, make_engine, sqlite_path
from services.registry.postgres import (
    DatabaseAway,
    is_away,
    is_postgres,
    lock_migrations,
    normalize,
)


class SchemaMismatch(Exception):
    """The database is not of this version. `str()` says what to do."""


def migrate(url: str) -> str:
    """Bring the database at `url` to the newest schema; the revision it has now.

    Raises SchemaMismatch if it was made by a newer or by another program, DatabaseAway if it
    cannot be reached. Of several that migrate at once one does it and the others find it done.
    """
    engine = make_engine(url)
    try:
        return _migrate(engine)
    except DBAPIError as error:
        raise _away(url, error) from error
    finally:
        engine.dispose()


def require_schema(url: str) -> None:
    """Migrate a fresh database; raise SchemaMismatch for one of any other version or damaged.

    DatabaseAway if it cannot be reached.
    """
    engine = make_engine(url)
    try:
        with engine.connect() as connection:
            current = _current(connection)
        if current is None:
            current = _migrate(engine)
        head = _scripts().get_current_head()
        if current != head:
            raise SchemaMismatch(
                f"the database has schema {current} and this version needs {head}: stop every "
                "registry on it, make a backup and run `reelmesh migrate`"
            )
        with engine.connect() as connection:
            _require_whole(connection)
    except DBAPIError as error:
        raise _away(url, error) from error
    finally:
        engine.dispose()


def _migrate(engine: Engine) -> str:
    with engine.execution_options(write=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            lock_migrations(connection)
        _current(connection)
        command.upgrade(_config(connection), "head")
        return _current(connection) or ""


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


def _require_whole(connection: Connection) -> None:
    """Raise SchemaMismatch naming a table, a column or an index that is not there."""
    found = inspect(connection)
    tables = set(found.get_table_names())
    for table in SQLModel.metadata.sorted_tables:
        if table.name not in tables:
            raise _damaged(f"the table {table.name}")
        columns = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                raise _damaged(f"the column {table.name}.{column.name}")
        indexes = {index["name"] for index in found.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indexes:
                raise _damaged(f"the index {index.name}")


def _damaged(what: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the database is damaged: {what} is missing. Restore a backup, or name another database"
    )


def _away(url: str, error: DBAPIError) -> Exception:
    """The error as one for a person, if the database cannot be reached or is none; never with a
    password."""
    words = (str(error.orig).strip().splitlines() or [str(error)])[-1]
    if is_sqlite(url):
        advice = "make it readable and writable" if isinstance(error, OperationalError) else ""
        return SchemaMismatch(
            f"the database {sqlite_path(url)} cannot be used: {words}: "
            f"{advice or 'restore a backup'}, or name another file"
        )
    if not (is_postgres(url) and is_away(error)):
        return error
    place = normalize(url).render_as_string(hide_password=True)
    return DatabaseAway(f"the database {place} cannot be reached: {words}")


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
