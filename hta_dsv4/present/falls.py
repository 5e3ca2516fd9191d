"""The bars of a waterfall: a change of the own time, effect by effect and bucket by bucket, that still adds up."""

from __future__ import annotations

from dataclasses import dataclass

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.diff import Decomposition

WORDS = {
    d.DISAPPEARED_NS: "gone", d.APPEARED_NS: "appeared", d.COUNT_NS: "launch count", d.DURATION_NS: "duration",
}  # fmt: skip
"""Effect -> what it is called, in drawing order: what left, what came, how often the rest runs, how long it takes."""
SHOWN = 0.02
"""Smallest part of all effects together that has a bar of its own; the rest is one bar, so that the ends still meet."""
MOST = 14


@dataclass(frozen=True, slots=True)
class Fall:
    """One bar of the waterfall.

    Attributes:
        effect: one of :data:`WORDS`' keys; ``""`` for the bar of everything small.
        bucket: whose time; ``""`` for the bar of everything small.
        ns: the change per step.
        parts: how many effects and buckets the bar stands for.
    """

    effect: str
    bucket: str
    ns: int
    parts: int = 1

    @property
    def label(self) -> str:
        """``gone: attention``; ``12 smaller`` for the rest."""
        return f"{WORDS[self.effect]}: {self.bucket}" if self.effect else f"{self.parts} smaller"


def falls(parts: Decomposition, shown: float = SHOWN, most: int = MOST) -> list[Fall]:
    """The bars between the two totals of own time.

    Args:
        parts: the decomposition of a change.
        shown: smallest part of all effects together that has a bar of its own.
        most: bars of their own at most.

    Returns:
        Effects by bucket in drawing order, largest first within an effect, the rest as one at the end. They add up to
        the change of own time exactly.
    """
    table = parts.table("bucket")
    found = [
        Fall(effect, str(row["bucket"]), int(row[effect]))
        for effect in WORDS
        for _, row in table.iterrows()
        if int(row[effect])
    ]
    scale = sum(abs(f.ns) for f in found)
    largest = sorted(found, key=lambda f: -abs(f.ns))[:most]
    keep = [f for f in largest if abs(f.ns) >= shown * scale]
    rest = [f for f in found if f not in keep]
    order = list(WORDS)
    keep.sort(key=lambda f: (order.index(f.effect), -abs(f.ns)))
    return [*keep, *([Fall("", "", sum(f.ns for f in rest), len(rest))] if rest else [])]
