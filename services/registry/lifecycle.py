"""The states of jobs, runs and instances, and every way from one to another.

One pure, table-driven module (no I/O, no SQL, no gRPC), so that what may happen can be read in
one place and tested exhaustively. Whoever stores a state asks here first; what the tables do not
name does not happen. Longer than most modules, because the tables belong side by side.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class Stage(StrEnum):
    """The kinds of work, in their order."""

    ENCODE = "ENCODE"
    SAMPLE = "SAMPLE"
    DECODE = "DECODE"


class RunState(StrEnum):
    """Where one attempt at one stage is. BOUND, UNKNOWN and LOST are the registry's own words."""

    BOUND = "BOUND"
    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    UNKNOWN = "UNKNOWN"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REFUSED = "REFUSED"
    LOST = "LOST"


class RunEvent(StrEnum):
    """What can be learned about a run."""

    REPORTED_ACCEPTED = "REPORTED_ACCEPTED"
    REPORTED_RUNNING = "REPORTED_RUNNING"
    REPORTED_SUCCEEDED = "REPORTED_SUCCEEDED"
    REPORTED_FAILED = "REPORTED_FAILED"
    REPORTED_CANCELLED = "REPORTED_CANCELLED"
    REPORTED_REFUSED = "REPORTED_REFUSED"
    # A decode has its MP4, but the registry does not have it yet.
    REPORTED_UNPUBLISHED = "REPORTED_UNPUBLISHED"
    # The artifact is committed.
    PUBLISHED = "PUBLISHED"
    # A decode has its MP4, but its job was cancelled before it was published.
    DISCARDED = "DISCARDED"
    # The binding was taken back before its start was sent.
    WITHDRAWN = "WITHDRAWN"
    # The start was sent and no answer came.
    ANSWER_LOST = "ANSWER_LOST"
    # The instance is SUSPECT.
    LEASE_EXPIRED = "LEASE_EXPIRED"
    # Never accepted, and a tombstone in the binding's own journal says that it never will be.
    NEVER_RAN = "NEVER_RAN"
    # Accepted once, and the binding's own journal does not know it any more.
    DISCLAIMED = "DISCLAIMED"
    # An operator confirmed that the host is off.
    REMOVED = "REMOVED"
    # An operator's verdicts on a run in doubt.
    RULED_NEVER_RAN = "RULED_NEVER_RAN"
    RULED_FAILED = "RULED_FAILED"


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    VERIFYING = "VERIFYING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class JobEvent(StrEnum):
    """What can happen to a job."""

    # A stage is bound to an instance.
    BOUND = "BOUND"
    # The first thing it does was not taken: back to its place in the queue.
    REQUEUED = "REQUEUED"
    # A later one was not taken: it waits for that stage again.
    RETURNED = "RETURNED"
    DOUBTED = "DOUBTED"
    SETTLED = "SETTLED"
    STAGE_DONE = "STAGE_DONE"
    PUBLISHED = "PUBLISHED"
    STAGE_FAILED = "STAGE_FAILED"
    # The output that its stage needs is nowhere any more.
    INPUT_LOST = "INPUT_LOST"
    # A definite failure, and the job may go on by itself: its stage is queued again.
    RESUMED = "RESUMED"
    CANCELLED = "CANCELLED"


class InstanceState(StrEnum):
    """How an instance is, as the registry sees it."""

    READY = "READY"
    DRAINING = "DRAINING"
    SUSPECT = "SUSPECT"
    GONE = "GONE"


class InstanceEvent(StrEnum):
    """What can be learned about an instance."""

    REGISTERED = "REGISTERED"
    HEARD_SERVING = "HEARD_SERVING"
    HEARD_DRAINING = "HEARD_DRAINING"
    DRAIN_REQUESTED = "DRAIN_REQUESTED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    REMOVED = "REMOVED"


class IllegalTransition(Exception):
    """The tables name no way from this state by this event. `state` stays what it is."""

    def __init__(self, state: StrEnum, event: StrEnum) -> None:
        super().__init__(f"{state} cannot take {event}")
        self.state = state
        self.event = event


_R, _E = RunState, RunEvent

RUN_TERMINAL = frozenset({_R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.REFUSED, _R.LOST})
RUN_LIVE = frozenset(RunState) - RUN_TERMINAL

_ENDS: Mapping[RunEvent, RunState] = {
    _E.REPORTED_SUCCEEDED: _R.SUCCEEDED,
    _E.REPORTED_FAILED: _R.FAILED,
    _E.REPORTED_CANCELLED: _R.CANCELLED,
    _E.PUBLISHED: _R.SUCCEEDED,
    _E.DISCARDED: _R.CANCELLED,
    _E.REMOVED: _R.LOST,
}

