"""Variants for the tests of differences: steps written as lists of (kernel, ns), classified by the kernel's name.

Steps are given, not found: what these tests are about must not depend on which steps a reader counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hta_dsv4.analysis.counted import Counted, counted, step_times
from hta_dsv4.analysis.profile import Profile, profile
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module
from hta_dsv4.trace.steps import Steps

Step = Sequence[tuple[str, int]]


def given(steps: Sequence[int], of_activity: Sequence[int] | np.ndarray, rank: int = 0) -> Steps:
    """Steps with these numbers, all counted; ``of_activity`` is -1 outside."""
    table = pd.DataFrame({
        steps_module.RANK: rank, steps_module.LABEL: [f"step {i}" for i in steps], steps_module.START_NS: 0,
        steps_module.END_NS: 0, steps_module.PHASE: "decode", steps_module.BATCH: 1, steps_module.COUNTED: True,
    }, index=list(steps))  # fmt: skip
    numbers = pd.Series(np.asarray(of_activity), dtype="Int32")
    return Steps("given", "", table, numbers.mask(numbers < 0))


def table_of(
    steps: Sequence[Step],
    *,
    gap: int = 1_000,
    scopes: Sequence[str | None] | None = None,
    origins: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, Steps]:
    """The classified table of steps whose kernels follow each other ``gap`` ns apart on one stream.

    Names written ``bucket.role.kernel`` say their bucket and role; others are ``glue``, ``pointwise``. ``scopes`` and
    ``origins`` are of the kernels of one step, the same in all.
    """
    names = [n for s in steps for n, _ in s]
    dur = np.array([ns for s in steps for _, ns in s], dtype=np.int64)
    start = 10_000 + np.cumsum(np.append(0, dur + gap))[:-1]
    words = [n.split(".") if n.count(".") == 2 else ["glue", "pointwise", n] for n in names]
    table = pd.DataFrame({
        col.START_NS: start, col.DUR_NS: dur, col.NAME: pd.Categorical(names), col.KIND: col.KERNEL,
        col.DEVICE: pd.array([0] * len(dur), dtype="Int32"), col.STREAM: 7, col.RANK: 0,
        col.GRID_X: pd.array([1] * len(dur), dtype="Int32"), col.GRID_Y: pd.array([1] * len(dur), dtype="Int32"),
        col.GRID_Z: pd.array([1] * len(dur), dtype="Int32"),
        col.LAUNCH_START_NS: pd.array(start - 5, dtype="Int64"),
        col.BUCKET: pd.Categorical([w[0] for w in words]), col.ROLE: pd.Categorical([w[1] for w in words]),
    })  # fmt: skip
    if scopes:
        table[col.SCOPE] = pd.Categorical(list(scopes) * len(steps))
    if origins:
        table[col.ORIGIN] = pd.Categorical(list(origins) * len(steps))
    return table, given(range(len(steps)), np.repeat(np.arange(len(steps)), [len(s) for s in steps]))


def part_of(steps: Sequence[Step], **more: object) -> Counted:
    """The counted part of these steps."""
    return counted(*table_of(steps, **more), 0)  # type: ignore[arg-type]


def variant(label: str, steps: Sequence[Step], **more: object) -> Profile:
    """A profile of these steps."""
    part = part_of(steps, **more)
    return profile(label, part, step_times(part))


def labelled(trace: object) -> pd.DataFrame:
    """A trace's table with every activity in one bucket and role: for tests of steps, not of buckets."""
    table: pd.DataFrame = trace.activities.copy()  # type: ignore[attr-defined]
    table[col.BUCKET] = pd.Categorical(["glue"] * len(table))
    table[col.ROLE] = pd.Categorical(["pointwise"] * len(table))
    return table
