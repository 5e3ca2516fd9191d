"""How do columns grow, batch by batch? Lists of decoded values -> arrays with a mask of what is missing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from hta_dsv4.trace.times import NUMBER

INT64 = np.iinfo(np.int64)


class Codes(dict[Any, int]):
    """Values -> 0, 1, 2, ... in order of first sight."""

    def encode(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """Codes of ``values``; int32, shape (n,)."""
        n = len(values)
        if n and values.count(values[0]) == n:  # one process, one thread, one kind of event
            return np.full(n, self.setdefault(values[0], len(self)), np.int32)
        try:
            # Most batches bring nothing new. For what is new, get gives None, which is no number.
            return np.fromiter(map(self.get, values), np.int32, n)
        except TypeError:
            for value in dict.fromkeys(values):
                self.setdefault(value, len(self))
            return np.fromiter(map(self.get, values), np.int32, n)


@dataclass
class Column:
    """One column as it grows, batch by batch: (rows, values, mask).

    A batch of one value is kept as that value, and one in which all are missing as ``None``: of the twenty columns of
    a trace some ten say the same in row after row. Others are kept in as few bytes as hold their values: what is held
    here is held beside the tables made of it. ``mask`` is True where missing, ``None`` where nothing is.
    """

    parts: list[tuple[int, npt.NDArray[Any] | None, npt.NDArray[np.bool_] | None]] = field(
        default_factory=list
    )

    def add(self, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> None:
        """Append a batch of whole numbers."""
        n = len(values)
        if mask is not None and not mask.any():
            mask = None
        if mask is not None and mask.all():
            self.parts.append((n, None, None))
        elif n > 1 and mask is None and (values == values[0]).all():
            self.parts.append((n, values[:1].copy(), None))
        else:
            self.parts.append((n, narrow(values), mask))

    def join(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The whole column: (int64 values, mask)."""
        rows = sum(n for n, _, _ in self.parts)
        values = np.zeros(rows, np.int64)
        mask = np.zeros(rows, np.bool_)
        at = 0
        for n, part, missing in self.parts:
            end = at + n
            if part is None:
                mask[at:end] = True
            else:
                values[at:end] = part
                if missing is not None:
                    mask[at:end] = missing
            at = end
        return values, mask


def narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same whole numbers in the narrowest of int8, int16, int32 and int64 that holds them."""
    if not len(values):
        return values
    low, high = int(values.min()), int(values.max())
    for bits, dtype in ((8, np.int8), (16, np.int16), (32, np.int32)):
        if -1 << bits - 1 <= low and high < 1 << bits - 1:
            return values.astype(dtype)
    return values


def release() -> None:
    """Give what was freed back to the system: columns are many small arrays, which the C library would keep."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


_MANY = 1 << 20  # rows above which what a column took is worth giving back at once: tens of megabytes


@dataclass
class Columns:
    """Columns of one table, their codes shared over batches."""

    columns: dict[str, Column] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Append one batch to a column."""
        self.columns.setdefault(name, Column()).add(values, mask)

    def take(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """One whole column: (values, mask), no longer held here; empty where nothing was added."""
        joined = self.columns.pop(name, Column()).join()
        if self.rows > _MANY:
            release()
        return joined


def whole_numbers(
    values: list[Any], odd: Callable[[str], None]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Whole numbers from decoded JSON; text of digits counts.

    Args:
        values: ints, texts, ``None``, anything.
        odd: called with each value that is no whole number of 64 bits (it becomes missing).

    Returns:
        (int64 values, 0 where missing; bool mask, True where missing), each of shape (n,).
    """
    n = len(values)
    missing = values.count(None)
    if missing == n:
        return np.zeros(n, np.int64), np.ones(n, np.bool_)
    mask = np.zeros(n, np.bool_)
    if missing:
        mask = np.fromiter((v is None for v in values), np.bool_, n)
        values = [0 if v is None else v for v in values]
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64), mask
        except OverflowError:
            pass  # one of them is wider than 64 bits: find it below
    out = np.zeros(n, np.int64)
    for i, v in enumerate(values):
        if mask[i]:
            continue
        number = _whole(v)
        if number is None:
            if v != "":
                odd(repr(v)[:60])
            mask[i] = True
        else:
            out[i] = number
    return out, mask


def _whole(value: Any) -> int | None:
    """A whole number that fits int64, from an int, or text such as ``"7"`` or ``7.0``."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, int):
        if not isinstance(value, str) or not NUMBER.fullmatch(value.strip()):
            return None
        try:
            number = Decimal(value.strip())
        except InvalidOperation:  # an exponent beyond all
            return None
        if number.adjusted() > 19 or number.adjusted() < 0 < abs(number) or number != int(number):
            return None
        value = int(number)
    return value if INT64.min <= value <= INT64.max else None
