"""How much does a step depend on the one before, and how many independent steps is a capture then worth?

A clock that drifts or a batch that ages makes neighbouring steps alike: twenty of them then say as much as two. The
correlation of a step with the one before cannot be told from twenty steps of one quantity (its estimate is off by 0.2).
What makes steps alike is mostly common to a capture, though, so the estimates of all quantities that are judged
together are averaged, and a quantity's own counts where it is larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LEAST_STEPS = 6
"""Fewer steps say nothing about how one depends on the one before."""
_MOST = 0.99


@dataclass(frozen=True, slots=True)
class Mean:
    """How well a mean over steps is known.

    Attributes:
        variance: of the mean.
        independent: as many independent steps would know it as well; between 1 and the number of steps.
    """

    variance: float
    independent: float


def correlation(steps: np.ndarray) -> float | None:
    """Correlation of a step with the one before, freed of the bias that short series have.

    The usual estimate of a correlation ``r`` comes out too small by ``(1 + 3 r) / n`` (Kendall 1954).

    Args:
        steps: [n], in time order.

    Returns:
        Of independent steps 0 on average; beyond 1 by chance; ``None`` with fewer than :data:`LEAST_STEPS` steps or
        where nothing varies.
    """
    n = len(steps)
    off = np.asarray(steps, dtype=float) - np.mean(steps)
    size = float(off @ off)
    if n < LEAST_STEPS or size == 0:
        return None
    return (n * float(off[:-1] @ off[1:]) / size + 1) / (n - 3)


def common_correlation(series: Iterable[np.ndarray]) -> float:
    """Correlation of a step with the one before, over all quantities of some captures.

    Args:
        series: each [steps], in time order.

    Returns:
        Mean of their correlations, 0 to 0.99; 0 where none can be told.
    """
    found = [r for r in map(correlation, series) if r is not None]
    return min(max(float(np.mean(found)), 0.0), _MOST) if found else 0.0


def mean_of_dependent(steps: np.ndarray, common: float) -> Mean:
    """How well the mean over steps is known, if each depends on the one before and no further (AR(1)).

    Args:
        steps: [n], in time order.
        common: correlation of the capture, at least; the quantity's own is taken where it is larger.

    Returns:
        Variance of the mean, and the number of independent steps.
    """
    n = len(steps)
    own = correlation(steps)
    r = min(max(common, own or 0.0), _MOST)
    lag = np.arange(1, n)
    # Variance of a mean of n is this times that of one step over n; of the spread seen around the mean, 1 - this/n is
    # left, since the mean follows the steps.
    factor = min(1 + 2 * float(((1 - lag / n) * r**lag).sum()), 0.95 * n)
    one = float(np.var(steps)) / (1 - factor / n)
    return Mean(one * factor / n, n / factor)
