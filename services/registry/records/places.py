"""How many jobs will be given a turn, or go to their next stage, before one that waits."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any

from sqlalchemy import bindparam, func, literal_column, or_, tuple_
from sqlalchemy import select as select_columns
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from services.registry.fairness import Entrant, count_ahead
from services.registry.lifecycle import Stage
from services.registry.placement import TYPICAL_UNIT_S
from services.registry.records.charges import UNIT, work
from services.registry.records.turns import ENTRANT
from services.registry.schema import JobRow, OwnerRow

# What is further ahead is not counted.
MOST_AHEAD = 100


def _others() -> Any:
    """Owners in turn that may have a job before a virtual time, each with how many wait."""
    one: Any = select(literal_column("1").label("one"))
    jobs = one.where(
        col(JobRow.owner_id) == col(OwnerRow.owner_id),
        col(JobRow.stage) == Stage.ENCODE,
        col(JobRow.waiting).is_(True),
    )
    bounded = jobs.limit(MOST_AHEAD).correlate(OwnerRow).subquery()
    waiting = select(func.count()).select_from(bounded).correlate(OwnerRow).scalar_subquery()
    return (
        select_columns(*ENTRANT, waiting)
        .where(
            col(OwnerRow.in_turn).is_(True),
            col(OwnerRow.virtual_time_s) <= bindparam("before"),
        )
        .order_by(col(OwnerRow.virtual_time_s))
        # Whoever asks is among them and not counted.
        .limit(MOST_AHEAD + 1)
    )


def _standings() -> Any:
    """(job, own jobs that come first, a sampler's seconds for a unit, its owner as an entrant)."""
    mine, jobs = aliased(JobRow), aliased(JobRow)
    came_first = tuple_(jobs.create_time, jobs.job_id) < tuple_(mine.create_time, mine.job_id)
    own: Any = (
        select(literal_column("1").label("one"))
        .where(
            col(jobs.owner_id) == col(mine.owner_id),
            col(jobs.stage) == Stage.ENCODE,
            col(jobs.waiting).is_(True),
            or_(
                col(jobs.priority) > col(mine.priority),
                (col(jobs.priority) == col(mine.priority)) & came_first,
            ),
        )
        .limit(MOST_AHEAD)
        .correlate(mine)
        .subquery()
    )
    ahead = select(func.count()).select_from(own).correlate(mine).scalar_subquery()
    return (
        select_columns(col(mine.job_id), ahead, UNIT.scalar_subquery(), *ENTRANT)
        .join(OwnerRow, col(OwnerRow.owner_id) == col(mine.owner_id))
        .where(col(mine.job_id).in_(bindparam("job_ids", expanding=True)))
    )


# Built once: building it takes longer than SQLite does.
_BEFORE, _STANDINGS = _others(), _standings()


def places_of(session: Session, jobs: Iterable[JobRow]) -> Mapping[str, int]:
    """How many come before each of these jobs, all of which wait and are written, by job."""
    unturned, places = [], {}
    for job in jobs:
        if job.stage is Stage.ENCODE and not job.charged_s:
            unturned.append(job)
        else:
            places[job.job_id] = _turned_before(session, job)
    return {**places, **_turns_before(session, unturned)}


def _turned_before(session: Session, job: JobRow) -> int:
    place = tuple_(col(JobRow.turn_s), col(JobRow.create_time), col(JobRow.job_id))
    before: Any = select(literal_column("1")).where(
        col(JobRow.waiting).is_(True),
        col(JobRow.stage) == job.stage,
        place < tuple_(job.turn_s, job.create_time, job.job_id),
    )
    bounded = before.limit(MOST_AHEAD).subquery()
    return int(session.exec(select(func.count()).select_from(bounded)).one())


def _turns_before(session: Session, jobs: Sequence[JobRow]) -> Mapping[str, int]:
    """By the same order as claims.py gives turns in."""
    if not jobs:
        return {}
    connection, places = session.connection(), {}
    standings: dict[str, tuple[Entrant, int, float]] = {}
    rows = connection.execute(_STANDINGS, {"job_ids": [job.job_id for job in jobs]})
    of = {job.job_id: job for job in jobs}
    for job_id, own, unit_s, *entrant in rows:
        if own == MOST_AHEAD:
            places[job_id] = MOST_AHEAD
            continue
        job_s = work(Stage.SAMPLE, of[job_id]) * (unit_s or TYPICAL_UNIT_S[Stage.SAMPLE])
        standings[job_id] = (Entrant(*entrant), own, job_s)
    if not standings:
        return places
    latest = max(mine.after(own * job_s).virtual_time_s for mine, own, job_s in standings.values())
    with closing(connection.execute(_BEFORE, {"before": latest})) as rows:
        in_turn = _InTurn(rows)
        for job_id, (mine, own, job_s) in standings.items():
            others = in_turn.without(mine.owner_id)
            places[job_id] = count_ahead(mine, own, others, job_s, MOST_AHEAD)
    return places


class _InTurn:
    """Owners in turn, each with how many of its jobs wait: read once, as far as anybody asks."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = iter(rows)
        self._read: list[tuple[Entrant, int]] = []

    def without(self, owner_id: str) -> Iterator[tuple[Entrant, int]]:
        """All but this one, in their order."""
        for index in count():
            if index == len(self._read):
                row = next(self._rows, None)
                if row is None:
                    return
                *entrant, waiting = row
                self._read.append((Entrant(*entrant), waiting))
            if self._read[index][0].owner_id != owner_id:
                yield self._read[index]
