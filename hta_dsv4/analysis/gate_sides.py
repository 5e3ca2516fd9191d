"""Which ranks of a candidate are held against which of the baseline?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hta_dsv4.analysis.counted import OWN
from hta_dsv4.analysis.step_series import Capture

Ranked = Sequence[Sequence[Capture]]
"""The captures of a side, each as its ranks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What is held against what.

    Attributes:
        rank: which rank of every capture this is; ``None`` where each stands for itself.
        base: one rank of each capture of the baseline; may be empty.
        candidate: the same of the candidate.
    """

    rank: int | None
    base: tuple[Capture, ...]
    candidate: tuple[Capture, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """Baseline and candidate.

    Attributes:
        base: captures of the baseline; may be empty.
        candidate: those of the candidate.
    """

    base: Ranked
    candidate: Ranked

    def pairs(self, relative: bool) -> list[Pair]:
        """One pair a rank; of captures that have other ranks than each other, their median ranks alone.

        Args:
            relative: whether the baseline is asked, and so must have the same ranks.
        """
        if not self._alike(relative):
            base, candidate = (tuple(median_rank(c) for c in side) for side in (self.base, self.candidate))
            return [Pair(None, base, candidate)]
        out = []
        for rank in sorted({r.rank for r in self.candidate[0]}, key=lambda r: -1 if r is None else r):
            base, candidate = (
                tuple(r for capture in side for r in capture if r.rank == rank)
                for side in (self.base, self.candidate)
            )
            out.append(Pair(rank, base, candidate))
        return out

    def notes(self) -> list[str]:
        """What a reader must know of ranks, one sentence each."""
        most = max(len(capture) for capture in (*self.base, *self.candidate))
        if most < 2:
            return []
        if not self._alike(True):
            return [
                "captures have other ranks than each other: where compared, their median ranks stand for them"
            ]
        return [
            f"each of {most} ranks is held to every budget; a row shows the rank that comes off worst (who waits for "
            "whom: hta-dsv4 ranks)"
        ]

    def _alike(self, relative: bool) -> bool:
        """Whether all captures that are asked have the same ranks."""
        sides = (*self.candidate, *(self.base if relative else ()))
        return len({frozenset(r.rank for r in capture) for capture in sides}) == 1


def median_rank(capture: Sequence[Capture]) -> Capture:
    """The rank that stands for a capture: the median (the lower one of two) by own time per step.

    Args:
        capture: its ranks, at least one.
    """
    ordered = sorted(capture, key=lambda r: (float(r.times[OWN].mean()) if r.steps else 0.0, r.rank or 0))
    return ordered[(len(ordered) - 1) // 2]
