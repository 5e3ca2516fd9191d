"""How rare is it? The upper tail of the F distribution, by the incomplete beta function; numpy has none."""

from __future__ import annotations

import math


def f_tail(f: float, between: int, within: int) -> float:
    """Probability that a value of the F distribution is at least ``f``.

    Args:
        f: ratio of two mean squares, >= 0.
        between: degrees of freedom of the upper one, >= 1.
        within: of the lower one, >= 1.

    Returns:
        0 to 1; absolute error below 1e-10.
    """
    if f <= 0:
        return 1.0
    if math.isinf(f):
        return 0.0
    return beta_ratio(within / 2, between / 2, within / (within + between * f))


def beta_ratio(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function ``I_x(a, b)``, by its continued fraction (DLMF 8.17.22).

    Args:
        a: > 0.
        b: > 0.
        x: 0 to 1.

    Returns:
        0 to 1.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta_ratio(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Evaluated from the back: from the 200th on no term moves a float.
    fraction = 1.0
    for m in range(200, 0, -1):
        odd = -(a + m - 1) * (a + b + m - 1) * x / ((a + 2 * m - 2) * (a + 2 * m - 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + odd / (1 + even / fraction)
    return front / (a * fraction)
