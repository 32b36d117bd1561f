"""Whose turn it is: fair by weight between owners, without SQL and without a clock.

Every owner has a virtual time: the sampler time that it was given, divided by its weight. Whoever
has least is next, and is charged at once what its job is expected to take (and later what it took).
An owner that begins to wait starts at the least virtual time among those in turn, so nobody saves
up turns while idle; one that used an idle mesh alone is not made to pay for it either.

The bound: let owner a wait for a turn that nothing but fairness keeps from it. Until it gets the
turn, any other owner b is given at most

    floor((longest_s / weight_a) / (shortest_s / weight_b)) + 1

turns, where jobs take from `shortest_s` to `longest_s` and estimates hold. With equal weights and
jobs that is two. So nobody starves, whatever others ask for and however often they come and go.

Why: only the least is raised, and by at most longest_s / weight_a. So a is never further above the
least, the least never falls, and each turn of b raises b by at least shortest_s / weight_b.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

# Virtual times are sums of floats: what is nearer than this is the same.
_SAME = 1e-9


@dataclass(frozen=True, order=True)
class Entrant:
    """An owner in turn. Compares as it is served: least time, then first come, then by id."""

    virtual_time_s: float
    since: datetime
    owner_id: str
    weight: float = 1.0

    def after(self, seconds: float) -> "Entrant":
        """The owner once it has been charged."""
        time_s = self.virtual_time_s + seconds / self.weight
        return Entrant(time_s, self.since, self.owner_id, self.weight)


class Turns:
    """Takes owners that come in their order, and those that were charged, and gives the next."""

    def __init__(self, entrants: Iterable[Entrant]) -> None:
        self._coming: Iterator[Entrant] = iter(entrants)
        self._next: Entrant | None = next(self._coming, None)
        self._charged: list[Entrant] = []

    def take(self) -> Entrant | None:
        """The next owner, which leaves the order; None if there is none."""
        if self._next is not None and (not self._charged or self._next < self._charged[0]):
            taken, self._next = self._next, next(self._coming, None)
            return taken
        return heapq.heappop(self._charged) if self._charged else None

    def put(self, entrant: Entrant) -> None:
        """It has been charged and may have another job."""
        heapq.heappush(self._charged, entrant)


def start_time(virtual_time_s: float, least_s: float | None, most_s: float) -> float:
    """The virtual time of an owner that begins to wait.

    `least_s` is the least of those in turn, `most_s` the most of all, which counts if nobody is.
    """
    return max(virtual_time_s, most_s if least_s is None else least_s)


def most_overtakes(weight: float, other_weight: float, longest_s: float, shortest_s: float) -> int:
    """Turns that another owner can get before one that waits: see the module's docstring."""
    return math.floor((longest_s / weight) / (shortest_s / other_weight) + _SAME) + 1


def count_ahead(
    mine: Entrant, own_ahead: int, others: Iterable[tuple[Entrant, int]], job_s: float, most: int
) -> int:
    """Jobs that will be given a turn before an owner's job, if nobody comes; not more than `most`.

    `own_ahead` of its owner are before it. Of each other owner there is the number that waits; all
    jobs are taken to be as long as `job_s`, so for jobs alike this is the very order.
    """
    at = mine.after(own_ahead * job_s)
    ahead = own_ahead
    for other, waiting in others:
        turns = (at.virtual_time_s - other.virtual_time_s) * other.weight / job_s
        even = abs(turns - round(turns)) < _SAME
        before = round(turns) if even else math.floor(turns) + 1
        if even and (other.since, other.owner_id) < (at.since, at.owner_id):
            before += 1
        ahead += max(0, min(waiting, before))
        if ahead >= most:
            return most
    return ahead


def by_priority(rows: Sequence[tuple[str, int]]) -> list[int]:
    """The order of rows (owner, priority): owners keep their turns, each gives its most wanted."""
    best: dict[str, list[int]] = {}
    for index, (owner_id, _) in enumerate(rows):
        best.setdefault(owner_id, []).append(index)
    for indexes in best.values():
        indexes.sort(key=lambda index: (-rows[index][1], index))
    taken = {owner_id: iter(indexes) for owner_id, indexes in best.items()}
    return [next(taken[owner_id]) for owner_id, _ in rows]
