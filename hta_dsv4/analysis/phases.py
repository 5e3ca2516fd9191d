"""Do steps differ in kind? Kernels that take a multiple of their usual time in some steps and not in others.

A compressor that closes a group of 128 tokens does work in the steps in which a request completes one, and next to
none in the others. A mean over few steps then depends on which of them were recorded, and two captures with different
numbers of long steps differ by what neither of them changed.

A kernel has phases where its times per step fall into two groups: the longer ones at least :data:`TWICE` the shorter,
further from them than :data:`APART` times the spread within either, and the difference worth :data:`MATERIAL` of the
step. With two steps nothing is known of the spread; then the multiple alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted, step_values
from hta_dsv4.classify.names import short as short_name
from hta_dsv4.trace import activities as col

TWICE = 2.0
APART = 3.0
MATERIAL = 0.001

COMMUNICATION = "communication"

KernelTimes = pd.DataFrame
"""Own time of each kernel (column) in each step (row), int64 [steps, kernels], ns."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A kernel that is long in some steps.

    Attributes:
        kernel: its name.
        long: whether each step is one of them, in order.
        short_ns, long_ns: its mean time in the other steps and in these.
        step_ns: mean of all kernels' time in a step without it being long.
    """

    kernel: str
    long: tuple[bool, ...]
    short_ns: float
    long_ns: float
    step_ns: float

    @property
    def extra_ns(self) -> float:
        """What a long step has more of it."""
        return self.long_ns - self.short_ns

    @property
    def count(self) -> int:
        """How many steps are long."""
        return sum(self.long)

    @property
    def period(self) -> int | None:
        """Every how many steps it is long, where three or more long steps are equally far apart; else ``None``."""
        apart = set(np.diff(np.flatnonzero(self.long)).tolist())
        return int(apart.pop()) if self.count > 2 and len(apart) == 1 else None

    @property
    def often(self) -> str:
        """``every 4th step``, or ``2 of 8 steps``."""
        if self.period == 1 or self.period is None:
            return f"{self.count} of {len(self.long)} steps"
        suffix = {2: "nd", 3: "rd"}.get(self.period, "th")
        return f"every {self.period}{suffix} step"


def kernel_times(part: Counted) -> KernelTimes:
    """Own time of every kernel in every counted step, but for collectives: those wait for other ranks.

    Args:
        part: the counted activities of one rank, classified.
    """
    table = step_values(part, part.activities[col.NAME].astype(str).to_numpy(dtype=object))
    shared = part.activities[col.BUCKET].astype(str) == COMMUNICATION
    return table.drop(columns=set(part.activities.loc[shared, col.NAME].astype(str)))


def phases(times: KernelTimes) -> tuple[Phase, ...]:
    """Kernels that are long in some steps, most extra time first.

    Args:
        times: of one capture; all kernels, so that the step is known.
    """
    table = times.to_numpy(dtype=np.float64)
    if not table.size:
        return ()
    steps = table.sum(axis=1)
    least = MATERIAL * float(steps.mean())
    out = []
    for i in np.flatnonzero(
        np.ptp(table, axis=0) >= max(least, 1.0)
    ):  # a trace may have 100,000 kernel names
        kernel, values = str(times.columns[int(i)]), table[:, i]
        long = _long(values, least)
        if long is None:
            continue
        short, high = float(values[~long].mean()), float(values[long].mean())
        usual = float(np.mean(steps - np.where(long, values - short, 0.0)))
        out.append(Phase(kernel, tuple(bool(b) for b in long), short, high, usual))
    return tuple(sorted(out, key=lambda p: (-p.extra_ns, p.kernel)))


def _long(values: np.ndarray, least: float) -> np.ndarray | None:
    """Bool [steps]: which steps are long; ``None`` where they do not fall into two groups."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return None
    gaps = np.diff(ordered)
    at = int(np.argmax(gaps))
    low, high = ordered[: at + 1], ordered[at + 1 :]
    spread = max(float(np.ptp(low)), float(np.ptp(high)))
    if gaps[at] < least or gaps[at] <= APART * spread or high.min() < TWICE * low.max():
        return None
    found: np.ndarray = values >= high.min()
    return found


def phase_notes(captures: Sequence[tuple[str, KernelTimes]]) -> tuple[str, ...]:
    """Where captures hold different parts of long steps, so that their means differ by what was recorded.

    A capture whose steps are all alike is told short or long by which of another capture's two times its own is nearer
    to, as a ratio.

    Args:
        captures: label and times of each; the same label twice is a repeat.

    Returns:
        One sentence per kernel, most time first; none where all captures hold the same part.
    """
    found: dict[str, list[Phase]] = {}
    for _, times in captures:
        for p in phases(times):
            found.setdefault(p.kernel, []).append(p)
    out = []
    for kernel, seen in found.items():
        short, long = (float(np.mean([getattr(p, k) for p in seen])) for k in ("short_ns", "long_ns"))
        middle = float(np.sqrt(max(short, 1.0) * long))
        parts: list[float] = []
        counts: dict[str, list[str]] = {}
        for label, times in captures:
            if kernel not in times or not len(times):
                continue
            values = times[kernel].to_numpy(dtype=np.float64)
            # its own two groups where it has them, else the others' middle
            own = _long(values, 0.0)
            count = int((own if own is not None else values > middle).sum())
            parts.append(count / len(values))
            counts.setdefault(f"{count} of {len(values)} steps", []).append(label)
        if len(parts) < 2 or max(parts) == min(parts):
            continue
        apart = (long - short) * (max(parts) - min(parts))
        said = "; ".join(f"{n} of {', '.join(labels)}" for n, labels in counts.items())
        sentence = (
            f"{short_name(kernel)} takes about {long / 1e3:,.0f} us in some steps and {short / 1e3:,.0f} us in "
            f"the others; long in {said}. Up to {apart / 1e3:,.0f} us a step of a difference is which steps were "
            "recorded"
        )
        out.append((apart, sentence))
    return tuple(s for _, s in sorted(out, key=lambda x: (-x[0], x[1])))
