"""The checkpoint in the repository follows held-out prompts, as files that a mesh published."""

import pytest

from tools.demo_model import card
from tools.demo_model.mesh_score import score_mesh
from tools.demo_model.tally import Scored

# Of 8 fixed requests each, with room for rounding on other machines.
LEAST = {
    "t2va, one object, English": {"colour": 7, "shape": 7, "motion": 7, "sound": 7, "all_four": 6},
    "t2va, one object, Chinese": {"colour": 7, "shape": 7, "motion": 7, "sound": 7, "all_four": 6},
    "t2va, two objects": {"colour": 7, "shape": 7, "motion": 7, "sound": 7, "all_four": 6},
}


@pytest.mark.timeout(400)
def test_a_mesh_follows_held_out_prompts() -> None:
    """Colour, shape, motion and sound of 24 requests; the pan of an object that moves sideways."""
    found: dict[str, list[Scored]] = {}

    def add(group: str, _: int, scored: list[Scored]) -> None:
        found[group] = scored

    score_mesh(card.SHIPPED, list(LEAST), [8], 8, add)
    for group, least in LEAST.items():
        hits = {name: sum(getattr(each.reading, name) for each in found[group]) for name in least}
        assert all(hits[name] >= least[name] for name in least), (group, hits)
    # Of two objects the one that is heard is not known where the other one is lost.
    alone = [each.reading.pan for group in found for each in found[group] if "one" in group]
    known = [pan for pan in alone if pan is not None]
    assert len(known) >= 4
    assert sum(known) / len(known) > 0.85
