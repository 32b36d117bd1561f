"""Column types that mean the same on SQLite and on PostgreSQL.

SQLite drops time zones and SQLAlchemy's own Enum stores member names; both have broken registries
in the field, so neither is left to a default here.
"""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import DateTime, String
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

E = TypeVar("E", bound=StrEnum)


class UtcTime(TypeDecorator[datetime]):
    """An aware time, stored in UTC and read back aware. A naive one is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; naive on SQLite, which would ignore the zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        in_utc = value.astimezone(UTC)
        return in_utc.replace(tzinfo=None) if dialect.name == "sqlite" else in_utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class ByValue(TypeDecorator[E], Generic[E]):
    """A StrEnum, stored by value in a string column. An unknown value is refused."""

    impl = String(16)
    cache_ok = True

    def __init__(self, members: type[E]) -> None:
        super().__init__()
        self.members = members

    def process_bind_param(self, value: Any | None, dialect: Dialect) -> str | None:
        """The value."""
        return None if value is None else self.members(value).value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> E | None:
        """The member."""
        return None if value is None else self.members(value)


def utc_now() -> datetime:
    """Now, aware."""
    return datetime.now(UTC)


def moments(count: int) -> list[datetime]:
    """So many times up to now, each later than the one before: what comes together has an order."""
    now = utc_now()
    return [now - timedelta(microseconds=left) for left in reversed(range(count))]
