"""How many nanoseconds is this number of microseconds? Exactly, from the digits.

Kineto writes microseconds with nanosecond decimals. A float64 near 1.7e15 us has steps of 0.25 us, so a parsed
float has already lost the answer; the text has not. Plain decimals (all that Kineto writes) are converted
with array arithmetic; anything else (exponents, blanks, more than 15 integer digits) goes through ``decimal``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
"""A decimal number, as a text may spell it that stands where a number belongs."""
INT64_MAX = (1 << 63) - 1
_WIDE = 40  # characters; a longer spelling goes the slow way rather than widening the whole matrix
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True)
class Times:
    """Parsed times.

    Attributes:
        ns: int64, shape (n,): nanoseconds; 0 where ``ok`` is False.
        ok: bool, shape (n,): False where there was no number, or none that fits int64.
        rounded: how many had non-zero digits below a nanosecond (rounded half to even).
    """

    ns: npt.NDArray[np.int64]
    ok: npt.NDArray[np.bool_]
    rounded: int


def to_ns(values: Sequence[object]) -> Times:
    """Convert microseconds to nanoseconds, exactly.

    Args:
        values: length n; each the JSON number as it was spelled (``str``), an ``int``, or ``None``.
            Floats must arrive as text: a Python ``float`` is taken by its shortest spelling.

    Returns:
        The times; more than three decimals are rounded half to even and counted.
    """
    n = len(values)
    ns = np.zeros(n, np.int64)
    ok = np.ones(n, np.bool_)
    if not n:
        return Times(ns, ok, 0)
    plain = _three_decimals(values)
    if plain is not None:
        return Times(plain, ok, 0)
    try:
        text = np.array(list(map(str, values)), dtype=np.bytes_)
    except UnicodeEncodeError:  # letters outside ASCII: not a number, but let the slow way say which
        text = np.zeros(n, dtype="S1")
    if text.dtype.itemsize > _WIDE:
        slow = np.ones(n, np.bool_)
        rounded = 0
    else:
        ns, slow, rounded = _plain(text)
    for i in np.flatnonzero(slow).tolist():
        exact = _decimal_ns(values[i])
        if exact is None:
            ns[i], ok[i] = 0, False
        else:
            ns[i] = exact[0]
            rounded += exact[1]
    return Times(ns, ok, rounded)


def _three_decimals(values: Sequence[object]) -> npt.NDArray[np.int64] | None:
    """All of ``digits.ddd``, as Kineto writes every time; ``None`` where one is spelled in another way."""
    try:
        text = ("\n".join(values) + "\n").encode("ascii")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # a number that is no text, or no number
        return None
    chars = np.frombuffer(text, np.uint8)
    n, width = len(values), len(text) // len(values) - 1
    if len(chars) == n * (width + 1) and width > 4:
        rows = chars.reshape(n, width + 1)
        ended = rows[:, -1]
        digits = np.ascontiguousarray(rows[:, :-1].T)
    else:
        ends = np.flatnonzero(chars == ord("\n"))
        if len(ends) != n:
            return None
        lengths = np.diff(ends, prepend=-1) - 1
        width = int(lengths.max())
        if width > 19 or lengths.min() < 5:
            return None
        # Aligned at their ends, and filled with zeros in front.
        places = ends - np.arange(width, 0, -1)[:, None]
        digits = chars[np.maximum(places, 0)]
        digits[np.arange(width)[:, None] < width - lengths] = ord("0")
        ended = chars[ends]
    point = digits[-4]
    if width > 19 or not ((point == ord(".")).all() and (ended == ord("\n")).all()):
        return None
    digits = digits - np.uint8(ord("0"))  # what is no digit becomes 10 or more
    digits[-4] = 0
    if digits.max() > 9:
        return None
    value = np.zeros(n, np.int64)
    for i, row in enumerate(digits):
        if i != width - 4:
            value *= 10
            value += row
    return value


def _plain(text: npt.NDArray[np.bytes_]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], int]:
    """Array arithmetic on ``[-]digits[.digits]``; says which rows are not of that form (or too long)."""
    n, width = len(text), text.dtype.itemsize
    chars = text.view(np.uint8).reshape(n, width)
    lengths = (chars != 0).sum(axis=1, dtype=np.int8)
    value = np.zeros(n, np.int64)
    slow = np.zeros(n, np.bool_)
    lost = 0
    # A writer spells all times of a kind alike, so rows of one length mostly have the point in one place, and
    # one pass over the columns does for all of them.
    for length in np.unique(lengths).tolist():
        rows = (
            slice(None) if length == width and lengths.min() == width else np.flatnonzero(lengths == length)
        )
        part = np.ascontiguousarray(chars[rows, :length].T)
        aligned = _aligned(part)
        if aligned is not None:
            value[rows] = aligned
        else:
            value[rows], slow[rows], more = _any_layout(part)
            lost += more
    return value, slow, lost


def _aligned(chars: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64] | None:
    """Rows of one layout, ``digits`` or ``digits.ddd`` with at most three decimals; ``None`` where they differ.

    Args:
        chars: shape (characters, rows).
    """
    value = np.zeros(chars.shape[1], np.int64)
    point = -1
    for i, c in enumerate(chars):
        low, high = int(c.min()), int(c.max())
        if low >= ord("0") and high <= ord("9"):
            value *= 10
            value += c
            value -= ord("0")
        elif low == high == ord(".") and point < 0:
            point = i
        else:
            return None
    before = len(chars) if point < 0 else point
    decimals = len(chars) - before - (point >= 0)
    if not 0 < before <= 15 or decimals > 3:
        return None
    value *= 10 ** (3 - decimals)
    return value


def _any_layout(
    chars: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], int]:
    """Rows of any layout; shape (characters, rows)."""
    width, n = chars.shape
    if not width:
        return np.zeros(n, np.int64), np.ones(n, np.bool_), 0
    value = np.zeros(n, np.int64)  # integer digits, then up to three decimals
    decimals = np.zeros(n, np.int8)
    digits = np.zeros(n, np.int8)
    seen_point = np.zeros(n, np.bool_)
    slow = np.zeros(n, np.bool_)
    lost = np.zeros(n, np.bool_)  # a non-zero digit below a nanosecond
    above = np.zeros(n, np.int8)  # -1: below half, 0: exactly half so far, 1: above half
    negative = chars[0] == ord("-")
    for i in range(width):
        c = chars[i]
        digit = (c - ord("0")).astype(np.int64)  # uint8 wraps: anything not a digit becomes >= 10
        is_digit = digit < 10
        is_point = c == ord(".")
        slow |= ~(is_digit | (is_point & ~seen_point) | (c == 0) | (negative & (i == 0)))
        keep = is_digit & (decimals < 3)
        np.multiply(value, 10, out=value, where=keep)
        np.add(value, digit, out=value, where=keep)
        past = is_digit & (decimals >= 3)
        if past.any():
            first = past & (decimals == 3)
            above[first] = np.sign(digit[first] - 5)
            rest = past & (decimals > 3) & (digit > 0)
            above[rest & (above == 0)] = 1
            lost |= past & (digit > 0)
        decimals += (is_digit & seen_point).astype(np.int8)
        digits += (is_digit & ~seen_point).astype(np.int8)
        seen_point |= is_point
    slow |= (digits == 0) | (digits > 15)
    value *= 10 ** np.maximum(3 - decimals.astype(np.int64), 0)
    past3 = decimals > 3
    value += past3 & ((above > 0) | ((above == 0) & (value % 2 == 1)))
    value[negative] *= -1
    return value, slow, int((lost & ~slow).sum())


def _decimal_ns(value: object) -> tuple[int, bool] | None:
    """One value by ``decimal``: (nanoseconds, digits were lost), or ``None`` where it is no usable number."""
    if value is None or isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    spelled = str(value).strip()
    if not NUMBER.fullmatch(spelled):  # Decimal takes more: digits of other scripts, underscores
        return None
    try:
        us = Decimal(spelled)
    except InvalidOperation:
        return None
    if not us.is_finite() or us.adjusted() > 20:
        return None
    if us.adjusted() < -20:
        return 0, us != 0
    exact = us.scaleb(3, context=Context(prec=2000))
    whole = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN, context=_CONTEXT))
    if abs(whole) > INT64_MAX:
        return None
    return whole, exact != whole
