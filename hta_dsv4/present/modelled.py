"""How are numbers of a model written? With three significant digits: its last nanosecond means nothing.

Measured times keep every nanosecond (:func:`hta_dsv4.present.grid.us`); JSON, CSV and Parquet keep all digits of both.
"""

from __future__ import annotations

import math

from hta_dsv4.present.grid import ABSENT

DIGITS = 3


def about(value: float | None) -> str:
    """A number of a model: three significant digits, thousands separators, no exponent; ``-`` for missing."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if abs(rounded) >= 10 ** (DIGITS - decimals):  # 999.6 is 1,000, not 1,000.0
        decimals -= 1
    return f"{rounded:,.{max(decimals, 0)}f}"


def about_us(ns: float | None) -> str:
    """Modelled nanoseconds as microseconds."""
    return about(None if ns is None else ns / 1e3)
