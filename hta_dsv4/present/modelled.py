"""How are numbers of a model written? With three significant digits (:mod:`hta_dsv4.analysis.digits`).

Measured times keep every nanosecond (:func:`hta_dsv4.present.grid.us`); JSON, CSV and Parquet keep all digits of both.
"""

from __future__ import annotations

import math

from hta_dsv4.analysis.digits import three_digits
from hta_dsv4.present.grid import ABSENT


def about(value: float | None) -> str:
    """A number of a model: three significant digits, thousands separators, no exponent; ``-`` for missing."""
    return ABSENT if value is None or not math.isfinite(value) else three_digits(value)


def about_us(ns: float | None) -> str:
    """Modelled nanoseconds as microseconds."""
    return about(None if ns is None else ns / 1e3)
