"""Confidence of a share that was counted."""

import math

_Z = 1.96  # standard deviations on either side of 95 percent of a normal distribution


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 percent interval of a share, both ends in 0..1.

    Unlike the plain one it stays inside 0..1 and is honest near them (E. B. Wilson, 1927).
    """
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = share + _Z**2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    divisor = 1 + _Z**2 / count
    return max(0.0, (middle - spread) / divisor), min(1.0, (middle + spread) / divisor)


def said(hits: int, count: int) -> str:
    """A share in percent with its interval: "97.5 (93-99)"; a dash without any case."""
    if count == 0:
        return "-"
    low, high = wilson(hits, count)
    return f"{100 * hits / count:.1f} ({100 * low:.0f}-{100 * high:.0f})"
