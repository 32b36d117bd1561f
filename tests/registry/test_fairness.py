"""Whose turn it is: the bound, weights, newcomers, and the order that the database gives."""

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlmodel import Session

from reelmesh.v1 import jobs_pb2
from services.common.ids import new_id
from services.registry.fairness import (
    Entrant,
    Turns,
    by_priority,
    count_ahead,
    most_overtakes,
    start_time,
)
from services.registry.lifecycle import RunEvent, Stage
from services.registry.limits import Limits
from services.registry.records.changes import lock_job
from services.registry.records.claims import Rules
from services.registry.records.jobs import request_cancel
from services.registry.records.submissions import submit_all
from tests.registry.queue import Queue, draft

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Race:
    """Owners that come, ask and leave as they like, in the pure order."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.times = [0.0] * len(weights)
        self.since = [EPOCH + timedelta(seconds=index) for index in range(len(weights))]
        self.waiting = [0] * len(weights)

    def ask(self, owner: int, jobs: int, at: int) -> None:
        """One that did not wait begins at the least of those that do."""
        if not self.waiting[owner]:
            others = [self.times[one] for one, jobs in enumerate(self.waiting) if jobs]
            least = min(others, default=None)
            self.times[owner] = start_time(self.times[owner], least, max(self.times))
            self.since[owner] = EPOCH + timedelta(days=1, seconds=at)
        self.waiting[owner] += jobs

    def entrant(self, owner: int) -> Entrant:
        """As the order sees it."""
        return Entrant(self.times[owner], self.since[owner], str(owner), self.weights[owner])

    def turn(self, job_s: float) -> int | None:
        """Whoever is next takes its turn."""
        entrants = [self.entrant(one) for one, jobs in enumerate(self.waiting) if jobs]
        taken = Turns(sorted(entrants)).take()
        if taken is None:
            return None
        owner = int(taken.owner_id)
        self.waiting[owner] -= 1
        self.times[owner] = taken.after(job_s).virtual_time_s
        return owner


HAPPENING = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 4), st.integers(1, 4)),
    st.tuples(st.just("turn"), st.floats(10, 30), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(
    weights=st.lists(st.floats(0.5, 4), min_size=5, max_size=5),
    happenings=st.lists(HAPPENING, max_size=120),
)
def test_nobody_is_overtaken_more_often_than_the_bound_says(
    weights: list[float], happenings: list[tuple[str, int | float, int]]
) -> None:
    """Whoever asks, goes and comes again: the bound of fairness.py holds for every pair."""
    race = Race(weights)
    overtaken: dict[int, Counter[int]] = {}
    for at, (what, value, jobs) in enumerate(happenings):
        if what == "ask":
            if not race.waiting[int(value)]:
                overtaken[int(value)] = Counter()
            race.ask(int(value), jobs, at)
            continue
        served = race.turn(float(value))
        if served is None:
            continue
        for owner, counts in overtaken.items():
            if owner != served and race.waiting[owner]:
                counts[served] += 1
                most = most_overtakes(weights[owner], weights[served], 30, 10)
                assert counts[served] <= most, (owner, served, counts)
        overtaken[served] = Counter()


def test_while_all_have_work_the_turns_are_as_the_weights() -> None:
    """1 to 2 to 4."""
    race = Race([1, 2, 4])
    for owner in range(3):
        race.ask(owner, 1000, owner)
    served = Counter(race.turn(10) for _ in range(700))
    assert [served[owner] for owner in range(3)] == [100, 200, 400]


def test_nobody_saves_up_turns_while_idle() -> None:
    """After a day of the others' work a newcomer gets every second turn, not all of them."""
    race = Race([1, 1])
    race.ask(0, 1000, 0)
    for _ in range(500):
        race.turn(10)
    race.ask(1, 10, 1)
    assert [race.turn(10) for _ in range(6)].count(1) == 3


