"""Shares and comparison: additive, exact, never mixing sum, busy and wall."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import DELTA_NS_PER_STEP, compare
from hta_dsv4.analysis.intervals import extent
from hta_dsv4.analysis.shares import Shares, divide_half_even, rank_shares
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.steps import find_steps
from tests.frames import kernel, make_trace, marker

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=30)


@given(SPANS)
def test_union_equals_the_count_of_covered_nanoseconds(spans):
    """Any intervals -> union length is the number of ns that some interval covers."""
    covered = {t for s, d in spans for t in range(s, s + d)}
    start, dur = (
        np.array([s for s, _ in spans], dtype=np.int64),
        np.array([d for _, d in spans], dtype=np.int64),
    )
    assert union_ns(start, dur) == len(covered)


@given(st.integers(0, 10**18), st.integers(1, 1000))
def test_division_rounds_half_to_even_exactly(total, parts):
    """Any total and parts -> what Fraction rounding gives."""
    assert divide_half_even(total, parts) == round(Fraction(total, parts))


def one_variant(label, per_step, steps=2, by="kernel"):
    """A variant of ``steps`` equal steps of the (name, dur) given."""
    acts, events, t = [], [], 0
    for i in range(steps):
        events.append(marker(f"ProfilerStep#{i}", t, t + 1000))
        at = t
        for name, dur in per_step:
            acts.append(kernel(name, at, dur, launch=t + 1))
            at += dur
        t += 1000
    trace = make_trace(acts, events)
    return Shares(label, (by,), (rank_shares(trace.activities, find_steps(trace), 0, by),))


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 90)), min_size=1, max_size=10),
    st.integers(1, 5),
)
def test_rows_add_up_to_the_sum_and_shares_to_one(per_step, steps):
    """Any steps -> rows total sum_ns exactly, shares total 1, per-step times times steps the total."""
    rank = one_variant("x", per_step, steps).median_rank
    assert rank.steps == steps
    assert rank.table[sh.TIME_NS].sum() == rank.extent.sum_ns
    assert (rank.table[sh.TIME_NS_PER_STEP] * steps == rank.table[sh.TIME_NS]).all()
    if rank.extent.sum_ns:
        assert rank.table[sh.SHARE].sum() == pytest.approx(1)


def test_activities_outside_the_steps_are_reported_and_not_in_the_table():
    """Kernel launched before the first marker -> outside, its time in no row."""
    trace = make_trace(
        [kernel("warm", 0, 7, launch=0), kernel("a", 20, 5, launch=11)], [marker("ProfilerStep#1", 10, 20)]
    )
    rank = rank_shares(trace.activities, find_steps(trace), 0, "kernel")
    assert (rank.outside, rank.outside_ns, rank.extent.sum_ns) == (1, 7, 5)


def test_idle_across_a_left_out_step_is_nobodys():
    """decode, prefill, decode -> wall is the two decode spans, not the stretch over the prefill."""
    events = [
        marker("step[DECODE bs=1]", 0, 10),
        marker("step[EXTEND bs=1]", 10, 20),
        marker("step[DECODE bs=1]", 20, 30),
    ]
    acts = [kernel("a", 0, 5, launch=1), kernel("p", 10, 1000, launch=11), kernel("a", 2000, 5, launch=21)]
    trace = make_trace(acts, events)
    rank = rank_shares(trace.activities, find_steps(trace), 0, "kernel")
    assert (rank.extent.wall_ns, rank.extent.busy_ns, rank.outside_ns) == (10, 10, 1000)


def test_two_gpus_keep_their_own_unions():
    """The same stream number on two GPUs at the same time -> busy and wall add, are not merged; never negative idle."""
    acts = make_trace([kernel("a", 0, 10), kernel("b", 0, 40, device=1)]).activities
    size = extent(acts)
    assert (size.sum_ns, size.busy_ns, size.wall_ns, size.idle_ns) == (50, 50, 50, 0)


def test_ranks_are_not_summed_and_the_median_one_stands_for_the_variant():
    """Three ranks of sums 10, 30, 20 -> the variant shows 20."""
    acts = [kernel("a", 0, d, launch=1, rank=r) for r, d in enumerate((10, 30, 20))]
    events = [marker("ProfilerStep#1", 0, 5, rank=r) for r in range(3)]
    trace = make_trace(acts, events)
    steps = find_steps(trace)
    tables = tuple(rank_shares(trace.activities, steps, r, "kernel") for r in range(3))
    assert [t.extent.sum_ns for t in tables] == [10, 30, 20]
    assert Shares("x", ("kernel",), tables).median_rank.rank == 2


def test_comparison_is_per_step_and_keeps_rows_that_only_one_variant_has():
    """4 steps against 3, one kernel renamed, one new -> change per step, appeared and gone rows with it."""
    a = one_variant("a", [("mul_3", 100), ("attn", 60)], 4)
    b = one_variant("b", [("mul_7", 70), ("attn", 62), ("quant", 9)], 3)
    delta = compare([a, b]).table["b", DELTA_NS_PER_STEP].to_dict()
    assert delta == {"mul_3": -100, "mul_7": 70, "attn": 2, "quant": 9}
    assert sum(delta.values()) == 141 - 160


def test_comparison_without_steps_gives_shares_and_no_change_per_step():
    """One variant without steps -> deltas NA and a note."""
    trace = make_trace([kernel("a", 0, 10)])
    bare = Shares("bare", ("kernel",), (rank_shares(trace.activities, find_steps(trace), 0, "kernel"),))
    result = compare([one_variant("a", [("a", 5)]), bare])
    assert result.table["bare", DELTA_NS_PER_STEP].isna().all()
    assert "no steps in bare" in result.notes[0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 90)), min_size=1, max_size=6))
def test_a_variant_against_itself_changes_nothing(per_step):
    """X against x -> every delta is zero."""
    x, y = one_variant("x", per_step), one_variant("y", per_step)
    table = compare([x, y]).table
    assert (table["y", DELTA_NS_PER_STEP] == 0).all()
    assert table["y", sh.TIME_NS].dtype == pd.Int64Dtype()


@pytest.mark.parametrize("by", ["", "nothing", "bucket,bucket", "bucket,"])
def test_wrong_by_is_one_clear_error(by):
    """unknown, empty or repeated key -> an error that lists the choices."""
    with pytest.raises(HtaDsv4Error, match="bucket, role, origin, kernel"):
        sh.parse_by(by)


def test_repeated_label_is_an_error():
    """Two variants of one name -> error naming it."""
    with pytest.raises(HtaDsv4Error, match="'x'"):
        compare([one_variant("x", [("a", 1)]), one_variant("x", [("a", 1)])])


def test_missing_durations_of_activities_do_not_move_the_wall_backwards():
    """An activity of negative duration -> wall and busy count it as nothing."""
    size = extent(make_trace([kernel("a", 0, 10), kernel("bad", 5, -100)]).activities)
    assert (size.busy_ns, size.wall_ns) == (10, 10)
