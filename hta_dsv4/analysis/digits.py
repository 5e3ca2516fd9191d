"""How many digits does a number of a model deserve? Three: its last nanosecond means nothing."""

from __future__ import annotations

import math

DIGITS = 3


def three_digits(value: float) -> str:
    """A finite number with three significant digits, thousands separators and no exponent."""
    if value == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if abs(rounded) >= 10 ** (DIGITS - decimals):  # 999.6 is 1,000, not 1,000.0
        decimals -= 1
    return f"{rounded:,.{max(decimals, 0)}f}"
