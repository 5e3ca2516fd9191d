"""What a finding is: a claim about time that could be saved, with the numbers it rests on and how it can be wrong.

Every finding holds a number from the trace. What it would save is said per launch, as a range, so that findings about
the same launches can be told apart: the time of a launch is given away once (:mod:`.ranking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hta_dsv4.analysis.digits import three_digits

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ATTACK, LEAVE, RECAPTURE = "attack", "leave", "recapture"
"""Kinds: time to be won; looked at and to be left alone; the trace cannot answer, so record it again."""
GPU, WALL = "GPU time", "wall time"
"""What is saved: own times of GPU activities, or time from one step to the next."""
MEASURED, MODELLED, INFERRED = "measured", "modelled", "inferred"
"""How a number is known: counted from the trace or its manifest; from a cost model; concluded from other numbers."""

ATTAINABLE = (0.5, 0.75, 1.0)
"""Part of a floor's speed that a rewritten kernel may reach: cautious, usual for a tuned kernel, perfect. A judgement,
not a measurement, and named as assumed wherever it is used."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number.

    Attributes:
        what: what it is, a few words.
        value: the number.
        unit: ``ns``, ``launches``, ``GB/s``, ``TFLOP/s``, ``x``, ``%``, ``bytes``, ``CTAs``, ...
        label: measured, modelled or inferred.
    """

    what: str
    value: float
    unit: str
    label: str = MEASURED


@dataclass(frozen=True, slots=True)
class Recoverable:
    """Time that could be saved per step, ns: at least, most likely, at most."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True)
class Claim:
    """What a finding would save, launch by launch.

    Attributes:
        rows: int64 [k], positions in the counted activities.
        low, mid, high: float64 [k], ns saved of each; ``0 <= low <= mid <= high <= duration``.
    """

    rows: Ints
    low: Floats
    mid: Floats
    high: Floats

    def per_step(self, steps: int, left: Floats | None = None) -> Recoverable:
        """Saved per step.

        Args:
            steps: counted steps.
            left: float64 [activities], the part of each activity's time that is still there; all of it by default.
        """
        part = np.ones(len(self.rows)) if left is None else left[self.rows]
        return Recoverable(
            *(float((saved * part).sum()) / steps for saved in (self.low, self.mid, self.high))
        )


def claim(rows: Ints, duration: Floats, cautious: Floats, likely: Floats, best: Floats) -> Claim:
    """A claim from what launches would take afterwards.

    Args:
        rows: int64 [k], positions in the counted activities.
        duration: float64 [k], ns now.
        cautious: float64 [k], ns afterwards at worst; longer than now counts as unchanged.
        likely: float64 [k], ns afterwards most likely.
        best: float64 [k], ns afterwards at best. What contradicts ``best <= likely <= cautious`` is put in that order.
    """
    high = np.clip(duration - best, 0, duration)
    mid = np.clip(duration - likely, 0, high)
    return Claim(rows, np.clip(duration - cautious, 0, mid), mid, high)


def together(claims: Sequence[Claim]) -> Claim:
    """Claims on different launches as one."""
    parts = [np.concatenate([getattr(c, f) for c in claims]) for f in ("rows", "low", "mid", "high")]
    return Claim(*parts)


@dataclass(frozen=True)
class Finding:
    """One thing to attack, to leave alone, or to record again for.

    Attributes:
        rule: which rule found it.
        kind: ATTACK, LEAVE or RECAPTURE.
        title: one line with its number.
        evidence: the numbers it rests on, the first from the trace.
        kernels: names of the kernels concerned, most time first, at most three.
        launches: of them per step; ``time_ns`` their own time per step; ``steps`` how many were looked at.
        recoverable: time to be saved per step; ``None`` where there is none or it cannot be known.
        unknown_because: why it cannot be known; else empty.
        saves: GPU or WALL.
        label: how ``recoverable`` is known.
        confidence: 0 to 1, that at least the low end would be saved; a judgement. ``because`` says from what.
        check: how to test it before doing it.
        action: what to do.
        stop: when to stop.
        needs: which capture would make it firmer; empty where none.
        claim: what is saved of which launch; ``None`` where it is not of launches.
    """

    rule: str
    kind: str
    title: str
    evidence: tuple[Evidence, ...]
    kernels: tuple[str, ...] = ()
    launches: float = 0.0
    time_ns: int = 0
    steps: int = 0
    recoverable: Recoverable | None = None
    unknown_because: str = ""
    saves: str = GPU
    label: str = MEASURED
    confidence: float = 0.0
    because: str = ""
    check: str = ""
    action: str = ""
    stop: str = ""
    needs: str = ""
    claim: Claim | None = field(default=None, compare=False, repr=False)


def said(ns: float) -> str:
    """A time for a sentence: three digits or more of ms or us."""
    if abs(ns) >= 1e8:
        return f"{ns / 1e6:,.0f} ms"
    return f"{ns / 1e6:,.1f} ms" if abs(ns) >= 1e6 else f"{ns / 1e3:,.1f} us"


def about(ns: float) -> str:
    """A time that is a model's, for a sentence: three digits, as its evidence is written."""
    return f"{three_digits(ns / 1e6)} ms" if abs(ns) >= 1e6 else f"{three_digits(ns / 1e3)} us"


def rate(value: float, label: str = MODELLED) -> str:
    """A bandwidth or a rate for a sentence, without its unit: as its evidence is written.

    Args:
        value: GB/s, TFLOP/s, ...
        label: MEASURED keeps all digits before the point, three at least; else three digits.
    """
    return f"{value:,.0f}" if label == MEASURED and value >= 1000 else three_digits(value)


def percent(part: float, whole: float) -> str:
    """A share for a sentence."""
    return f"{100 * part / whole:.1f} %" if whole else "- %"
