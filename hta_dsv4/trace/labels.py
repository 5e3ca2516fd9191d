"""Categories are asked once per label, not once per row: masks and picks on category columns of a trace's tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def where_label(column: pd.Series[Any], test: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Rows whose label passes a test.

    Args:
        column: category of str.
        test: asked once per label.

    Returns:
        bool [rows]; False where the label is missing.
    """
    passed = np.array([bool(test(str(c))) for c in column.cat.categories] + [False], np.bool_)
    return passed[column.cat.codes.to_numpy()]  # missing is code -1: the last place


def is_label(column: pd.Series[Any], label: str) -> npt.NDArray[np.bool_]:
    """Rows of one label."""
    return where_label(column, lambda s: s == label)


def take_labels(column: pd.Series[Any], rows: npt.NDArray[np.int64]) -> pd.Categorical:
    """Labels of some rows.

    Args:
        column: category of str.
        rows: int64, positions in it; -1 where there is none.

    Returns:
        One label per entry of ``rows``, with those categories alone that are in use.
    """
    codes = column.cat.codes.to_numpy()
    picked = np.where(rows >= 0, codes[np.maximum(rows, 0)], -1)
    used = np.unique(picked)
    used = used[used >= 0]
    remap = np.full(len(column.cat.categories) + 1, -1, np.int32)
    remap[used] = np.arange(len(used), dtype=np.int32)
    return pd.Categorical.from_codes(remap[picked], categories=column.cat.categories[used])
