"""The tables of states: every pair of state and event, and random orders of events."""

from enum import StrEnum
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.registry.lifecycle import (
    JOB_LIVE,
    JOB_TERMINAL,
    JOBS,
    RUN_LIVE,
    RUN_TERMINAL,
    RUNS,
    IllegalTransition,
    InstanceEvent,
    InstanceState,
    JobEvent,
    JobState,
    RunEvent,
    RunState,
    Stage,
    absence_event,
    advance_instance,
    advance_job,
    advance_run,
    consequence,
    holds_slot,
    may_resume,
    next_stage,
    report_event,
)

REPORTS = (
    RunState.ACCEPTED,
    RunState.RUNNING,
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.CANCELLED,
    RunState.REFUSED,
)


@pytest.mark.parametrize(("state", "event"), list(product(RunState, RunEvent)))
def test_a_run_moves_only_as_its_table_says(state: RunState, event: RunEvent) -> None:
    """A pair that the table does not name raises; a terminal state takes nothing."""
    if (state, event) in RUNS:
        assert state not in RUN_TERMINAL
        assert advance_run(state, event) is RUNS[state, event]
    else:
        with pytest.raises(IllegalTransition):
            advance_run(state, event)


@pytest.mark.parametrize(("state", "event"), list(product(JobState, JobEvent)))
def test_a_job_moves_only_as_its_table_says(state: JobState, event: JobEvent) -> None:
    """A pair that the table does not name raises; a terminal state takes nothing."""
    if (state, event) in JOBS:
        assert state not in JOB_TERMINAL
        assert advance_job(state, event) is JOBS[state, event]
    else:
        with pytest.raises(IllegalTransition):
            advance_job(state, event)


def test_a_slot_is_held_exactly_while_a_run_is_not_terminal() -> None:
    """UNKNOWN and BOUND hold it too."""
    assert {state for state in RunState if holds_slot(state)} == RUN_LIVE
    assert {RunState.BOUND, RunState.UNKNOWN} <= RUN_LIVE


@pytest.mark.parametrize("state", sorted(RUN_LIVE))
def test_an_expired_lease_never_ends_a_run(state: RunState) -> None:
    """It becomes UNKNOWN and keeps its slot."""
    assert advance_run(state, RunEvent.LEASE_EXPIRED) is RunState.UNKNOWN


@pytest.mark.parametrize("state", [RunState.ACCEPTED, RunState.RUNNING])
@pytest.mark.parametrize(
    "event",
    [
        RunEvent.REPORTED_REFUSED,
        RunEvent.NEVER_RAN,
        RunEvent.WITHDRAWN,
        RunEvent.ANSWER_LOST,
        RunEvent.RULED_NEVER_RAN,
    ],
)
def test_what_was_accepted_can_not_be_said_never_to_have_run(
    state: RunState, event: RunEvent
) -> None:
    """Only a run that nobody saw accepted can be REFUSED."""
    with pytest.raises(IllegalTransition):
        advance_run(state, event)


def test_a_late_acceptance_does_not_take_a_running_run_back() -> None:
    """Reports may arrive out of order."""
    assert advance_run(RunState.RUNNING, RunEvent.REPORTED_ACCEPTED) is RunState.RUNNING


def test_absence_means_never_ran_or_lost() -> None:
    """It depends on whether the run had been accepted."""
    assert advance_run(RunState.UNKNOWN, absence_event(accepted=False)) is RunState.REFUSED
    assert advance_run(RunState.UNKNOWN, absence_event(accepted=True)) is RunState.LOST


def test_a_decode_is_not_over_before_it_is_published() -> None:
    """Its stage's SUCCEEDED keeps it live; after a cancel it is thrown away."""
    facts: dict[str, Any] = {"tombstoned": False, "accepted": True}
    event = report_event(Stage.DECODE, RunState.SUCCEEDED, cancel_requested=False, **facts)
    assert holds_slot(advance_run(RunState.RUNNING, event))
    event = report_event(Stage.DECODE, RunState.SUCCEEDED, cancel_requested=True, **facts)
    assert advance_run(RunState.RUNNING, event) is RunState.CANCELLED


@pytest.mark.parametrize("reported", [RunState.BOUND, RunState.UNKNOWN, RunState.LOST])
def test_no_stage_may_report_what_only_the_registry_can_know(reported: RunState) -> None:
    """BOUND, UNKNOWN and LOST are the registry's own words."""
    with pytest.raises(IllegalTransition):
        report_event(
            Stage.SAMPLE, reported, cancel_requested=False, tombstoned=False, accepted=True
        )


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.UNKNOWN}))
@pytest.mark.parametrize("event", [RunEvent.RULED_NEVER_RAN, RunEvent.RULED_FAILED])
def test_only_a_run_in_doubt_takes_a_verdict(state: RunState, event: RunEvent) -> None:
    """An operator overrules nothing that is known."""
    with pytest.raises(IllegalTransition):
        advance_run(state, event)


