"""The bars of a waterfall: a change of the own time, effect by effect and bucket by bucket, that still adds up."""

from __future__ import annotations

from dataclasses import dataclass

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.diff import Decomposition

REPLACED = "replaced_ns"
"""Kernels of a bucket that are gone and others of it that appeared: two halves of one change, drawn as what is left."""
WORDS = {
    REPLACED: "replaced", d.DISAPPEARED_NS: "gone", d.APPEARED_NS: "appeared", d.COUNT_NS: "launch count",
    d.DURATION_NS: "duration",
}  # fmt: skip
"""Effect -> what it is called, in drawing order: what left or came, how often the rest runs, how long it takes."""
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
    found: list[Fall] = []
    for _, row in table.iterrows():
        ns = {effect: int(row[effect]) for effect in d.EFFECTS if int(row[effect])}
        if d.DISAPPEARED_NS in ns and d.APPEARED_NS in ns:
            both = ns.pop(d.DISAPPEARED_NS) + ns.pop(d.APPEARED_NS)
            found.append(Fall(REPLACED, str(row["bucket"]), both, 2))
        found += [Fall(effect, str(row["bucket"]), of) for effect, of in ns.items()]
    scale = sum(abs(f.ns) for f in found)
    largest = sorted(found, key=lambda f: -abs(f.ns))[:most]
    keep = [f for f in largest if abs(f.ns) >= shown * scale]
    rest = [f for f in found if f not in keep]
    order = list(WORDS)
    keep.sort(key=lambda f: (order.index(f.effect), -abs(f.ns)))
    return [*keep, *([Fall("", "", sum(f.ns for f in rest), sum(f.parts for f in rest))] if rest else [])]
