"""What the tests of floors and what-ifs share: counted activities from plain tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.trace import activities as col
from tests.frames import activity_table, kernel

_JUDGED = (col.BUCKET, col.ROLE, col.ORIGIN)


def counted_of(
    rows: Sequence[tuple[str, int, int, dict[str, Any]]], step: Sequence[int] | None = None
) -> Counted:
    """Counted activities, in time order as given.

    Args:
        rows: name, start and duration in ns, and further columns; ``launch`` is the start of the call.
        step: each row's step; all in one by default.
    """
    made, judged = [], []
    for name, start, dur, more in rows:
        more = dict(more)
        judged.append({k: more.pop(k, "unknown") for k in _JUDGED})
        made.append(kernel(name, start, dur, more.pop("launch", None), **more))
    table = activity_table(made)
    table = table.assign(**{k: pd.Categorical([j[k] for j in judged]) for k in _JUDGED})
    steps = np.zeros(len(rows), dtype=np.int64) if step is None else np.asarray(step, dtype=np.int64)
    return Counted(0, table, steps, np.zeros(int(steps.max()) + 1 if len(steps) else 0, dtype=np.int64))
