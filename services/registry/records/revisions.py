"""The numbers of an owner's changes: one row counts them, so they appear in their order."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, or_, update
from sqlmodel import Session, col

from services.registry.lifecycle import Stage
from services.registry.records.turns import encodable
from services.registry.schema import JobRow, OwnerRow, table_of

# Statements that every job needs are built once: building one takes longer than SQLite does.
_OF = col(OwnerRow.owner_id) == bindparam("numbered")
_NUMBER: Any = (
    update(OwnerRow)
    .where(_OF)
    .values(revision=OwnerRow.revision + 1)
    .returning(col(OwnerRow.revision))
    .execution_options(synchronize_session=False)
)
_NUMBER_WAITING = _NUMBER.values(in_turn=True)
_NUMBER_ROOM = _NUMBER.values(in_turn=or_(col(OwnerRow.in_turn), encodable(bindparam("numbered"))))
_OWNERS = table_of(OwnerRow)
_NUMBER_ALL: Any = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id.in_(bindparam("numbered", expanding=True)))
    .values(revision=_OWNERS.c.revision + bindparam("changes"))
    .returning(_OWNERS.c.owner_id, _OWNERS.c.revision)
)
_NUMBER_ALL_WAITING = _NUMBER_ALL.values(in_turn=True)


def number(session: Session, job: JobRow) -> int:
    """The owner's next revision, for a change of the job; and whether the owner is in turn now.

    It may be if the job waits, or has made room for another one by moving on or ending.
    """
    values = {"numbered": job.owner_id}
    statement = _NUMBER
    if job.waiting and job.stage is Stage.ENCODE:
        statement = _NUMBER_WAITING
    elif job.waiting or job.stage is None:
        # What is asked about are the owner's other jobs. If this one still seems to wait because it
        # is not written yet, the owner is looked at once for nothing.
        statement = _NUMBER_ROOM
    with session.no_autoflush:
        return int(session.execute(statement, values).scalar_one())


def number_all(session: Session, jobs: Sequence[JobRow], *, waiting: bool = False) -> list[int]:
    """The next revisions of their owners for changes of these jobs, in their order.

    All are bound now; or `waiting`: all wait for their first stage, so their owners are in turn.
    """
    statement = _NUMBER_ALL_WAITING if waiting else _NUMBER_ALL
    changes = Counter(job.owner_id for job in jobs)
    following: dict[str, int] = {}
    for count in sorted(set(changes.values())):
        names = sorted(owner_id for owner_id in changes if changes[owner_id] == count)
        rows = session.connection().execute(statement, {"numbered": names, "changes": count})
        following |= {owner_id: revision - count for owner_id, revision in rows}
    revisions = []
    for job in jobs:
        following[job.owner_id] += 1
        revisions.append(following[job.owner_id])
    return revisions