def test_one_that_used_an_idle_mesh_alone_is_not_made_to_pay_for_it() -> None:
    """A newcomer and it take turns from the start."""
    race = Race([1, 1])
    race.ask(0, 50, 0)
    for _ in range(50):
        race.turn(10)
    race.ask(1, 5, 1)
    race.ask(0, 5, 2)
    assert [race.turn(10) for _ in range(4)].count(0) == 2


@settings(max_examples=200, deadline=None)
@given(
    owners=st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 5), st.sampled_from([0.5, 1.0, 2.0])),
        min_size=1,
        max_size=6,
    )
)
def test_the_place_that_is_told_is_the_place_in_the_order(
    owners: list[tuple[int, int, float]],
) -> None:
    """For jobs that are alike, whatever the owners' times and weights."""
    job_s = 10.0
    entrants = [
        Entrant(start * 10.0, EPOCH + timedelta(seconds=index), str(index), weight)
        for index, (start, _, weight) in enumerate(owners)
    ]
    waiting = {str(index): jobs for index, (_, jobs, _) in enumerate(owners)}
    turns = Turns(sorted(entrants))
    left = dict(waiting)
    order: list[tuple[str, int]] = []
    while taken := turns.take():
        order.append((taken.owner_id, waiting[taken.owner_id] - left[taken.owner_id]))
        left[taken.owner_id] -= 1
        if left[taken.owner_id]:
            turns.put(taken.after(job_s))
    for place, (owner_id, own) in enumerate(order):
        others = [(one, waiting[one.owner_id]) for one in entrants if one.owner_id != owner_id]
        assert count_ahead(entrants[int(owner_id)], own, others, job_s, 100) == place


def test_priority_counts_among_an_owners_own_jobs_only() -> None:
    """The others keep their places."""
    rows = [("a", 0), ("b", -5), ("a", 9), ("c", 100), ("b", 7)]
    assert by_priority(rows) == [2, 4, 0, 3, 1]


def test_owners_take_turns_and_each_is_first_come_first_served(queue: Queue) -> None:
    """Though one of them queued all its jobs before the other came; the places say so."""
    queue.instance("encoder-0", Stage.ENCODE, slots=16)
    alice, bob = queue.owner("alice"), queue.owner("bob")
    a, b = queue.jobs(alice, 4), queue.jobs(bob, 3)
    order = [a[0], b[0], a[1], b[1], a[2], b[2], a[3]]
    assert [queue.place(job_id) for job_id in order] == list(range(7))
    assert queue.claim(Stage.ENCODE) == order


def test_a_weight_of_two_gets_two_turns(queue: Queue) -> None:
    """Beside one of one."""
    queue.instance("encoder-0", Stage.ENCODE, slots=6)
    alice, bob = queue.owner("alice"), queue.owner("bob", weight=2.0)
    a, b = set(queue.jobs(alice, 6)), queue.jobs(bob, 6)
    bound = queue.claim(Stage.ENCODE)
    assert len([one for one in bound if one in a]) == 2
    assert [one for one in bound if one not in a] == b[:4]


def test_an_owners_most_wanted_job_goes_first_and_nobody_elses_is_moved(queue: Queue) -> None:
    """Priority against priority 0 of another owner is nothing."""
    queue.instance("encoder-0", Stage.ENCODE, slots=16)
    alice, bob = queue.owner("alice"), queue.owner("bob")
    low = queue.jobs(alice, 2)
    b = queue.jobs(bob, 1)
    high = queue.jobs(alice, 1, priority=100)
    order = [high[0], b[0], low[0], low[1]]
    assert [queue.place(job_id) for job_id in order] == [0, 1, 2, 3]
    assert queue.claim(Stage.ENCODE) == order


