"""The line of step time over concurrency: known lines recovered at the stated coverage, curves told from lines."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hta_dsv4.analysis.step_line import CLOSE, ceiling_of, step_line
from hta_dsv4.analysis.tails import beta_ratio, f_tail
from hta_dsv4.errors import HtaDsv4Error

A, B = 30e6, 10e6
RUNS = 300
# 300 runs at 95 %: fewer than 270 inside would come by chance once in 5,000 times.
LEAST = 270


def noisy(values, repeats, rng, form, size=0.03):
    x = np.repeat(values, repeats)
    y = A + B * x
    return x, y + rng.normal(size=len(x)) * (size * y if form == "relative" else size * A)


@pytest.mark.parametrize("form", ["relative", "equal"])
@pytest.mark.parametrize(
    ("values", "repeats"), [((1, 4, 16, 64), 3), ((1, 16, 64), 3), ((1, 4, 16, 32), 2), ((1, 4, 16, 64), 1)]
)
def test_known_line_is_inside_the_interval_as_often_as_stated(form, values, repeats):
    """300 noisy repeats of a known line, noise of either form -> a, b and 1/b inside their 95 % intervals as often."""
    rng = np.random.default_rng(8)
    inside = {"a": 0, "b": 0, "ceiling": 0}
    for _ in range(RUNS):
        line = step_line(*noisy(values, repeats, rng, form))
        inside["a"] += line.fixed_interval[0] <= A <= line.fixed_interval[1]
        inside["b"] += line.per_request_interval[0] <= B <= line.per_request_interval[1]
        c = line.ceiling
        inside["ceiling"] += c.low <= 1e9 / B <= (c.high or math.inf)
    assert min(inside.values()) >= LEAST, inside


def test_a_true_line_is_seldom_given_up():
    """300 noisy repeats of a line -> called no line about 5 % of the time, as stated."""
    rng = np.random.default_rng(9)
    given_up = sum(step_line(*noisy((1, 4, 16, 64), 3, rng, "relative")).fits is False for _ in range(RUNS))
    assert 3 <= given_up <= 30


def test_exact_line_is_found_exactly():
    """Step times on a line without noise -> a, b and 1/b to rounding, interval of no width, fits."""
    x = np.repeat([1, 4, 16, 64], 2)
    line = step_line(x, A + B * x)
    assert line.fixed_ns == pytest.approx(A, rel=1e-9)
    assert line.per_request_ns == pytest.approx(B, rel=1e-12)
    assert line.ceiling.tokens_per_s == pytest.approx(100)
    assert line.ceiling.high - line.ceiling.low == pytest.approx(0, abs=1e-6)
    assert line.fits is True
    assert line.bend is None


def test_noise_form_follows_the_repeats():
    """Noise in proportion to the step time, then the same everywhere -> each named, with weights to match."""
    rng = np.random.default_rng(3)
    assert step_line(*noisy((1, 16, 64), 8, rng, "relative")).noise == "relative"
    assert step_line(*noisy((1, 16, 64), 8, rng, "equal")).noise == "equal"
    assert step_line(*noisy((1, 16, 64), 1, rng, "equal")).noise == "unclear"


def test_bent_curve_is_no_line():
    """Flat to C=16, then 10 ms a request -> no line, bent at 16, slopes on either side, no belief in 1/b."""
    rng = np.random.default_rng(1)
    x = np.repeat([1, 4, 16, 32, 64], 3)
    y = 200e6 + B * np.maximum(x - 16, 0)
    line = step_line(x, y * (1 + 0.005 * rng.normal(size=len(x))))
    assert line.fits is False
    assert not line.holds
    assert line.bend.at == 16
    assert line.bend.before_ns == pytest.approx(0, abs=0.3e6)
    assert line.bend.after_ns == pytest.approx(B, rel=0.03)
    last = line.segments[-1]
    assert (last.low, last.high) == (32, 64)
    assert last.interval[0] <= B <= last.interval[1]
    assert last.ceiling.tokens_per_s == pytest.approx(100, rel=0.1)


def test_curve_close_to_a_line_still_has_a_ceiling():
    """Repeats so precise that 1 % of curvature shows -> told from a line, but within 3 % it holds, interval wider."""
    x = np.repeat([1, 4, 16, 64], 3)
    y = (A + B * x) * (1 + 0.01 * np.sin(x)) * (1 + 1e-5 * np.tile([-1, 0, 1], 4))
    line = step_line(x, y)
    assert line.fits is False
    assert line.holds
    assert abs(line.worst) <= CLOSE
    assert line.per_request_interval[0] <= B <= line.per_request_interval[1]


def test_curves_distance_is_not_shrunk_by_repeats():
    """The same bent means with 3 and with 30 repeats -> the interval of b stays as wide: it rests on the means."""

    def width(repeats):
        x = np.repeat([1, 4, 16, 64], repeats)
        y = (A + B * x**0.7) * (1 + 0.001 * np.tile(np.linspace(-1, 1, repeats), 4))
        line = step_line(x, y)
        assert line.fits is False
        return line.per_request_interval[1] - line.per_request_interval[0]

    assert width(30) == pytest.approx(width(3), rel=0.02)


def test_two_values_have_no_interval():
    """C = 1 and 64, three repeats each -> the line through both means, no interval, nothing tests it, said why."""
    line = step_line([1, 1, 1, 64, 64, 64], [40e6, 41e6, 39e6, 670e6, 671e6, 669e6])
    assert line.per_request_ns == pytest.approx(10e6)
    assert line.per_request_interval is line.fixed_interval is line.lack is None
    assert "two values" in line.interval_from
    assert line.ceiling.tokens_per_s == pytest.approx(100)
    assert line.ceiling.low is None


@pytest.mark.parametrize("values", [[], [4], [4, 4, 4]])
def test_one_value_is_no_line(values):
    """No or one value of C -> an error with the remedy."""
    with pytest.raises(HtaDsv4Error, match="at least two values of C"):
        step_line(values, [1e6] * len(values))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_step_time_must_be_a_positive_number(bad):
    """A step time of 0, below, or no number -> an error, not a fit of nonsense."""
    with pytest.raises(HtaDsv4Error, match="positive number"):
        step_line([1, 2, 4], [1e6, bad, 2e6])


def test_ceiling_where_the_slope_may_be_zero():
    """An interval of b that holds 0 -> not bounded, but a least ceiling; b below 0 -> no ceiling at all."""
    c = ceiling_of(1e6, (-1e6, 3e6))
    assert not c.bounded
    assert c.high is None
    assert c.low == pytest.approx(1e9 / 3e6)
    assert ceiling_of(-1e6, None).tokens_per_s is None
    assert not ceiling_of(-1e6, (-2e6, -0.5e6)).bounded
    assert ceiling_of(-1e6, (-2e6, -0.5e6)).low is None


def test_flat_step_time_does_not_bound_throughput():
    """Step time that does not grow with C -> b's interval holds 0, ceiling not bounded."""
    rng = np.random.default_rng(2)
    x = np.repeat([1, 4, 16, 64], 3)
    line = step_line(x, 100e6 * (1 + 0.01 * rng.normal(size=len(x))))
    assert line.per_request_interval[0] < 0 < line.per_request_interval[1]
    assert not line.ceiling.bounded


