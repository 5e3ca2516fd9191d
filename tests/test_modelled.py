"""How numbers of a model are written."""

from __future__ import annotations

import math

import pytest

from hta_dsv4.present.modelled import about, about_us


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"), (9.996, "10.0"), (99.96, "100"), (999.6, "1,000"), (1234.5, "1,230"), (932_937.207, "933,000"),
        (0.4163, "0.416"), (-15.94, "-15.9"), (0.00123456, "0.00123"), (None, "-"), (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_three_digits(value: float | None, said: str) -> None:
    """Any size -> three significant digits, no exponent; what is no number -> a dash."""
    assert about(value) == said


def test_nanoseconds_as_microseconds() -> None:
    """A modelled saving of 932.937207 ms -> 933,000 us, not its last nanosecond."""
    assert about_us(932_937_207) == "933,000"
