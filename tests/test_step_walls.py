"""Walls, idle time and what lies between steps: exact over a run, whatever overlaps."""

from __future__ import annotations

from fractions import Fraction

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.counted import counted, counted_extent, step_periods, step_times
from hta_dsv4.analysis.gaps import gaps
from hta_dsv4.analysis.profile import StepTimes
from hta_dsv4.analysis.union import union_ns
from hta_dsv4.analysis.window import of_counted
from hta_dsv4.runs.standing import standings
from hta_dsv4.trace import activities as col
from tests.builders import KinetoTrace
from tests.frames import activity_table, kernel
from tests.variants import given as given_steps

activities = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 60), st.integers(1, 2), st.integers(0, 3)),
    min_size=1,
    max_size=16,
)


def part_of(rows, steps=(0, 1, 2, 3)):
    """Counted part of (start, duration, stream, step)."""
    rows = sorted(rows)
    table = activity_table([kernel("k", s, d, **{col.STREAM: q}) for s, d, q, _ in rows])
    return counted(table, given_steps(steps, [step for *_, step in rows]), 0)


def test_a_gap_between_steps_is_no_steps_time():
    """Two steps of 30 and 40 ns, 1,000 apart -> walls 30 and 40, between 970, idle only inside."""
    times = step_times(part_of([(0, 10, 7, 0), (20, 10, 7, 0), (1000, 40, 7, 1)], (0, 1)))
    assert times["wall"].tolist() == [30, 40]
    assert times["idle"].tolist() == [10, 0]
    assert times["between"].tolist() == [970, 0]


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_what_lies_between_is_a_mean_of_gaps(steps):
    """1, 2, 3, 8 steps of 10 ns that begin every 100 ns -> the mean gap is 90 ns each time, and none of one."""
    part = part_of([(100 * i, 10, 7, i) for i in range(steps)], range(steps))
    mean, extent = StepTimes.mean(step_times(part)), counted_extent(part)
    assert (mean.gaps, extent.gaps) == (steps - 1, steps - 1)
    assert mean.between_ns == (90 if steps > 1 else 0)
    assert extent.span_ns == steps * 10 + (steps - 1) * 90


def test_steps_that_overlap_have_nothing_between():
    """The second step begins 5 ns before the first ends -> the first has the 5 ns, between is 0."""
    times = step_times(part_of([(0, 30, 7, 0), (25, 15, 8, 1)], (0, 1)))
    assert (times["wall"].tolist(), times["between"].tolist()) == ([30, 10], [0, 0])


def test_an_early_first_kernel_waits_in_the_step_before():
    """A step's first kernel starts 8 ns before the last of the step before ends -> 8 early, 0 between."""
    times = step_times(part_of([(0, 30, 7, 0), (22, 18, 7, 1)], (0, 1)))
    assert (times["own"].tolist(), times["early"].tolist()) == ([30, 10], [0, 8])
    assert (times["wall"].tolist(), times["between"].tolist()) == ([30, 10], [0, 0])


def test_a_step_left_out_parts_two_runs():
    """Step 1 of three is not counted -> what lies between 0 and 2 is in no time."""
    times = step_times(part_of([(0, 10, 7, 0), (50, 10, 7, 1), (90, 10, 7, 2)], (0, 2)))
    assert (times["wall"].tolist(), times["between"].tolist()) == ([10, 10], [0, 0])


@settings(max_examples=60, deadline=None)
@given(activities)
def test_walls_and_betweens_add_up_to_the_run(rows):
    """Any overlaps of any steps -> walls + betweens = the run, own >= busy = the union; means are the nearest ns."""
    part = part_of(rows)
    times, extent = step_times(part), counted_extent(part)
    starts, ends = [s for s, *_ in rows], [s + d for s, d, *_ in rows]
    assert times["wall"].sum() + times["between"].sum() == max(ends) - min(starts) == extent.span_ns
    assert (times[["wall", "between", "own", "early", "busy"]] >= 0).all(axis=None)
    acts = part.activities
    union = union_ns(acts[col.START_NS].to_numpy(), acts[col.DUR_NS].to_numpy())
    assert times["busy"].sum() == union <= times["own"].sum() == extent.own_ns
    assert (times["own"] + times["early"] == times["sum"]).all()
    mean = StepTimes.mean(times)
    assert (mean.gaps, times["gaps"].sum()) == (extent.gaps, extent.gaps)
    assert abs(mean.between_ns * mean.gaps - extent.between_ns) <= mean.gaps
    for key in ("sum", "own", "early", "overlap", "busy", "idle", "wall"):
        exact = Fraction(int(times[key].sum()), len(times))
        assert abs(getattr(mean, f"{key}_ns") - exact) <= Fraction(1, 2)
    assert mean.own_ns == mean.sum_ns - mean.early_ns + mean.own_rounding_ns
    assert mean.wall_ns == mean.own_ns - mean.streams_ns + mean.idle_ns + mean.wall_rounding_ns
    assert (abs(mean.own_rounding_ns), abs(mean.wall_rounding_ns)) <= (1, 2)


def test_four_gpus_of_one_rank_are_never_less_than_idle(tmp_path):
    """Four GPUs busy at once for 900 us of every 1,000 -> wall 3,600, idle 0, a step still every 1,000 us; said so."""
    trace = KinetoTrace()
    for i in range(4):
        trace.step(i, 999 + 1000 * i, 998)
        for device in range(4):
            number = trace.next_id()
            trace.launch(1000 + 1000 * i, 0.5, correlation=number, tid=device)
            trace.kernel("k", 1002 + 1000 * i, 900, correlation=number, device=device)
    run = hta_dsv4.load(trace.write(tmp_path / "four.json"))
    times = step_times(run.counted)
    assert (times["busy"].tolist(), times["wall"].tolist()) == ([3_600_000] * 4, [3_600_000] * 4)
    assert (times["idle"].tolist(), times["between"].tolist()) == ([0] * 4, [400_000] * 3 + [0])
    assert step_periods(run.counted).tolist() == [1_000_000] * 3
    assert StepTimes.mean(times).between_ns == 100_000
    assert any("4 GPUs in one rank" in n for n in run.shares().notes)
    found = standings([run])[0]
    assert (found.step_ns, found.busy_share) == (1_000_000, pytest.approx(0.9))


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 60), st.integers(0, 2), st.integers(0, 3)), min_size=1
    )
)
@settings(max_examples=60, deadline=None)
def test_idle_time_of_several_gpus_is_never_negative(rows):
    """Any activities on three GPUs -> busy is at most wall over a run, gap by gap as idle counts them."""
    rows = sorted(rows)
    table = activity_table([kernel("k", s, d, **{col.DEVICE: q}) for s, d, q, _ in rows])
    part = counted(table, given_steps((0, 1, 2, 3), [step for *_, step in rows]), 0)
    extent = counted_extent(part)
    assert extent.idle_ns >= 0
    assert extent.span_ns == gaps(of_counted(part), pd.DataFrame()).wall_ns