@given(
    st.lists(st.tuples(st.integers(1, 512), st.floats(1e3, 1e12)), min_size=2, max_size=24).filter(
        lambda rows: len({c for c, _ in rows}) > 1
    )
)
def test_any_measurements_give_a_line_or_a_reason(rows):
    """Any positive step times at two or more values of C -> finite a and b, b inside its interval, segments chained."""
    line = step_line([c for c, _ in rows], [t for _, t in rows])
    assert math.isfinite(line.fixed_ns)
    assert math.isfinite(line.per_request_ns)
    if line.per_request_interval is not None:
        low, high = line.per_request_interval
        assert low <= line.per_request_ns <= high
    assert [s.low for s in line.segments] == list(line.values[:-1])
    assert [s.high for s in line.segments] == list(line.values[1:])


def test_f_tail_against_closed_forms_and_tables():
    """Closed form for 2 upper degrees of freedom; published 5 % points; the ends -> equal."""
    for f in (0.01, 0.5, 3.0, 40.0, 1e3):
        assert f_tail(f, 2, 7) == pytest.approx((1 + 2 * f / 7) ** -3.5, rel=1e-10)
    for between, within, point in (
        (1, 1, 161.4476),
        (2, 8, 4.4590),
        (3, 10, 3.7083),
        (10, 200, 1.8783),
        (5, 2, 19.2964),
    ):
        assert f_tail(point, between, within) == pytest.approx(0.05, abs=1e-5)
    assert f_tail(0, 3, 5) == 1
    assert f_tail(math.inf, 3, 5) == 0
    assert beta_ratio(2, 3, 0.4) == pytest.approx(0.5248, abs=1e-12)
    assert beta_ratio(2, 3, 0.4) + beta_ratio(3, 2, 0.6) == pytest.approx(1)


@given(st.integers(0, 2**32 - 1))
def test_the_bend_is_the_best_of_all(seed):
    """Bent curves with noise, repeats unequal -> the value of C at which two lines come closest, tried one by one."""
    rng = np.random.default_rng(seed)
    x = np.unique(rng.integers(1, 2000, 9)).astype(float)
    knot = rng.choice(x[1:-1])
    y = 2e6 + 3e5 * x + 9e5 * np.maximum(x - knot, 0) + rng.normal(0, 1e5, len(x))
    repeats = rng.integers(2, 5, len(x))
    line = step_line(np.repeat(x, repeats), np.repeat(y, repeats) + rng.normal(0, 10, repeats.sum()))
    if line.bend is None or line.noise != "equal":
        return

    def left(at: float) -> float:
        design = np.stack([np.ones_like(x), x, np.maximum(x - at, 0)], axis=1) * np.sqrt(repeats)[:, None]
        return float(np.linalg.lstsq(design, np.array(line.mean_ns) * np.sqrt(repeats), rcond=None)[1].sum())

    assert left(line.bend.at) <= min(left(at) for at in x[1:-1]) * (1 + 1e-9) + 1


def test_a_line_over_many_values_takes_no_time():
    """Two repeats at each of 20,000 values of C, bent -> fitted within seconds, and the bend found."""
    c = np.repeat(np.arange(1, 20_001), 2)
    noise = np.tile([-100.0, 100.0], 20_000)
    began = time.monotonic()
    line = step_line(c, A + B * c + B * np.maximum(c - 5_000, 0) + noise)
    assert time.monotonic() - began < 5
    assert line.bend is not None
    assert line.bend.at == 5_000
