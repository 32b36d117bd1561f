"""Where a job goes: to the instance that is expected to finish it first, by measured times.

Pure. Work is counted in rows of the transformer's sequence (the sampler's: times evaluations); an
instance's speed is the seconds that one unit took it lately.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.registry.lifecycle import Stage

# Seconds for a unit of work where nothing was measured: only the proportions matter then. From
# 124 frames of 416x736: 110 s of 49 evaluations on eight T10, 12 s of decoding on a 3080 Ti.
TYPICAL_UNIT_S = {Stage.ENCODE: 1e-3, Stage.SAMPLE: 2e-4, Stage.DECODE: 1e-3}
# How much of a measured time the next one replaces.
_SMOOTHING = 0.3
# A job does not wait for a busy instance for less than this part of its time there.
_WORTH = 0.05
_LATE = 0.1


def work_of(
    stage: Stage, height: int, width: int, frames: int, evaluations: int, prompt_tokens: int
) -> float:
    """Units of work: rows = (5n + 2)(H/32)(W/32) + 2 x audio + text, for the sampler times
    evaluations. Audio latents come at 40 a second."""
    video = (5 * (frames - 5) / 17 + 2) * (height / 32) * (width / 32)
    rows = video + 2 * round(frames / 24 * 40) + prompt_tokens
    return rows * evaluations if stage is Stage.SAMPLE else rows


def smooth(before_s: float | None, measured_s: float) -> float:
    """The smoothed seconds for a unit after one more measurement."""
    return measured_s if before_s is None else before_s + _SMOOTHING * (measured_s - before_s)


def remaining_s(expected_s: float, elapsed_s: float) -> float:
    """How much longer a run will hold its slot.

    One that is late is taken to need as long again as it is late, and at least a tenth of what was
    expected, so nothing waits for ever for a run that hangs. A clock that jumped back makes it no
    longer than a whole run.
    """
    if elapsed_s >= expected_s:
        return max(elapsed_s - expected_s, _LATE * expected_s)
    return min(expected_s - elapsed_s, expected_s)


@dataclass
class Candidate:
    """A READY instance. `slots_free_in_s` has an entry for each slot; 0: it is free now."""

    instance_id: str
    unit_time_s: float | None
    slots_free_in_s: list[float]
    pool: str = ""
    # What decides whether a job fits; alike for instances that are alike.
    capabilities: bytes = b""


class Board:
    """Gives jobs, in their order, each to the candidate that finishes it first.

    A job whose best candidate is busy is left for it, and the next job sees that candidate taken:
    for jobs alike no other order ends earlier.
    """

    def __init__(self, candidates: Iterable[Candidate], stage: Stage) -> None:
        candidates = [one for one in candidates if one.slots_free_in_s]
        known = [one.unit_time_s for one in candidates if one.unit_time_s]
        self._unit_s = sum(known) / len(known) if known else TYPICAL_UNIT_S[stage]
        # Of those that are free now the order is the same for every job: it is found once.
        self._free: list[tuple[float, int, str, Candidate]] = []
        self._busy: list[Candidate] = []
        for one in candidates:
            self._put(one)

    def _put(self, candidate: Candidate) -> None:
        if 0.0 in candidate.slots_free_in_s:
            place = (self.unit_s(candidate), _taken(candidate), candidate.instance_id, candidate)
            insort(self._free, place)
        else:
            self._busy.append(candidate)

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def count_free(self) -> int:
        """Free slots."""
        return sum(place[-1].slots_free_in_s.count(0.0) for place in self._free)

    def unit_s(self, candidate: Candidate) -> float:
        """Its speed; one that was never measured is taken to be like the others."""
        return candidate.unit_time_s or self._unit_s

    def assign(self, work: float, may: Callable[[Candidate], bool]) -> Candidate | None:
        """The free candidate that the job goes to; None if none may, or a busy one is better."""
        place = next((place for place in self._free if may(place[-1])), None)
        chosen = place[-1] if place else None
        best = (work * place[0], 0.0, place[1], place[2]) if place else None
        for one in self._busy:
            free_in_s = min(one.slots_free_in_s)
            takes_s = work * self.unit_s(one)
            rank = (free_in_s + takes_s + _WORTH * takes_s, free_in_s, _taken(one), one.instance_id)
            if (best is None or rank < best) and may(one):
                best, chosen = rank, one
        if best is None or chosen is None:
            return None
        free_in_s = best[1]
        finish_s = free_in_s + work * self.unit_s(chosen)
        chosen.slots_free_in_s[chosen.slots_free_in_s.index(free_in_s)] = finish_s
        if free_in_s > 0 or place is None:
            return None
        self._free.remove(place)
        self._put(chosen)
        return chosen


def _taken(candidate: Candidate) -> int:
    """Its slots that are held."""
    return sum(1 for slot in candidate.slots_free_in_s if slot > 0)
