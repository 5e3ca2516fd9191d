"""Intervals that hold what they promise, floors, and verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from hta_dsv4.analysis import bootstrap, stats
from hta_dsv4.analysis.launches import compare_launches
from hta_dsv4.analysis.stats import (
    BEYOND_SPREAD,
    MIN_STEPS,
    REAL,
    UNCHANGED,
    UNKNOWN,
    WITHIN_NOISE,
    WITHIN_SPREAD,
)


def drifting(n: int, phi: float, rng: np.random.Generator) -> np.ndarray:
    """A series of mean 0 in which each value remembers ``phi`` of the one before, [n]."""
    x = np.zeros(n + 50)
    noise = rng.normal(size=n + 50)
    for i in range(1, len(x)):
        x[i] = phi * x[i - 1] + noise[i]
    return x[50:]


@pytest.mark.parametrize(
    ("p", "dof", "t"),
    [
        (0.975, 1, 12.70620), (0.975, 2, 4.302653), (0.975, 3, 3.182446), (0.975, 5, 2.570582), (0.995, 4, 4.604095),
        (0.975, 30, 2.042272), (0.9999, 7, 7.063433), (0.6, 8, 0.2619211), (0.025, 5, -2.570582), (0.5, 3, 0.0),
    ],
)  # fmt: skip
def test_t_quantiles_are_the_tables(p, dof, t):
    """A probability and degrees of freedom -> the published quantile of Student's t."""
    assert bootstrap.t_quantile(p, dof) == pytest.approx(t, rel=1e-4)


def test_intervals_hold_on_correlated_steps_where_independent_resampling_fails():
    """150 series of 60 steps with correlation 0.5 -> interval holds the mean in over 85 %, an iid one in under 82 %."""
    rng = np.random.default_rng(5)
    ours = independent = 0
    for k in range(150):
        x = drifting(60, 0.5, rng)
        low, high = stats.estimate(x, seed=k).interval
        ours += low <= 0 <= high
        means = x[bootstrap.resample(60, 1.0, k, 500)].mean(axis=1)
        independent += np.quantile(means, 0.025) <= 0 <= np.quantile(means, 0.975)
    assert ours / 150 > 0.85
    assert independent / 150 < 0.82


def test_blocks_are_longer_the_longer_steps_remember():
    """independent, correlated and constant series -> block near n^(1/3), longer, and n^(1/3)."""
    rng = np.random.default_rng(1)
    free, bound = rng.normal(size=400), drifting(400, 0.9, rng)
    assert bootstrap.block_length(free) < 1.8 * 400 ** (1 / 3)
    assert bootstrap.block_length(bound) > 2 * bootstrap.block_length(free)
    assert bootstrap.block_length(np.full(400, 7.0)) == pytest.approx(400 ** (1 / 3))


def test_resamples_are_blocks_of_consecutive_steps():
    """Mean block 10 -> nine of ten indices follow their predecessor; block 1 -> independent; every index in range."""
    drawn = bootstrap.resample(50, 10.0, seed=0)
    follows = ((drawn[:, 1:] - drawn[:, :-1]) % 50 == 1).mean()
    assert follows == pytest.approx(0.9, abs=0.02)
    assert (
        (bootstrap.resample(50, 1.0, 0)[:, 1:] - bootstrap.resample(50, 1.0, 0)[:, :-1]) % 50 == 1
    ).mean() < 0.05
    assert (drawn.min(), drawn.max()) == (0, 49)


def test_an_estimate_is_the_same_each_time_and_describes_the_spread():
    """A series twice -> identical; median, MAD and quartiles as by hand, unmoved by one outlier."""
    values = np.array([10, 12, 11, 13, 12, 11, 500, 12] + [11, 13] * 12)
    one, two = stats.estimate(values), stats.estimate(values)
    assert one == two
    assert (one.median, one.mad, one.iqr, one.n) == (12.0, 1.0, 2.0, 32)
    assert one.median_interval[1] <= 13
    assert one.interval[1] > 40


@pytest.mark.parametrize("n", range(MIN_STEPS))
def test_too_few_steps_give_no_interval_but_a_reason(n):
    """0 to 5 steps -> no interval, the reason says how many there are."""
    found = stats.estimate(np.arange(n))
    assert (found.interval, found.median_interval) == (None, None)
    assert found.reason
    assert n == 0 or str(n) in found.reason


def test_a_floor_sees_drift_within_a_capture():
    """First half 100, second 104 -> floor 4; a middle step belongs to neither half; one step -> unknown."""
    assert stats.halves_floor(np.array([100, 100, 104, 104])) == 4
    assert stats.halves_floor(np.array([100, 100, 999, 104, 104])) == 4
    assert stats.halves_floor(np.array([100])) is None


def test_a_drift_is_not_taken_for_a_change():
    """A capture that drifts by 8 within itself, change 5 -> within noise, though the interval might leave out 0."""
    rng = np.random.default_rng(0)
    base = np.linspace(100, 116, 40) + rng.normal(scale=0.1, size=40)
    (change,) = stats.compare_steps([base[:, None]], [(base + 5)[:, None]])
    assert change.within_run == WITHIN_NOISE
    assert change.floor_ns == pytest.approx(8, abs=0.5)
    assert change.delta_ns == pytest.approx(5)


