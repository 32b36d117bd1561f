"""Which layouts are allowed, which cards they get, and what is said of the others."""

from pathlib import Path

import pytest

from services.sampler.config import SamplerSettings
from services.sampler.layout import LayoutRefused, RankLayout, Width, check, nearest
from services.sampler.ranks.devices import environments

RELEASED = Width(heads=56, feed_forward=14336)
TINY = Width(heads=8, feed_forward=512)


@pytest.mark.parametrize("ulysses", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [RELEASED, TINY])
def test_ulysses_degrees_of_the_model(width: Width, ulysses: int) -> None:
    """1, 2, 4 and 8 divide both the heads and the 64-row alignment."""
    check(RankLayout(ulysses=ulysses), width)


@pytest.mark.parametrize(("tp", "ulysses"), [(2, 1), (2, 2), (2, 4), (4, 2), (7, 8), (7, 1)])
def test_tensor_parallel_with_ulysses(tp: int, ulysses: int) -> None:
    """Each part of the heads is divided again by the sequence's ranks."""
    check(RankLayout(tp, ulysses), RELEASED)


@pytest.mark.parametrize(
    ("layout", "near"),
    [
        (RankLayout(ulysses=3), ["tp1-ulysses2", "tp1-ulysses4"]),
        (RankLayout(ulysses=7), ["tp1-ulysses8"]),  # divides the heads, not the 64 rows
        (RankLayout(ulysses=16), ["tp1-ulysses8"]),  # divides the rows, not the heads
        (RankLayout(tp=3), ["tp2-ulysses1", "tp4-ulysses1"]),
        (RankLayout(tp=4, ulysses=4), ["tp4-ulysses2"]),  # 14 heads are not 4 times as many
    ],
)
def test_refusal_names_rule_and_nearest(layout: RankLayout, near: list[str]) -> None:
    """A layout that does not fit is refused with the rule and what would fit."""
    with pytest.raises(LayoutRefused) as caught:
        check(layout, RELEASED)
    words = str(caught.value)
    assert layout.name in words
    assert "ulysses divides 64, heads % tp == 0, (heads / tp) % ulysses == 0" in words
    assert all(name in words for name in near)
    assert all(found.fits(RELEASED) for found in nearest(layout, RELEASED))


def test_ring_is_refused_with_its_reason() -> None:
    """Ring attention would repeat the work on every rank."""
    with pytest.raises(LayoutRefused, match="repeats the whole work"):
        check(RankLayout(ulysses=2), RELEASED, ring=2)


def test_fsdp_needs_somebody_to_share_with() -> None:
    """One rank of a sequence has nobody that holds the rest."""
    with pytest.raises(LayoutRefused, match="ulysses of 2 or more"):
        check(RankLayout(tp=2, fsdp=True), RELEASED)
    check(RankLayout(ulysses=2, fsdp=True), RELEASED)


def test_names() -> None:
    """A layout is published by its degrees."""
    assert RankLayout(2, 4).name == "tp2-ulysses4"
    assert RankLayout(1, 2, fsdp=True).name == "tp1-ulysses2-fsdp"


def test_settings_are_checked_against_the_checkpoint(tiny_checkpoint: Path) -> None:
    """Degree 3 is refused at start, before a process or a port is opened."""
    for wrong, words in (
        ({"ulysses": 3}, "8 heads"),
        ({"ulysses": 2, "ring": 2}, "ring"),
        ({"tp": 2, "compile": True}, "compile"),
        ({"ulysses": 2, "fsdp": True, "compile": True}, "compile"),
        ({"ulysses": 2, "device": "cpu", "devices": "0,1"}, "device is cuda"),
    ):
        with pytest.raises(LayoutRefused, match=words):
            SamplerSettings(checkpoint=str(tiny_checkpoint), **wrong).plan({})
    plan = SamplerSettings(checkpoint=str(tiny_checkpoint), tp=2, ulysses=4, device="cpu").plan({})
    assert plan.layout.name == "tp2-ulysses4"
    assert plan.environments == []


@pytest.mark.parametrize(
    ("named", "inherited", "cards"),
    [
        ([], {}, ["0", "1"]),
        (["3", "1"], {}, ["3", "1"]),
        ([], {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a,GPU-c"}, ["GPU-b", "GPU-a"]),
        (["2", "0"], {"CUDA_VISIBLE_DEVICES": "5,6,7"}, ["7", "5"]),
        (["GPU-x", "MIG-y"], {"CUDA_VISIBLE_DEVICES": "0"}, ["GPU-x", "MIG-y"]),
    ],
)
def test_cards_are_those_that_are_named(
    named: list[str], inherited: dict[str, str], cards: list[str]
) -> None:
    """By UUID, or by index as the operator sees them; each rank sees one card."""
    found = environments(named, 2, inherited)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == cards
    assert all(one["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" for one in found)


@pytest.mark.parametrize(
    ("named", "inherited"),
    [
        (["0"], {}),
        (["0", "0"], {}),
        (["0", "first"], {}),
        (["0", "2"], {"CUDA_VISIBLE_DEVICES": "4,5"}),
        (["1", "5"], {"CUDA_VISIBLE_DEVICES": "4,5"}),
    ],
)
def test_other_cards_are_refused(named: list[str], inherited: dict[str, str]) -> None:
    """Too few, one twice, no card's name, or one that is not there."""
    with pytest.raises(LayoutRefused):
        environments(named, 2, inherited)
