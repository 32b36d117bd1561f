"""Instances that refused a run lately: asking them again at once would only be refused again."""

import math
import time
from collections.abc import Collection


class Backoff:
    """Leaves an instance alone for a while. By this process's monotonic clock."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._until: dict[str, float] = {}

    def add(self, instance_id: str) -> None:
        """It refused: leave it alone from now on."""
        self._until[instance_id] = time.monotonic() + self._pause_s

    def without(self, instance_ids: Collection[str]) -> set[str]:
        """Those that may be asked."""
        now = time.monotonic()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return set(instance_ids) - set(self._until)

    def next_s(self) -> float:
        """How soon the next one may be asked again."""
        return max(0.0, min(self._until.values(), default=math.inf) - time.monotonic())
