"""Rows as a Parquet file: the same columns as ``--csv``, each with a type, so that no reader has to guess.

Whole numbers stay whole (nanoseconds as int64, also beside missing cells), missing is null.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pandas as pd

from hta_dsv4.errors import HtaDsv4Error

MAGIC = b"PAR1"
"""The first bytes of every Parquet file."""


def parquet_bytes(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    """A Parquet file, zstd-compressed; the same rows give the same bytes.

    Args:
        columns: names, in order.
        rows: cells by column; a missing one and ``None`` are null.

    Returns:
        The file. Columns are bool, int64, double or string; of type null where no row has a value.

    Raises:
        HtaDsv4Error: a whole number is beyond 64 bits.
    """
    frame = pd.DataFrame({c: _column(c, [r.get(c) for r in rows]) for c in columns})
    out = io.BytesIO()
    frame.to_parquet(out, engine="pyarrow", compression="zstd", index=False)
    return out.getvalue()


def _column(name: str, cells: list[Any]) -> pd.Series[Any]:
    """Cells with the narrowest type that holds all of them exactly; a mixture is text."""
    known = [c for c in cells if c is not None]
    if not known:
        return pd.Series(cells, dtype=object)
    whole = len(known) == len(cells)
    if all(isinstance(c, bool) for c in known):
        return pd.Series(cells, dtype="bool" if whole else "boolean")
    if all(isinstance(c, int) and not isinstance(c, bool) for c in known):
        try:
            # nullable only where needed; a float column would lose digits above 2^53
            return pd.Series(cells, dtype="int64" if whole else "Int64")
        except (OverflowError, TypeError) as error:
            raise HtaDsv4Error(
                f"--parquet: a number of column {name} is beyond 64 bits; use --csv or --json"
            ) from error
    if all(isinstance(c, int | float) and not isinstance(c, bool) for c in known):
        return pd.Series(cells, dtype="float64")
    return pd.Series([None if c is None else _text(c) for c in cells], dtype=object)


def _text(cell: Any) -> str:
    """As text that UTF-8 can hold: half of a surrogate pair, which a path may hold, as its escape."""
    return str(cell).encode("utf-8", "backslashreplace").decode()