def test_a_refused_job_keeps_its_place_and_its_owner_is_charged_once(queue: Queue) -> None:
    """Its turn is given back with the binding."""
    queue.instance("encoder-0", Stage.ENCODE)
    alice, bob = queue.owner("alice"), queue.owner("bob")
    a, b = queue.jobs(alice, 2), queue.jobs(bob, 2)
    before = queue.times()
    assert queue.claim(Stage.ENCODE) == [a[0]]
    queue.end(a[0], RunEvent.REPORTED_REFUSED)
    assert queue.times() == before
    assert [queue.place(job_id) for job_id in (a[0], b[0], a[1], b[1])] == [0, 1, 2, 3]
    assert queue.claim(Stage.ENCODE) == [a[0]]
    assert queue.times()[alice] > before[alice]


def test_samplers_keep_the_order_of_the_turns(queue: Queue) -> None:
    """Whichever was encoded first."""
    queue.instance("encoder-0", Stage.ENCODE, slots=16)
    queue.instance("sampler-0", Stage.SAMPLE)
    alice, bob = queue.owner("alice"), queue.owner("bob")
    a, b = queue.jobs(alice, 2), queue.jobs(bob, 2)
    turns = queue.claim(Stage.ENCODE)
    for job_id in reversed(turns):
        queue.end(job_id)
    assert [queue.place(job_id) for job_id in turns] == [0, 1, 2, 3]
    sampled = []
    while bound := queue.claim(Stage.SAMPLE):
        sampled += bound
        queue.end(bound[0])
    assert sampled == turns == [a[0], b[0], a[1], b[1]]


def test_an_owner_pays_for_what_it_was_given_and_not_for_what_it_was_not(queue: Queue) -> None:
    """A job that ends before a sampler had it costs nothing; one that failed there does."""
    queue.instance("encoder-0", Stage.ENCODE)
    queue.instance("sampler-0", Stage.SAMPLE)
    alice = queue.owner("alice")
    first, second = queue.jobs(alice, 2)
    queue.claim(Stage.ENCODE)
    queue.end(first)
    assert queue.times()[alice] > 0
    queue.database.transact(lambda session: request_cancel(session, alice, first))
    assert queue.times()[alice] == pytest.approx(0)
    queue.claim(Stage.ENCODE)
    queue.end(second)
    queue.claim(Stage.SAMPLE)
    queue.end(second, RunEvent.REPORTED_FAILED)
    assert 0 < queue.times()[alice] < 10


def test_encoding_ahead_makes_no_room_for_an_owner(queue: Queue) -> None:
    """Of five jobs one may be sampled: two are encoded, and then none until that one is over."""
    queue.instance("encoder-0", Stage.ENCODE, slots=16)
    queue.instance("sampler-0", Stage.SAMPLE, slots=4)
    rules = Rules(encoded_ahead=100, limits=Limits(max_running=1, max_waiting=99))
    alice = queue.owner("alice")
    jobs = queue.jobs(alice, 5)
    assert queue.claim(Stage.ENCODE, rules) == jobs[:2]
    for job_id in jobs[:2]:
        queue.end(job_id)
    assert queue.claim(Stage.ENCODE, rules) == []
    assert queue.claim(Stage.SAMPLE, rules) == jobs[:1]
    assert queue.claim(Stage.SAMPLE, rules) == []
    queue.end(jobs[0])
    assert queue.claim(Stage.SAMPLE, rules) == jobs[1:2]
    assert queue.claim(Stage.ENCODE, rules) == jobs[2:3]


def test_a_place_is_not_counted_beyond_a_hundred(queue: Queue) -> None:
    """However many are ahead."""
    queue.instance("encoder-0", Stage.ENCODE)
    alice = queue.owner("alice")
    jobs = queue.jobs(alice, 103)
    assert [queue.place(jobs[index]) for index in (0, 99, 102)] == [0, 99, 100]