def test_identical_variants_rarely_show_a_change():
    """60 pairs of captures of one thing, 5 quantities each -> fewer than 5 % of pairs have any real change."""
    rng = np.random.default_rng(2)
    false = 0
    for _ in range(60):
        a, b = rng.normal(1000, 10, (2, 30, 5))
        false += any(c.within_run == REAL for c in stats.compare_steps([a], [b]))
    assert false <= 3


def test_a_clear_change_is_found_among_many_rows():
    """50 rows of which one moved by 3 standard deviations -> that one is real, alone."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(1000, 10, (2, 40, 50))
    b[:, 17] += 30
    found = [i for i, c in enumerate(stats.compare_steps([a], [b])) if c.within_run == REAL]
    assert found == [17]


def test_the_same_values_are_unchanged_whatever_their_number():
    """Equal arrays, even of two steps -> unchanged, not within noise."""
    a = np.array([[5], [6]])
    assert stats.compare_steps([a], [a])[0].within_run == UNCHANGED


def test_few_steps_give_no_interval_and_repeats_can_still_decide():
    """3 steps each -> beyond their spread, no more; a repeat that differs by 1, a change of 20 -> real across runs."""
    a, again, b = (np.full((3, 1), v) for v in (100, 101, 120))
    (alone,) = stats.compare_steps([a], [b])
    assert (alone.within_run, alone.across_run, alone.floor_ns) == (BEYOND_SPREAD, UNKNOWN, None)
    assert "too few steps for an interval: 3" in alone.reason
    (repeated,) = stats.compare_steps([a, again], [b])
    assert (repeated.within_run, repeated.across_run, repeated.verdict) == (BEYOND_SPREAD, REAL, REAL)
    (interleaved,) = stats.compare_steps([a, np.full((3, 1), 130)], [b])
    assert interleaved.across_run == WITHIN_NOISE


def test_one_or_few_steps_are_measured_against_their_spread():
    """2 steps that scatter by 1, change 20 -> beyond spread; change 3 -> within spread; a single step -> unknown."""
    a = np.array([[100], [101]])
    (far,), (near,) = stats.compare_steps([a], [a + 20]), stats.compare_steps([a], [a + 3])
    (single,) = stats.compare_steps([a[:1]], [a + 20])
    assert [c.within_run for c in (far, near, single)] == [BEYOND_SPREAD, WITHIN_SPREAD, UNKNOWN]
    assert all(c.interval is None for c in (far, near, single))
    assert "more than 2x the spread" in far.reason


def test_few_unchanged_steps_rarely_stand_out():
    """2,000 unchanged quantities of 2 steps a side -> 2 to 6 % beyond spread; of 3 steps -> under 1 %."""
    rng = np.random.default_rng(7)
    shares = []
    for n in (2, 3):
        a, b = rng.normal(1000, 10, (2, n, 2000))
        shares.append(np.mean([c.within_run == BEYOND_SPREAD for c in stats.compare_steps([a], [b])]))
    assert 0.02 < shares[0] < 0.06
    assert shares[1] < 0.01


@pytest.mark.parametrize(
    ("n", "phi", "block"), [(40, 0.6, 5.0), (300, 0.9, 30.0), (7, 0.0, 1.9), (50, 0.5, 1.0)]
)
def test_the_closed_form_is_what_resamples_converge_to(n, phi, block):
    """A series and a block length -> variance of the mean within 4 % of that of 20,000 resamples, per column."""
    rng = np.random.default_rng(n)
    x = np.stack([drifting(n, phi, rng), 3 * drifting(n, phi, rng)], axis=1)
    drawn = np.concatenate([x[bootstrap.resample(n, block, s, 5000)].mean(axis=1) for s in range(4)])
    assert bootstrap.mean_variance(x, block) == pytest.approx(drawn.var(axis=0), rel=0.04)
    assert bootstrap.mean_variance(x[:, 0], block) == pytest.approx(bootstrap.mean_variance(x, block)[0])


def test_launches_answer_where_steps_are_few():
    """40 launches 10 % apart within 1 % noise -> distinct; the same within 20 % -> not; 5 launches -> no interval."""
    rng = np.random.default_rng(4)
    tight, wide = rng.normal(1000, 10, (2, 40)), rng.normal(1000, 400, (2, 40))
    assert compare_launches(tight[0], tight[1] * 1.1).distinct
    assert not compare_launches(wide[0], wide[1] * 1.01).distinct
    few = compare_launches(tight[0][:5], tight[1])
    assert (few.interval, few.distinct) == (None, False)
    assert "too few launches" in few.reason


def test_launches_of_many_sizes_are_told_apart_in_pairs():
    """Launches of 1 us to 10 ms, each 1 % slower -> unpaired says nothing, launch by launch it is distinct."""
    rng = np.random.default_rng(6)
    sizes = 10 ** rng.uniform(3, 7, 200)
    a = sizes * rng.normal(1, 0.002, (2, 200))
    b = 1.01 * sizes * rng.normal(1, 0.002, (2, 200))
    assert not compare_launches(a.ravel(), b.ravel()).distinct
    paired = compare_launches(a, b)
    assert paired.distinct
    assert paired.interval[0] < 0.01 * sizes.mean() < paired.interval[1]
