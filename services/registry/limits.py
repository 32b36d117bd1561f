"""Limits of owners and pools: plain numbers, which the settings make and the records check."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Defaults for owners without limits of their own, and the pools' limit. -1: none."""

    # Jobs that hold a sampler.
    max_running: int = -1
    # Jobs besides them that are not sampled yet.
    max_waiting: int = -1
    waiting_per_sampler: float = -1.0
    # Told where nothing was measured.
    retry_s: float = 30.0


def own_or(own: int | None, default: int) -> int:
    """An owner's own limit, or the configured one."""
    return default if own is None else own
