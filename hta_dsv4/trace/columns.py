"""How do columns grow, batch by batch? Lists of decoded values -> arrays with a mask of what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

INT64 = np.iinfo(np.int64)


class Codes(dict[Any, int]):
    """Values -> 0, 1, 2, ... in order of first sight."""

    def __missing__(self, key: Any) -> int:
        """Give the next number to a value never seen."""
        code = self[key] = len(self)
        return code

    def encode(self, values: Iterable[Any]) -> npt.NDArray[np.int32]:
        """Codes of ``values``; int32, shape (n,)."""
        return np.fromiter(map(self.__getitem__, values), np.int32)


@dataclass
class Column:
    """One column as it grows: arrays by batch; ``mask`` True where missing."""

    values: list[npt.NDArray[Any]] = field(default_factory=list)
    masks: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def join(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """The whole column: (values, mask)."""
        if not self.values:
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return np.concatenate(self.values), np.concatenate(self.masks)


@dataclass
class Columns:
    """Columns of one table, their codes shared over batches."""

    columns: dict[str, Column] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Append one batch to a column."""
        column = self.columns.setdefault(name, Column())
        column.values.append(values)
        column.masks.append(np.zeros(len(values), np.bool_) if mask is None else mask)

    def join(self, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """One whole column: (values, mask); empty where nothing was added."""
        return self.columns.get(name, Column()).join()


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
        try:
            number = float(value)
            value = (
                int(str(value)) if "." not in str(value) and "e" not in str(value).lower() else int(number)
            )
            if value != number and abs(number) < 2**53:
                return None
        except (TypeError, ValueError, OverflowError):
            return None
    return value if INT64.min <= value <= INT64.max else None
