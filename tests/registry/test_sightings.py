"""Leases by what one process sees: no other clock matters."""

from services.registry.sightings import Sightings


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def look_for(sightings: Sightings, clock: Clock, seconds: int, **values: object) -> list[str]:
    """Look once a second; the silent ones of the last look."""
    silent: list[str] = []
    for _ in range(seconds):
        clock.now_s += 1
        silent = sightings.look({name: str(value) for name, value in values.items()})
    return silent


def test_a_value_that_stands_still_for_a_lease_is_silent() -> None:
    """Not a second earlier, and only the one that stands still."""
    clock = Clock()
    sightings = Sightings(10, clock)
    assert look_for(sightings, clock, 10, a=1) == []
    assert look_for(sightings, clock, 1, a=1, b=1) == ["a"]


def test_every_change_of_the_value_is_a_sign_of_life_even_back_in_time() -> None:
    """The writer's clock may jump either way: it is never compared with ours."""
    clock = Clock()
    sightings = Sightings(10, clock)
    for stamp in ("2026-01-01", "1970-01-01", "2099-01-01", "2026-01-01", "2025-12-31"):
        assert look_for(sightings, clock, 6, a=stamp) == []


def test_an_observer_that_stood_still_grants_everybody_a_full_lease() -> None:
    """It heard nobody, and that says nothing of them."""
    clock = Clock()
    sightings = Sightings(10, clock)
    look_for(sightings, clock, 9, a=1)
    clock.now_s += 3600
    assert sightings.look({"a": "1"}) == []
    assert look_for(sightings, clock, 9, a=1) == []
    assert look_for(sightings, clock, 1, a=1) == ["a"]


def test_one_that_comes_back_begins_anew() -> None:
    """It was gone from the list, as a SUSPECT instance is, and has a full lease again."""
    clock = Clock()
    sightings = Sightings(10, clock)
    look_for(sightings, clock, 11, a=1)
    assert look_for(sightings, clock, 1) == []
    assert look_for(sightings, clock, 9, a=1) == []