RUNS: Mapping[tuple[RunState, RunEvent], RunState] = {
    # Any live run may turn out to have ended, and to be at work.
    **{(state, event): end for state in RUN_LIVE for event, end in _ENDS.items()},
    **{(state, _E.REPORTED_RUNNING): _R.RUNNING for state in RUN_LIVE},
    **{(state, _E.REPORTED_UNPUBLISHED): _R.RUNNING for state in RUN_LIVE},
    **{(state, _E.LEASE_EXPIRED): _R.UNKNOWN for state in RUN_LIVE},
    # A late "accepted" never takes a RUNNING run back.
    (_R.BOUND, _E.REPORTED_ACCEPTED): _R.ACCEPTED,
    (_R.ACCEPTED, _E.REPORTED_ACCEPTED): _R.ACCEPTED,
    (_R.RUNNING, _E.REPORTED_ACCEPTED): _R.RUNNING,
    (_R.UNKNOWN, _E.REPORTED_ACCEPTED): _R.ACCEPTED,
    # Only what nobody has seen accepted can be refused, withdrawn, or shown never to have run.
    (_R.BOUND, _E.REPORTED_REFUSED): _R.REFUSED,
    (_R.UNKNOWN, _E.REPORTED_REFUSED): _R.REFUSED,
    (_R.BOUND, _E.WITHDRAWN): _R.REFUSED,
    (_R.UNKNOWN, _E.WITHDRAWN): _R.REFUSED,
    (_R.BOUND, _E.NEVER_RAN): _R.REFUSED,
    (_R.UNKNOWN, _E.NEVER_RAN): _R.REFUSED,
    (_R.BOUND, _E.ANSWER_LOST): _R.UNKNOWN,
    (_R.UNKNOWN, _E.ANSWER_LOST): _R.UNKNOWN,
    # Only a doubt takes a verdict.
    (_R.UNKNOWN, _E.RULED_NEVER_RAN): _R.REFUSED,
    (_R.UNKNOWN, _E.RULED_FAILED): _R.FAILED,
    # Only what was accepted can be disclaimed.
    (_R.ACCEPTED, _E.DISCLAIMED): _R.LOST,
    (_R.RUNNING, _E.DISCLAIMED): _R.LOST,
    (_R.UNKNOWN, _E.DISCLAIMED): _R.LOST,
}

_J, _V = JobState, JobEvent

JOB_TERMINAL = frozenset({_J.SUCCEEDED, _J.FAILED, _J.CANCELLED})
JOB_LIVE = frozenset(JobState) - JOB_TERMINAL

JOBS: Mapping[tuple[JobState, JobEvent], JobState] = {
    (_J.QUEUED, _V.BOUND): _J.RUNNING,
    (_J.RUNNING, _V.BOUND): _J.RUNNING,
    **{(state, _V.CANCELLED): _J.CANCELLED for state in JOB_LIVE},
    # A job that waits for a stage, though it has not begun: it inherited what is lost now.
    **{(state, _V.INPUT_LOST): _J.FAILED for state in (_J.QUEUED, _J.RUNNING)},
    **{(state, _V.RESUMED): _J.RUNNING for state in JOB_LIVE},
    **{
        (state, event): after
        for state in (_J.RUNNING, _J.VERIFYING)
        for event, after in {
            _V.REQUEUED: _J.QUEUED,
            _V.RETURNED: _J.RUNNING,
            _V.DOUBTED: _J.VERIFYING,
            _V.SETTLED: _J.RUNNING,
            _V.STAGE_DONE: _J.RUNNING,
            _V.PUBLISHED: _J.SUCCEEDED,
            _V.STAGE_FAILED: _J.FAILED,
        }.items()
    },
}

_I, _N = InstanceState, InstanceEvent

INSTANCES: Mapping[tuple[InstanceState, InstanceEvent], InstanceState] = {
    **{(state, _N.REGISTERED): _I.READY for state in InstanceState},
    **{(state, _N.REMOVED): _I.GONE for state in InstanceState},
    # A heartbeat heals; one that was removed has to register again.
    **{
        (state, event): after
        for state in (_I.READY, _I.DRAINING, _I.SUSPECT)
        for event, after in {
            _N.HEARD_SERVING: _I.READY,
            _N.HEARD_DRAINING: _I.DRAINING,
            _N.LEASE_EXPIRED: _I.SUSPECT,
        }.items()
    },
    # Nothing is bound to it from now on, before it has heard of it too.
    (_I.READY, _N.DRAIN_REQUESTED): _I.DRAINING,
    (_I.DRAINING, _N.DRAIN_REQUESTED): _I.DRAINING,
    (_I.SUSPECT, _N.DRAIN_REQUESTED): _I.SUSPECT,
}

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


