"""Resampling for steps that are not independent, and Student's t.

Steps of one capture depend on each other: clocks drift, caches warm, batches age. The stationary bootstrap (Politis &
Romano 1994) keeps that dependence by drawing blocks of consecutive steps of random length; their mean length is chosen
from the series' own autocorrelation (Politis & White 2004, as corrected by Patton, Politis & White 2009).

The bootstrap variance of a *mean* needs no drawing at all: it has a closed form (:func:`mean_variance`), which is what
any number of resamples converges to and costs one Fourier transform. Resamples are drawn for medians and percentiles.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000


def t_quantile(p: float, dof: float) -> float:
    """Quantile of Student's t (Hill 1970, Algorithm 396, with one Cornish-Fisher tail; exact for 1 and 2).

    Args:
        p: probability, 0 < p < 1.
        dof: degrees of freedom, >= 1.

    Returns:
        ``t`` with ``P(T <= t) = p``; relative error below 1e-3 for dof >= 3.
    """
    if p < 0.5:
        return -t_quantile(1 - p, dof)
    if p == 0.5:
        return 0.0
    two_sided = 2 * (1 - p)
    if dof < 1.5:
        return 1 / math.tan(two_sided * math.pi / 2)
    if dof < 2.5:
        return math.sqrt(2 / (two_sided * (2 - two_sided)) - 2)
    a = 1 / (dof - 0.5)
    b = 48 / (a * a)
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * dof
    y: float = (d * two_sided) ** (2 / dof)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(two_sided / 2)
        y = x * x
        if dof < 5:
            c += 0.3 * (dof - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (1 / (((dof + 6) / (dof * y) - 0.089 * d - 0.822) * (dof + 2) * 3) + 0.5 / (dof + 4)) * y - 1
        ) * (dof + 1) / (dof + 2) + 1 / y
    return math.sqrt(dof * y)


def block_length(values: np.ndarray) -> float:
    """Mean block length for the stationary bootstrap, from the series' autocorrelation.

    Args:
        values: float [n], in time order.

    Returns:
        Between ``n^(1/3)`` and ``n/3``; 1 for fewer than four values.
    """
    n = len(values)
    if n < 4:
        return 1.0
    # In short series correlation hides below significance; blocks of n^(1/3) cost independent steps little.
    least = math.pow(n, 1 / 3)
    x = values - values.mean()
    variance = float(x @ x) / n
    if variance == 0:
        return least
    longest = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    rho = np.array([float(x[: n - k] @ x[k:]) / n / variance for k in range(longest + 1)])
    # The first lag after which a run of autocorrelations is insignificant.
    quiet, run = 2 * math.sqrt(math.log10(n) / n), max(5, math.ceil(math.sqrt(math.log10(n))))
    loud = np.flatnonzero(np.abs(rho[1:]) >= quiet) + 1
    m = next((k for k in range(longest + 1) if not ((loud > k) & (loud <= k + run)).any()), longest)
    if m == 0:
        return least
    lags = np.arange(-min(2 * m, longest), min(2 * m, longest) + 1)
    window = np.clip(2 * (1 - np.abs(lags) / (2 * m)), 0, 1)  # flat top, linear flanks
    r = rho[np.abs(lags)]
    spectrum, slope = float((window * r).sum()), float((window * np.abs(lags) * r).sum())
    if spectrum <= 0:
        return least
    return float(np.clip(((slope / spectrum) ** 2 * n) ** (1 / 3), least, max(least, n / 3)))


def mean_variance(values: np.ndarray, block: float) -> np.ndarray:
    """Variance of the mean under the stationary bootstrap, in closed form (Politis & Romano 1994, lemma 1).

    Two resampled values ``k`` apart are ``k`` apart in the series, too, where no new block began between them, which
    has probability ``(1 - 1/block)^k``; else they are independent. With ``R(k)`` the circular autocovariance::

        n * var  =  R(0) + 2 * sum over k = 1 .. n-1 of  (1 - k/n) * (1 - 1/block)^k * R(k)

    Args:
        values: float [n] or [n, quantities], in time order, n >= 1.
        block: mean block length, >= 1; 1 gives the variance of independent values, ``R(0) / n``.

    Returns:
        float [] or [quantities], >= 0.
    """
    x = values - values.mean(axis=0)
    n = len(x)
    power = np.abs(np.fft.rfft(x, axis=0)) ** 2
    covariance = np.fft.irfft(power, n, axis=0) / n
    lag = np.arange(1, n)
    weight = (1 - lag / n) * (1 - 1 / block) ** lag
    total = covariance[0] + 2 * np.tensordot(weight, covariance[1:], axes=1)
    return np.maximum(np.asarray(total, dtype=float) / n, 0.0)


def resample(n: int, block: float, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Index sets of the stationary bootstrap.

    Args:
        n: length of the series.
        block: mean block length, >= 1; block lengths are geometric, the series is circular.
        seed: of the generator.
        resamples: how many.

    Returns:
        int64 [resamples, n].
    """
    rng = np.random.default_rng(seed)
    jump = rng.random((resamples, n)) < 1 / block
    jump[:, 0] = True
    fresh = rng.integers(0, n, (resamples, n))
    at = np.maximum.accumulate(np.where(jump, np.arange(n), 0), axis=1)  # where the current block began
    return (np.take_along_axis(fresh, at, axis=1) + np.arange(n) - at) % n
