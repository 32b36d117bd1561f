"""Which ways of dividing one model among ranks are allowed, and why the others are not.

Decided by the supervisor from the checkpoint's configs before any rank starts: no torch here.
"""

from dataclasses import dataclass

# xfuser pads the packed sequence to this many rows, and every rank takes an equal part of them.
ROW_ALIGNMENT = 64
RULE = (
    f"ulysses divides {ROW_ALIGNMENT}, heads % tp == 0, (heads / tp) % ulysses == 0 "
    "and feed-forward % tp == 0"
)
_NEAREST = 3


class LayoutRefused(ValueError):
    """A layout that this checkpoint cannot be run in; the message names the rule."""


@dataclass(frozen=True)
class Width:
    """What of a transformer is divided: its attention heads and its feed-forward's inner width."""

    heads: int
    feed_forward: int


@dataclass(frozen=True)
class RankLayout:
    """Degrees: `tp` parts of every weight, times `ulysses` parts of the sequence.

    With `fsdp` the ranks that share a sequence also keep only their part of each block's weights.
    Rank r has tensor-parallel index r // ulysses and Ulysses index r % ulysses.
    """

    tp: int = 1
    ulysses: int = 1
    fsdp: bool = False

    @property
    def ranks(self) -> int:
        """How many processes and cards it takes."""
        return self.tp * self.ulysses

    @property
    def name(self) -> str:
        """As it is published: tp2-ulysses4, or ulysses4-fsdp."""
        parts = [f"tp{self.tp}", f"ulysses{self.ulysses}"]
        return "-".join(parts + ["fsdp"] * self.fsdp)

    def fits(self, width: Width) -> bool:
        """Whether the rule holds."""
        return (
            min(self.tp, self.ulysses) >= 1
            and ROW_ALIGNMENT % self.ulysses == 0
            and width.heads % self.tp == 0
            and (width.heads // self.tp) % self.ulysses == 0
            and width.feed_forward % self.tp == 0
        )


def check(layout: RankLayout, width: Width, *, ring: int = 1) -> None:
    """Raise `LayoutRefused`, with the rule and the nearest layouts that keep it."""
    if ring != 1:
        raise LayoutRefused(
            f"ring attention of degree {ring} is refused: alone it repeats the whole work on every "
            "rank, and together with Ulysses it does not run for this model; use ulysses or tp"
        )
    if not layout.fits(width):
        near = ", ".join(found.name for found in nearest(layout, width))
        raise LayoutRefused(
            f"layout {layout.name} does not fit {width.heads} heads and a feed-forward of "
            f"{width.feed_forward}: {RULE}; the nearest that fit: {near}"
        )
    if layout.fsdp and layout.ulysses == 1:
        raise LayoutRefused(
            f"layout {layout.name} has nobody to share weights with: fsdp divides them among the "
            "ranks of one sequence, so it needs ulysses of 2 or more"
        )


def nearest(layout: RankLayout, width: Width) -> list[RankLayout]:
    """The valid layouts that change the fewest degrees and the number of ranks least."""

    def distance(other: RankLayout) -> tuple[int, int, int]:
        changed = (other.tp != layout.tp) + (other.ulysses != layout.ulysses)
        return changed, abs(other.ranks - layout.ranks), other.ranks

    valid = [
        found
        for tp in range(1, width.heads + 1)
        for ulysses in range(1, ROW_ALIGNMENT + 1)
        if (found := RankLayout(tp, ulysses, layout.fsdp and ulysses > 1)).fits(width)
    ]
    return sorted(valid, key=distance)[:_NEAREST]
