"""What is PostgreSQL's own: how we connect to it, and what its failures mean."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy import exc as sql_errors
from sqlalchemy.dialects import registry
from sqlalchemy.engine import make_url

_DRIVER = "postgresql+psycopg"
_NAMES = ("postgresql", "postgres", _DRIVER)
# Connections of one registry: its readers, its writers, and one to spare.
_CONNECTIONS = 9
_CONNECT_S = 5

# Nothing of ours takes long. A process that stands still inside a transaction must not hold the
# rows that the other registries wait for: the server ends its session, and nothing was written.
_SESSION: Mapping[str, str] = {
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "5s",
    "timezone": "UTC",
}
# Any number that nobody else uses: "reelmesh" on a telephone's keys.
_MIGRATION_LOCK = 73356374

# Another transaction was in the way: this one was undone and may be done again.
_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_DUPLICATE = "23505"
# The server is starting, stopping or full, or it ended our session.
_AWAY = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "53300"})
_CONNECTION_CLASS = "08"


class DatabaseAway(Exception):
    """The database cannot be reached. `str()` names it without its password."""


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL database."""
    return url.partition(":")[0] in _NAMES


def normalize(url: str) -> URL:
    """The URL with our driver, however the operator wrote it."""
    scheme, colon, rest = url.partition(":")
    return make_url((_DRIVER if scheme in _NAMES else scheme) + colon + rest)


def connect_arguments(url: str) -> dict[str, Any]:
    """What psycopg is given to connect to the URL as every connection of ours does."""
    dialect = registry.load("postgresql.psycopg")()
    _, arguments = dialect.create_connect_args(normalize(url))
    return {**arguments, **_options()}


def _options() -> dict[str, Any]:
    settings = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    return {
        "connect_timeout": _CONNECT_S,
        "application_name": "reelmesh-registry",
        "options": settings,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


def make_postgres_engine(url: str) -> Engine:
    """An engine whose writes are READ COMMITTED: what they decide on, they lock."""
    return create_engine(
        normalize(url),
        connect_args=_options(),
        isolation_level="READ COMMITTED",
        pool_size=_CONNECTIONS,
        max_overflow=0,
        pool_timeout=10,
        # What an error says goes to logs: no prompt and no token.
        hide_parameters=True,
    )


def lock_migrations(connection: Connection) -> None:
    """Wait until no other registry migrates this database; held until the transaction ends."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")


def is_conflict(error: Exception) -> bool:
    """Whether the transaction was undone because of another one."""
    return isinstance(error, sql_errors.DBAPIError) and _sqlstate(error) in _CONFLICTS


def is_duplicate(error: Exception) -> bool:
    """Whether another transaction wrote a row of the same key first."""
    return isinstance(error, sql_errors.IntegrityError) and _sqlstate(error) == _DUPLICATE


def is_cut(error: Exception) -> bool:
    """Whether the session ended under the statement; a new one may well be had at once."""
    return isinstance(error, sql_errors.DBAPIError) and error.connection_invalidated


def is_away(error: Exception) -> bool:
    """Whether the server could not be reached, or ended the session."""
    if isinstance(error, sql_errors.TimeoutError):
        return True
    if not isinstance(error, sql_errors.DBAPIError):
        return False
    state = _sqlstate(error)
    if error.connection_invalidated or state in _AWAY or state.startswith(_CONNECTION_CLASS):
        return True
    # A connection that was never made has no state.
    return isinstance(error, sql_errors.OperationalError) and not state


def _sqlstate(error: sql_errors.DBAPIError) -> str:
    return str(getattr(error.orig, "sqlstate", None) or "")
