"""How do the clocks of two ranks differ? Fitted from collectives, which end together on all ranks.

No rank can leave a symmetric collective (all-reduce, all-gather, ...) before the last one has arrived and sent its
part, so its kernels end within a few microseconds of each other, however far apart they began. The difference of the
ends, as each rank's trace has them, is the difference of the clocks, plus that skew.

The fit is a line: offset at the middle of what was captured, and drift. It is robust (Theil-Sen: median of the slopes
of pairs, then median of what is left), so that a few odd collectives do not move it. A drift that changes the clock by
no more than the fit's own residual over the whole capture is not resolved and taken as none. What the line leaves is
reported, as nothing smaller than it can be told about who came late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_PAIRED = 400  # collectives whose pairs give the slope; more would cost quadratically and change nothing
_FEWEST = 8  # below this many a slope is noise
_SIGMAS = 5  # standard deviations from which a drift counts as one


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How one rank's clock differs from another's.

    Attributes:
        rank, reference: the two ranks.
        collectives: how many the fit rests on.
        middle_ns: time on the rank's clock at which the offset holds, ns.
        offset_ns: what to add to the rank's times, ns.
        drift_ppm: by how much the offset grows over time, microseconds per second; 0 where not resolved.
        drift_resolved: whether the drift exceeds what the residuals could make up.
        p50_ns, p95_ns, max_ns: absolute residuals: differences of ends that the line does not explain.
        one_host: whether both files name the same host; ``None`` where one does not say. Then the offset is expected
            to be near 0, as both traces carry that host's clock.
    """

    rank: int
    reference: int
    collectives: int
    middle_ns: int
    offset_ns: int
    drift_ppm: float
    drift_resolved: bool
    p50_ns: int
    p95_ns: int
    max_ns: int
    one_host: bool | None = None

    def to_reference(self, times: Ints) -> Ints:
        """Times of the rank (int64, ns) on the reference's clock."""
        if not self.drift_ppm:
            return np.asarray(times + self.offset_ns, np.int64)
        drifted = np.rint((times - self.middle_ns) * (self.drift_ppm * 1e-6)).astype(np.int64)
        return np.asarray(times + self.offset_ns + drifted, np.int64)


def same_clock(rank: int, collectives: int = 0) -> ClockFit:
    """The fit of a rank with itself."""
    return ClockFit(rank, rank, collectives, 0, 0, 0.0, False, 0, 0, 0, True)


def fit_clock(
    rank: int, reference: int, ends: Ints, reference_ends: Ints, one_host: bool | None = None
) -> ClockFit:
    """Fit one rank's clock to another's.

    Args:
        rank: whose clock.
        reference: to whose.
        ends: int64 [collectives], ns: when each ended on the rank, by its clock.
        reference_ends: the same on the reference, in the same order.
        one_host: see :class:`ClockFit`.

    Returns:
        The fit.

    Raises:
        ValueError: no collective, or arrays of different lengths.
    """
    n = len(ends)
    if not n or n != len(reference_ends):
        raise ValueError(
            f"a clock is fitted to the ends of the same collectives, got {n}, {len(reference_ends)}"
        )
    apart = reference_ends - ends
    level = int(np.median(apart))
    middle = int(ends.min()) + (int(ends.max()) - int(ends.min())) // 2
    x, y = (ends - middle).astype(np.float64), (apart - level).astype(np.float64)
    flat = y - np.median(y)
    slope = _slope(x, y)
    tilted = y - slope * x
    at_middle = float(np.median(tilted))
    tilted = tilted - at_middle
    change = abs(slope) * float(np.ptp(x))
    # Noise of standard deviation s makes a slope up that changes the clock by about s * sqrt(12 / n) over the capture.
    noise = 1.4826 * _quantile(tilted, 50)
    resolved = n >= _FEWEST and change > max(1.0, noise, _SIGMAS * noise * (12 / n) ** 0.5)
    offset = level + round(at_middle if resolved else float(np.median(y)))
    left = tilted if resolved else flat
    return ClockFit(
        rank, reference, n, middle, offset, slope * 1e6 if resolved else 0.0, resolved,
        round(_quantile(left, 50)), round(_quantile(left, 95)), round(_quantile(left, 100)), one_host,
    )  # fmt: skip


def _slope(x: Floats, y: Floats) -> float:
    """Theil and Sen's slope: the median over pairs."""
    if len(x) > _PAIRED:
        pick = np.unique(np.linspace(0, len(x) - 1, _PAIRED).astype(np.int64))
        x, y = x[pick], y[pick]
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    some = run != 0
    return float(np.median((y[j] - y[i])[some] / run[some])) if some.any() else 0.0


def _quantile(left: Floats, percent: int) -> float:
    return float(np.percentile(np.abs(left), percent))
