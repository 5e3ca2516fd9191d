"""Cells of frames as JSON and CSV have them."""

from __future__ import annotations

from typing import Any

import pandas as pd


def plain(value: Any) -> Any:
    """A cell of a frame as JSON has it: ``None`` for missing, Python's own numbers."""
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
