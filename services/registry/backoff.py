"""Instances that refused a run lately: asking them again at once would only be refused again."""

import math
import time
from collections.abc import Callable, Collection

# A pause is doubled for one that refuses again soon after, to this many times the first.
_LONGEST = 16


class Backoff:
    """Leaves an instance alone for a while, longer each time if it goes on refusing: a disk may be
    full for hours, and every refusal is a row. By this process's monotonic clock."""

    def __init__(self, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_s = pause_s
        self._clock = clock
        # Instance -> (end of its pause, its length).
        self._pauses: dict[str, tuple[float, float]] = {}

    def add(self, instance_id: str) -> None:
        """It refused: leave it alone from now on."""
        now = self._clock()
        until, pause_s = self._pauses.get(instance_id, (0.0, 0.0))
        if not pause_s or now > until + pause_s:
            pause_s = self._pause_s
        elif now >= until:  # else it is one that was asked before the pause began
            pause_s = min(2 * pause_s, _LONGEST * self._pause_s)
        self._pauses[instance_id] = (now + pause_s, pause_s)

    def without(self, instance_ids: Collection[str]) -> set[str]:
        """Those that may be asked."""
        now = self._clock()
        self._pauses = {
            name: (until, pause_s)
            for name, (until, pause_s) in self._pauses.items()
            if until + pause_s > now
        }
        return {name for name in instance_ids if self._pauses.get(name, (now, 0.0))[0] <= now}

    def next_s(self) -> float:
        """How soon the next one may be asked again."""
        now = self._clock()
        pauses = (until - now for until, _ in self._pauses.values() if until > now)
        return min(pauses, default=math.inf)
