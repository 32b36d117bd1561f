"""Which outputs a job that was resumed still works on, and until when a job can be resumed."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, exists, or_
from sqlalchemy.orm import aliased
from sqlmodel import Session, col
from sqlmodel.sql.expression import SelectOfScalar

from services.registry.lifecycle import JOB_TERMINAL
from services.registry.schema import JobRow, RunRow


def has_heirs(ended_before: datetime) -> ColumnElement[bool]:
    """Whether another job works on the run's output, or could be resumed from it.

    For a query over runs.
    """
    heir = aliased(JobRow)
    return exists().where(
        or_(
            col(heir.inherited_encode) == col(RunRow.run_id),
            col(heir.inherited_sample) == col(RunRow.run_id),
        ),
        or_(col(heir.end_time).is_(None), col(heir.end_time) >= ended_before),
    )


def is_over(ended_before: datetime) -> ColumnElement[bool]:
    """Whether the run's job ended so long ago that it is not resumed. For runs with their jobs."""
    return and_(col(JobRow.state).in_(JOB_TERMINAL), col(JobRow.end_time) < ended_before)


def lock_due(session: Session, due: SelectOfScalar[RunRow], limit: int) -> Sequence[RunRow]:
    """The runs of a query, held until the transaction ends, that are still of it then.

    Whoever makes an heir holds the run for it; asked again with the runs held, nobody can.
    """
    first = due.limit(limit).with_for_update(skip_locked=True, of=RunRow)
    run_ids = [run.run_id for run in session.exec(first)]
    if not run_ids:
        return []
    again = due.where(col(RunRow.run_id).in_(run_ids))
    return session.exec(again.execution_options(populate_existing=True)).all()