def _advance(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    after = table.get((state, event))
    if after is None:
        raise IllegalTransition(state, event)
    return after


def advance_run(state: RunState, event: RunEvent) -> RunState:
    """The run's state after `event`. Raises IllegalTransition; a terminal state takes nothing."""
    return _advance(RUNS, state, event)


def advance_job(state: JobState, event: JobEvent) -> JobState:
    """The job's state after `event`. Raises IllegalTransition; a terminal state takes nothing."""
    return _advance(JOBS, state, event)


def advance_instance(state: InstanceState, event: InstanceEvent) -> InstanceState:
    """The instance's state after `event`. Raises IllegalTransition."""
    return _advance(INSTANCES, state, event)


def holds_slot(state: RunState) -> bool:
    """Whether a run in this state holds its instance's slot: exactly while it is not terminal."""
    return state not in RUN_TERMINAL


def next_stage(stage: Stage) -> Stage | None:
    """The stage after this one; None after the last."""
    order = list(Stage)
    at = order.index(stage) + 1
    return order[at] if at < len(order) else None


def report_event(
    stage: Stage, reported: RunState, *, cancel_requested: bool, tombstoned: bool, accepted: bool
) -> RunEvent:
    """What a stage's own report of a run means to the registry.

    A decode is only over when its artifact is committed. A CANCELLED that we asked for to settle
    a doubt (`tombstoned`), of a run that nobody saw accepted, is the tombstone itself. Raises
    IllegalTransition for a state that no stage may report.
    """
    if reported is RunState.SUCCEEDED and stage is Stage.DECODE:
        return RunEvent.DISCARDED if cancel_requested else RunEvent.REPORTED_UNPUBLISHED
    if reported is RunState.CANCELLED and tombstoned and not accepted:
        return RunEvent.NEVER_RAN
    event = _REPORTS.get(reported)
    if event is None:
        raise IllegalTransition(reported, RunEvent.REPORTED_RUNNING)
    return event


_REPORTS: Mapping[RunState, RunEvent] = {
    _R.ACCEPTED: _E.REPORTED_ACCEPTED,
    _R.RUNNING: _E.REPORTED_RUNNING,
    _R.SUCCEEDED: _E.REPORTED_SUCCEEDED,
    _R.FAILED: _E.REPORTED_FAILED,
    _R.CANCELLED: _E.REPORTED_CANCELLED,
    _R.REFUSED: _E.REPORTED_REFUSED,
}


def absence_event(*, accepted: bool) -> RunEvent:
    """What it means that the binding's own journal, now tombstoned, does not know the run."""
    return RunEvent.DISCLAIMED if accepted else RunEvent.NEVER_RAN


# What a run ends by without a doubt left: it is over, and nothing of it works on somewhere.
_DEFINITE = frozenset({_E.REPORTED_FAILED, _E.REMOVED})


def may_resume(event: RunEvent, *, resumable: bool, resumes: int, allowed: int) -> bool:
    """Whether a job goes on by itself after one of its runs has ended badly by `event`.

    `resumable` is the failure's own word; `resumes` of the `allowed` ones were made already.
    """
    return event in _DEFINITE and resumable and resumes < allowed


def consequence(
    stage: Stage,
    run: RunState,
    *,
    cancel_requested: bool,
    tombstoned: bool,
    fresh: bool,
    resuming: bool = False,
) -> JobEvent:
    """What a run that has come to state `run` does to its job, while the job is not terminal.

    A start that arrived late, after its tombstone was sent, is stopped by it: nothing failed and
    the job waits for the stage again. `fresh`: this is the first thing that the job does;
    `resuming`: see `may_resume`.
    """
    if run is RunState.SUCCEEDED and stage is Stage.DECODE:
        return JobEvent.PUBLISHED
    if cancel_requested and (run is RunState.UNKNOWN or not holds_slot(run)):
        return JobEvent.CANCELLED
    if run is RunState.REFUSED or (run is RunState.CANCELLED and tombstoned):
        return JobEvent.REQUEUED if fresh else JobEvent.RETURNED
    if resuming and run in (RunState.FAILED, RunState.LOST):
        return JobEvent.RESUMED
    return _CONSEQUENCES[run]


_CONSEQUENCES: Mapping[RunState, JobEvent] = {
    _R.BOUND: _V.SETTLED,
    _R.ACCEPTED: _V.SETTLED,
    _R.RUNNING: _V.SETTLED,
    _R.UNKNOWN: _V.DOUBTED,
    _R.SUCCEEDED: _V.STAGE_DONE,
    _R.FAILED: _V.STAGE_FAILED,
    _R.CANCELLED: _V.STAGE_FAILED,
    _R.LOST: _V.STAGE_FAILED,
}
