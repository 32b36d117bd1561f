"""How far encoding may run ahead of the samplers: so many jobs for each slot, lane by lane.

A lane is what a job asked for: any sampler, those of a pool, or one. Jobs for samplers that are
away so never keep others from being encoded.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, or_
from sqlmodel import Session, col, select

from services.registry.lifecycle import InstanceState, Stage
from services.registry.schema import InstanceRow, JobRow

_ANY = ("", "")


class Lanes:
    """Counts of one transaction, from the rows."""

    def __init__(self, session: Session, encoded_ahead: int) -> None:
        self._encoded_ahead = encoded_ahead
        self._slots: dict[tuple[str, str], int] = {}
        self._ahead: dict[tuple[str, str], int] = {}
        self._read_slots(session)
        self._read_ahead(session)
        # Whether anything waits that asked for a pool or a sampler.
        self._named = self._waits_named(session)

    def _read_slots(self, session: Session) -> None:
        query = (
            select(InstanceRow.pool, func.sum(InstanceRow.slots))
            .where(
                col(InstanceRow.stage) == Stage.SAMPLE,
                col(InstanceRow.state) != InstanceState.GONE,
            )
            .group_by(col(InstanceRow.pool))
        )
        for pool, slots in session.exec(query):
            self._slots[(pool, "")] = slots
            self._slots[_ANY] = self._slots.get(_ANY, 0) + slots

    def _read_ahead(self, session: Session) -> None:
        for stage, waiting in ((Stage.SAMPLE, True), (Stage.ENCODE, False)):
            query = (
                select(JobRow.pool, JobRow.sampler_id, func.count())
                .where(col(JobRow.stage) == stage, col(JobRow.waiting).is_(waiting))
                .group_by(col(JobRow.pool), col(JobRow.sampler_id))
            )
            for pool, sampler_id, count in session.exec(query):
                lane = (pool, sampler_id)
                self._ahead[lane] = self._ahead.get(lane, 0) + count

    def _waits_named(self, session: Session) -> bool:
        waiting = select(JobRow.job_id).where(
            col(JobRow.stage) == Stage.ENCODE, col(JobRow.waiting).is_(True)
        )
        named = (col(JobRow.pool) > "", (col(JobRow.pool) == "") & (col(JobRow.sampler_id) > ""))
        return any(session.exec(waiting.where(one).limit(1)).first() for one in named)

    def _is_full(self, lane: tuple[str, str]) -> bool:
        pool, sampler_id = lane
        # One sampler has the slots that it has; that it has one is enough to go by.
        slots = 1 if sampler_id else self._slots.get((pool, ""), 0)
        return self._ahead.get(lane, 0) >= self._encoded_ahead * max(1, slots)

    @property
    def any_full(self) -> bool:
        """Whether a job that waits may have been left out."""
        return any(self._is_full(lane) for lane in self._ahead)

    @property
    def full(self) -> bool:
        """Whether nothing that waits may be encoded now."""
        return self._is_full(_ANY) and not self._named

    def add(self, job: JobRow) -> None:
        """The job is being encoded."""
        lane = (job.pool, job.sampler_id)
        self._ahead[lane] = self._ahead.get(lane, 0) + 1

    def admitted(self) -> Sequence[Any]:
        """What says that a job's lane has room."""
        full = [lane for lane in self._ahead if self._is_full(lane)]
        return [
            or_(col(JobRow.pool) != pool, col(JobRow.sampler_id) != sampler_id)
            for pool, sampler_id in full
        ]
