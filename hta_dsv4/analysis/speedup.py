"""How many times the throughput of another variant, at each concurrency that both were measured at?

The interval rests on the repeats of both sides, whose scatter need not be alike (Welch): it says how sure the ratio is
for these two sweeps. What starting the server again would change no repeat within a sweep can say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.bootstrap import t_quantile
from hta_dsv4.analysis.stats import LEVEL
from hta_dsv4.analysis.throughput import Throughput


@dataclass(frozen=True, slots=True)
class Speedup:
    """Two variants at one concurrency.

    Attributes:
        concurrency: C.
        times: throughput of the other over that of the base; above 1 the other is faster.
        interval: of it; ``None`` unless both have at least two repeats that count.
    """

    concurrency: int
    times: float
    interval: tuple[float, float] | None

    @property
    def sure(self) -> bool | None:
        """Whether the interval leaves out 1; ``None`` without one."""
        return None if self.interval is None else not self.interval[0] <= 1 <= self.interval[1]


def speedups(base: Throughput, other: Throughput) -> tuple[Speedup, ...]:
    """Throughput of one variant as a multiple of another's.

    Args:
        base: what is compared with.
        other: what is compared.

    Returns:
        One per concurrency at which both have a figure, increasing; none where one is of GPU time and the other of
        step time.
    """
    if base.sweep.of_gpu_time != other.sweep.of_gpu_time:
        return ()
    before, after = _steps(base), _steps(other)
    out = []
    for c in sorted(set(before) & set(after)):
        a, b = before[c], after[c]
        times = float(a.mean() / b.mean())
        interval = None
        if min(len(a), len(b)) > 1:
            half = _half(a, b)
            interval = times * math.exp(-half), times * math.exp(half)
        out.append(Speedup(c, times, interval))
    return tuple(out)


def _steps(t: Throughput) -> dict[int, np.ndarray]:
    found: dict[int, list[float]] = {}
    for r in t.sweep.repeats:
        if r.mean_step_ns is not None:
            found.setdefault(r.concurrency, []).append(r.mean_step_ns)
    return {c: np.array(steps) for c, steps in found.items()}


def _half(a: np.ndarray, b: np.ndarray) -> float:
    """Half the interval of the logarithm of a ratio of means (Welch; to first order in the relative scatter)."""
    parts = [float(x.var(ddof=1)) / len(x) / float(x.mean()) ** 2 for x in (a, b)]
    total = sum(parts)
    if total == 0:
        return 0.0
    dof = total**2 / sum(p**2 / (len(x) - 1) for p, x in zip(parts, (a, b), strict=True))
    return t_quantile(1 - (1 - LEVEL) / 2, max(dof, 1.0)) * math.sqrt(total)