def test_a_first_job_that_somebody_else_holds_is_passed_over(queue: Queue) -> None:
    """On PostgreSQL, where somebody can; its owner's next job is given the turn."""
    if queue.database._engine.dialect.name == "sqlite":
        pytest.skip("it takes one writer at a time")
    queue.instance("encoder-0", Stage.ENCODE, slots=4)
    queue.instance("sampler-0", Stage.SAMPLE, slots=4)
    bob = queue.jobs(queue.owner("bob"), 2)
    ann = queue.jobs(queue.owner("ann"), 2)
    held, go_on = threading.Event(), threading.Event()

    def hold(session: Session) -> None:
        lock_job(session, bob[0])
        held.set()
        go_on.wait(10)

    holder = threading.Thread(target=queue.database.transact, args=(hold,))
    holder.start()
    assert held.wait(10)
    assert sorted(queue.claim(Stage.ENCODE)) == sorted([bob[1], *ann])
    go_on.set()
    holder.join()
    assert queue.claim(Stage.ENCODE) == [bob[0]]


def test_a_claim_of_many_owners_gives_the_turns_of_claims_one_by_one(queue: Queue) -> None:
    """Weights, priorities and limits decide alike, however many are bound at a time."""
    for number in range(3):
        queue.instance(f"encoder-{number}", Stage.ENCODE, slots=16)
    queue.instance("sampler-0", Stage.SAMPLE, slots=16)
    orders = []
    for most in (1, 5, 40):
        names = [
            queue.owner(f"{most} {number}", weight=[1.0, 2.0][number % 2], max_running=number % 4)
            for number in range(8)
        ]
        where: dict[str, tuple[int, int]] = {}
        for number, name in enumerate(names):
            for priority in (0, 1, 0, 1):
                for job_id in queue.jobs(name, 1, priority):
                    where[job_id] = (number, len(where) % 4)
        bound: list[str] = []
        while len(bound) < 40 and (
            more := queue.claim(Stage.ENCODE, Rules(encoded_ahead=1000), most)
        ):
            bound += more
        orders.append([where[job_id] for job_id in bound])
        for job_id, (number, _) in where.items():
            if job_id in bound:
                queue.end(job_id, RunEvent.REPORTED_FAILED)
            else:
                cancel = partial(request_cancel, owner_id=names[number], job_id=job_id)
                queue.database.transact(cancel)
    assert orders[0] == orders[1] == orders[2]


def test_no_claim_and_no_submit_reads_all_jobs_or_sorts_them(queue: Queue) -> None:
    """Whatever is asked of jobs and runs walks along an index; SQLite itself says so."""
    engine = queue.database._engine
    if engine.dialect.name != "sqlite":
        pytest.skip("its plans depend on how much there is")
    said: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, values: Any, _x: Any, _many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE")):
            said.append((statement, values))

    queue.instance("encoder-0", Stage.ENCODE, slots=4)
    queue.instance("sampler-0", Stage.SAMPLE, slots=4)
    limits = Limits(max_running=5, max_waiting=5, waiting_per_sampler=50)
    event.listen(engine, "before_cursor_execute", note)
    owner_id = queue.owner("bob")

    def submit(session: Session) -> str:
        (verdict,) = submit_all(session, [draft(owner_id, request_id=new_id("job"))], limits)
        assert isinstance(verdict, jobs_pb2.CreateJobResponse)
        return verdict.job.job_id

    jobs = [queue.database.transact(submit)[0] for _ in range(3)]
    rules = Rules(limits=limits)
    bound = queue.claim(Stage.ENCODE, rules)
    queue.end(bound[0])
    assert queue.claim(Stage.SAMPLE, rules) == bound[:1]
    queue.end(bound[0])
    assert queue.place(jobs[2]) == 0
    event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, values in said:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            for *_, step in plan:
                assert not step.startswith(("SCAN job", "SCAN run", "SCAN event")) or (
                    "ix_run_live" in step
                ), (statement, step)
                assert not (step == "USE TEMP B-TREE FOR ORDER BY" and "FROM job" in statement)
