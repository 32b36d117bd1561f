"""Who was heard of lately, timed by this process's own monotonic clock.

Whoever is alive changes a value in the database from time to time. An observer notes when it saw
each value change, so no two clocks are ever compared: a wrong date, a jump of it or another time
zone, here or anywhere, ends no lease. Kept in memory: a restart grants full leases.
"""

import time
from collections.abc import Callable, Hashable, Mapping


class Sightings:
    """The values of others as they were last seen to change."""

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, tuple[Hashable, float]] = {}
        self._looked = clock()

    @property
    def pause_s(self) -> float:
        """How long to wait between two looks."""
        return min(1.0, self._lease_s / 8)

    def look(self, values: Mapping[str, Hashable]) -> list[str]:
        """Take in all values as they are now; the names whose value stood still for a lease.

        A name that is new, and after a gap in the looking every name, has a full lease from now:
        we saw nothing meanwhile, and that says nothing of them.
        """
        now = self._clock()
        blind = now - self._looked > self._lease_s / 2
        self._looked = now
        seen, silent = {}, []
        for name, value in values.items():
            before = None if blind else self._seen.get(name)
            since = before[1] if before is not None and before[0] == value else now
            seen[name] = (value, since)
            if now - since >= self._lease_s:
                silent.append(name)
        self._seen = seen
        return silent
