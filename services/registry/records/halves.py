"""Half-done samples: a run that was cut short may have left a snapshot on its instance's disk.

The registry knows neither whether it did nor what is in it, and need not: the sampler goes on from
it only if it is a half of exactly what is asked, and begins at zero otherwise.
"""

from sqlmodel import Session, col, select

from services.registry.lifecycle import RunState, Stage
from services.registry.schema import JobRow, RunRow

# Ends after which the run's instance knows that it will not go on by itself.
_CUT = (RunState.FAILED, RunState.CANCELLED)
# How many jobs that resumed one another are looked through.
_FAR = 32


def find_half(session: Session, job: JobRow) -> RunRow | None:
    """The last sample of the job, or of those it resumes, that was begun and cut short."""
    seen: JobRow | None = job
    for _ in range(_FAR):
        if seen is None:
            return None
        query = (
            select(RunRow)
            .where(
                col(RunRow.job_id) == seen.job_id,
                col(RunRow.stage) == Stage.SAMPLE,
                col(RunRow.state).in_(_CUT),
                col(RunRow.accepted).is_(True),
            )
            .order_by(col(RunRow.bind_time).desc())
            .limit(1)
        )
        if half := session.exec(query).first():
            return half
        seen = session.get(JobRow, seen.resumed_from) if seen.resumed_from else None
    return None


def is_kept(half: RunRow, instance_id: str, journal_id: str) -> bool:
    """Whether the instance may have the half's snapshot: it lies beside the journal."""
    return half.instance_id == instance_id and half.journal_id == journal_id
