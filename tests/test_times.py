"""Microseconds as text -> nanoseconds, against exact rational arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hta_dsv4.trace.times import INT64_MAX, to_ns


def spelled(ns: int, decimals: int) -> str:
    """Nanoseconds as microseconds with a number of decimals (at least as many as needed)."""
    whole, frac = divmod(abs(ns), 1000)
    text = f"{whole}.{frac:03d}".ljust(len(str(whole)) + 1 + decimals, "0")
    if decimals < 3 and frac % 10 ** (3 - decimals) == 0:
        text = text[: len(str(whole)) + 1 + decimals].removesuffix(".")
    return ("-" if ns < 0 else "") + text


@given(st.lists(st.tuples(st.integers(-INT64_MAX, INT64_MAX), st.integers(0, 6)), max_size=20))
@example([(1_700_000_000_000_000_001, 3), (0, 0), (-1, 3), (INT64_MAX, 6)])
def test_any_nanosecond_comes_back(rows):
    """An int64 nanosecond spelled as microseconds, any number of trailing zeros -> itself."""
    got = to_ns([spelled(ns, d) for ns, d in rows])
    assert got.ns.tolist() == [ns for ns, _ in rows]
    assert got.ok.all()
    assert got.rounded == 0


@given(st.lists(st.decimals(-(10**12), 10**12, allow_nan=False, allow_infinity=False), max_size=20))
@example(
    [Decimal("0.0005"), Decimal("0.0015"), Decimal("1.00050000000001"), Decimal("-0.0025"), Decimal("2.9995")]
)
def test_finer_digits_round_half_even_and_are_counted(values):
    """More than three decimals, or an exponent -> round half even, lost digits counted."""
    want = [round(Fraction(v) * 1000) for v in values]
    got = to_ns([str(v) for v in values])
    assert got.ns.tolist() == want
    assert got.rounded == sum(Fraction(v) * 1000 != w for v, w in zip(values, want, strict=True))


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1e3", 1_000_000), ("1.5E-2", 15), (" 7 ", 7000), ("5106093298343.101", 5106093298343101), (12, 12_000),
     ("+3", 3000), (".5", 500), ("1700000000000000.123", 1700000000000000123)],
)  # fmt: skip
def test_other_spellings_are_read(text, ns):
    """Exponents, blanks, integers, a sign, no leading zero -> the number meant."""
    assert to_ns([text]).ns.tolist() == [ns]


@pytest.mark.parametrize(
    "value", [None, "", "x", "NaN", "-Infinity", "1.2.3", "1-2", [1], {}, True, "1e30", "٣x", "--1", "."]
)
def test_what_is_no_time_is_not_ok(value):
    """No number, or none that fits int64 -> not ok, 0."""
    got = to_ns([value, "1"])
    assert got.ok.tolist() == [False, True]
    assert got.ns.tolist() == [0, 1000]


def test_a_float_would_have_lost_it():
    """1.7e15 us with ns digits -> exact, where float64 has steps of 0.25 us."""
    text = "1700000000000000.101"
    assert to_ns([text]).ns[0] == 1_700_000_000_000_000_101
    assert round(float(text) * 1000) != 1_700_000_000_000_000_101


def test_one_odd_spelling_does_not_slow_or_change_the_rest():
    """One value of 5,000 letters among plain ones -> the rest unchanged."""
    got = to_ns(["1.5", "9" * 5000, "2.25"])
    assert got.ns.tolist() == [1500, 0, 2250]
    assert got.ok.tolist() == [True, False, True]
    assert got.ns.dtype == np.int64
