"""Own time: a stream's own times add up to its union, whatever starts early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.trace import activities as col
from tests.frames import activity_table, kernel

TRACES = Path(__file__).resolve().parents[1] / "traces"
ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(-2, 30), st.integers(1, 2), st.integers(0, 1)), max_size=30
)


def test_early_start_is_charged_to_the_kernel_that_worked() -> None:
    """A combine launched 23 ns before the split kernel ends owns the 10 ns after that."""
    table = activity_table([kernel("split", 0, 100), kernel("combine", 77, 33)])
    assert own_ns(table).tolist() == [100, 10]


def test_other_streams_take_nothing_from_each_other() -> None:
    """A copy beside a kernel on another stream owns all of its duration."""
    table = activity_table([kernel("a", 0, 100), kernel("b", 50, 20, **{col.STREAM: 9})])
    assert own_ns(table).tolist() == [100, 20]


def test_no_stream_means_nothing_ahead() -> None:
    """Activities that name no stream own their durations, although they overlap."""
    table = activity_table(
        [kernel("a", 0, 100, **{col.STREAM: None}), kernel("b", 50, 70, **{col.STREAM: None})]
    )
    assert own_ns(table).tolist() == [100, 70]


@given(ROWS)
def test_own_times_add_up_to_the_union_of_each_stream(rows: list[tuple[int, int, int, int]]) -> None:
    """Any overlaps, lengths, streams and devices: exact, and never more than the duration."""
    table = activity_table([kernel("k", s, d, **{col.STREAM: q, col.DEVICE: g}) for s, d, q, g in rows])
    own = own_ns(table)
    assert (own >= 0).all()
    assert (own <= table[col.DUR_NS].clip(lower=0).to_numpy()).all()
    for _, rows_of in table.groupby([col.DEVICE, col.STREAM]).indices.items():
        one = table.iloc[np.sort(rows_of)]
        assert own[rows_of].sum() == union_ns(one[col.START_NS].to_numpy(), one[col.DUR_NS].to_numpy())


@pytest.mark.parametrize("name", ["split_k", "cuda_graph", "moe_tuned"])
def test_shipped_traces_of_one_stream(name: str) -> None:
    """One stream: own times of the counted steps add up to busy, and combine owns less than half of what it lasts."""
    run = hta_dsv4.load(TRACES / f"{name}.trace.json.gz")
    part = run.counted.activities
    busy = union_ns(part[col.START_NS].to_numpy(), part[col.DUR_NS].to_numpy())
    assert part[col.OWN_NS].sum() == busy
    combine = part[part[col.NAME].astype(str) == "_sparse_mla_combine_kernel"]
    assert 0 < combine[col.OWN_NS].sum() < combine[col.DUR_NS].sum() / 2