@pytest.mark.parametrize("event", RunEvent)
def test_a_job_resumes_by_itself_only_after_what_is_definite(event: RunEvent) -> None:
    """A failure that was reported, or a removed host: in every other case something may work on."""
    definite = event in (RunEvent.REPORTED_FAILED, RunEvent.REMOVED)
    assert may_resume(event, resumable=True, resumes=0, allowed=1) is definite
    assert not may_resume(event, resumable=False, resumes=0, allowed=1)
    assert not may_resume(event, resumable=True, resumes=1, allowed=1)


def test_a_resumed_job_stays_running() -> None:
    """Its run has failed and its stage is queued again; after a cancel it is not."""
    facts: dict[str, Any] = {"tombstoned": False, "fresh": False, "resuming": True}
    for state in (RunState.FAILED, RunState.LOST):
        event = consequence(Stage.SAMPLE, state, cancel_requested=False, **facts)
        assert advance_job(JobState.RUNNING, event) is JobState.RUNNING
        assert advance_job(JobState.VERIFYING, event) is JobState.RUNNING
        event = consequence(Stage.SAMPLE, state, cancel_requested=True, **facts)
        assert advance_job(JobState.RUNNING, event) is JobState.CANCELLED


def test_a_run_in_doubt_makes_its_job_verifying_or_cancelled() -> None:
    """An owner who cancelled gets the answer at once; the slot stays held."""
    facts: dict[str, Any] = {"tombstoned": False, "fresh": False}
    doubted = consequence(Stage.SAMPLE, RunState.UNKNOWN, cancel_requested=False, **facts)
    assert advance_job(JobState.RUNNING, doubted) is JobState.VERIFYING
    cancelled = consequence(Stage.SAMPLE, RunState.UNKNOWN, cancel_requested=True, **facts)
    assert advance_job(JobState.RUNNING, cancelled) is JobState.CANCELLED


def test_a_refused_job_keeps_its_place() -> None:
    """QUEUED again if nothing of it was done, otherwise still RUNNING."""
    for fresh, state in ((True, JobState.QUEUED), (False, JobState.RUNNING)):
        event = consequence(
            Stage.DECODE, RunState.REFUSED, cancel_requested=False, tombstoned=False, fresh=fresh
        )
        assert advance_job(JobState.RUNNING, event) is state


def test_a_start_that_its_tombstone_stopped_is_no_failure() -> None:
    """It arrived late and was cancelled by us: the stage is bound again."""
    facts: dict[str, Any] = {"cancel_requested": False, "tombstoned": True, "fresh": False}
    event = consequence(Stage.SAMPLE, RunState.CANCELLED, **facts)
    assert event is JobEvent.RETURNED


@pytest.mark.parametrize("state", InstanceState)
def test_a_heartbeat_heals_all_but_what_was_removed(state: InstanceState) -> None:
    """GONE has to register again."""
    if state is InstanceState.GONE:
        with pytest.raises(IllegalTransition):
            advance_instance(state, InstanceEvent.HEARD_SERVING)
    else:
        assert advance_instance(state, InstanceEvent.HEARD_SERVING) is InstanceState.READY
    assert advance_instance(state, InstanceEvent.REGISTERED) is InstanceState.READY


@pytest.mark.parametrize("state", InstanceState)
def test_a_drain_is_asked_of_whoever_is_there(state: InstanceState) -> None:
    """One that is not heard drains when it is; one that was removed cannot."""
    if state is InstanceState.GONE:
        with pytest.raises(IllegalTransition):
            advance_instance(state, InstanceEvent.DRAIN_REQUESTED)
    else:
        after = advance_instance(state, InstanceEvent.DRAIN_REQUESTED)
        assert after is not InstanceState.READY


class Happening(StrEnum):
    """What a mesh can do to one job."""

    BIND = "BIND"
    LOSE_ANSWER = "LOSE_ANSWER"
    EXPIRE = "EXPIRE"
    BURY = "BURY"
    PUBLISH = "PUBLISH"
    REMOVE = "REMOVE"
    CANCEL = "CANCEL"
    RULE_NEVER_RAN = "RULE_NEVER_RAN"
    RULE_FAILED = "RULE_FAILED"
    # What its stage needs is nowhere any more.
    LOSE_INPUT = "LOSE_INPUT"


