"""An instance that refuses is left alone, longer each time; one that has recovered is not."""

from services.registry.backoff import Backoff


class Clock:
    """Seconds that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_while_it_refuses_and_begin_anew_after_it_did_not() -> None:
    """1, 2, 4, 8, 16, 16 s; and 1 s again for one that was quiet for a pause's length."""
    clock = Clock()
    backoff = Backoff(1.0, clock)
    pauses = []
    for _ in range(6):
        assert backoff.without(["one", "two"]) == {"one", "two"}
        backoff.add("one")
        assert backoff.without(["one", "two"]) == {"two"}
        pauses.append(backoff.next_s())
        clock.now += backoff.next_s()
    assert pauses == [1, 2, 4, 8, 16, 16]
    clock.now += 17
    backoff.add("one")
    assert backoff.next_s() == 1


def test_refusals_at_once_count_once() -> None:
    """Several slots of one instance were asked before the first answer came."""
    clock = Clock()
    backoff = Backoff(1.0, clock)
    for _ in range(4):
        backoff.add("one")
    assert backoff.next_s() == 1


def test_nobody_is_waited_for_when_nobody_refused() -> None:
    """Then there is no next one."""
    assert Backoff(1.0).next_s() == float("inf")