class Model:
    """One job and its runs, moved by the pure functions as the records do it.

    `slots` counts what its instance would: one is taken with a binding and given back by whatever
    ends the run.
    """

    def __init__(self, allowed: int = 0, stage: Stage = Stage.ENCODE) -> None:
        self.job = JobState.QUEUED
        self.stage: Stage | None = stage
        self.inherited = list(Stage)[: list(Stage).index(stage)]
        self.allowed, self.resumes, self.slots = allowed, 0, 0
        self.waiting = True
        self.cancel_requested = False
        self.run: RunState | None = None
        self.run_stage = stage
        self.accepted = False
        self.tombstoned = False
        self.succeeded: list[Stage] = []

    def take(self, happening: Happening | RunState) -> None:
        """One happening; what cannot happen now is ignored, as a late message is."""
        if happening is Happening.BIND:
            self.bind()
        elif happening is Happening.CANCEL:
            self.cancel()
        elif happening is Happening.LOSE_INPUT:
            self.lose_input()
        elif self.run is not None and holds_slot(self.run):
            event = self.event(happening)
            if event is not None:
                self.move(event)

    def bind(self) -> None:
        if not self.waiting or self.stage is None:
            return
        assert self.run is None or not holds_slot(self.run), "two live runs of one job"
        assert self.stage not in self.succeeded, "a stage ran again after it had succeeded"
        self.job = advance_job(self.job, JobEvent.BOUND)
        self.run, self.run_stage = RunState.BOUND, self.stage
        self.slots += 1
        self.waiting = self.accepted = self.tombstoned = False

    def cancel(self) -> None:
        if self.job in JOB_TERMINAL or self.cancel_requested:
            return
        self.cancel_requested = True
        if self.run is None or not holds_slot(self.run) or self.run is RunState.UNKNOWN:
            self.move_job(JobEvent.CANCELLED)

    def lose_input(self) -> None:
        if not self.waiting or self.stage in (None, Stage.ENCODE):
            return
        if self.resumes < self.allowed:
            self.succeeded, self.inherited, self.stage = [], [], Stage.ENCODE
            self.move_job(JobEvent.RESUMED)
        else:
            self.move_job(JobEvent.INPUT_LOST)

    def event(self, happening: Happening | RunState) -> RunEvent | None:
        if isinstance(happening, RunState):
            if happening is RunState.REFUSED and self.accepted:
                return None  # a stage never takes its word back
            return report_event(
                self.run_stage,
                happening,
                cancel_requested=self.cancel_requested,
                tombstoned=self.tombstoned,
                accepted=self.accepted,
            )
        if happening is Happening.LOSE_ANSWER:
            return None if self.accepted else RunEvent.ANSWER_LOST
        if happening is Happening.BURY:
            if self.run is not RunState.UNKNOWN:
                return None
            self.tombstoned = not self.accepted
            return absence_event(accepted=self.accepted)
        if happening is Happening.PUBLISH:
            allowed = self.run_stage is Stage.DECODE and not self.cancel_requested
            return RunEvent.PUBLISHED if allowed and self.job in JOB_LIVE else None
        if happening in (Happening.RULE_NEVER_RAN, Happening.RULE_FAILED):
            if self.run is not RunState.UNKNOWN:
                return None
            if happening is Happening.RULE_FAILED:
                return RunEvent.RULED_FAILED
            return None if self.accepted else RunEvent.RULED_NEVER_RAN
        return RunEvent.REMOVED if happening is Happening.REMOVE else RunEvent.LEASE_EXPIRED

    def move(self, event: RunEvent) -> None:
        assert self.run is not None
        self.run = advance_run(self.run, event)
        if not holds_slot(self.run):
            self.slots -= 1
        self.accepted |= self.run in (RunState.ACCEPTED, RunState.RUNNING)
        if self.run is RunState.SUCCEEDED:
            self.succeeded.append(self.run_stage)
        if self.job in JOB_TERMINAL:
            return
        self.move_job(
            consequence(
                self.run_stage,
                self.run,
                cancel_requested=self.cancel_requested,
                tombstoned=self.tombstoned,
                fresh=not self.succeeded and self.resumes == 0,
                resuming=may_resume(
                    event, resumable=True, resumes=self.resumes, allowed=self.allowed
                ),
            )
        )

    def move_job(self, event: JobEvent) -> None:
        self.job = advance_job(self.job, event)
        if event in (JobEvent.REQUEUED, JobEvent.RETURNED):
            self.waiting = True
        elif event is JobEvent.RESUMED:
            self.waiting = True
            self.resumes += 1
        elif event is JobEvent.STAGE_DONE and self.stage is not None:
            self.stage, self.waiting = next_stage(self.stage), True
        if self.job in JOB_TERMINAL:
            self.stage, self.waiting = None, False


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from([*Happening, *REPORTS]), max_size=80),
    st.integers(0, 5),
    st.sampled_from(Stage),
)
def test_no_order_of_events_breaks_a_promise(
    happenings: list[Happening | RunState], allowed: int, stage: Stage
) -> None:
    """No illegal transition, one live run at most, terminal states final, success in order.

    Whether the job is new or resumed, and however often it may resume by itself; a slot is held
    exactly while the run is not terminal.
    """
    model = Model(allowed, stage)
    ended: JobState | None = None
    for happening in happenings:
        before = model.run
        model.take(happening)
        if before is not None and not holds_slot(before) and happening is not Happening.BIND:
            assert model.run is before, "an ended run changed"
        if ended is not None:
            assert model.job is ended, "an ended job changed"
        if model.job in JOB_TERMINAL:
            ended = model.job
        if model.job is JobState.SUCCEEDED:
            assert [*model.inherited, *model.succeeded] == list(Stage)
        if model.job is JobState.VERIFYING:
            assert model.run is RunState.UNKNOWN
        if model.waiting:
            assert model.run is None or not holds_slot(model.run)
        assert model.slots == (model.run is not None and holds_slot(model.run))
        assert model.resumes <= allowed
        if model.job is JobState.QUEUED:
            assert model.resumes == 0
