"""The timeline of one step: few bars that still hold every kernel."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import figures
from hta_dsv4.present.figures.bars import OTHERS, PIXELS, step_bars
from hta_dsv4.trace import activities as col
from tests.variants import part_of


@cache
def counted(name: str):
    return hta_dsv4.load(hta_dsv4.traces()[name]).counted


@pytest.mark.parametrize("rows", ["origin", "bucket", "role", "stream"])
def test_every_kernel_of_the_step_is_in_exactly_one_bar(rows):
    """A step of 15,000 kernels -> bars whose counts and sums add up to it, at most one a pixel and row."""
    part = counted("split_k")
    made = step_bars(part, 1, rows)
    acts = part.activities[part.step == 1]
    assert sum(b.kernels for b in made.bars) == len(acts) == 15_704
    assert sum(b.sum_ns for b in made.bars) == int(acts[col.DUR_NS].sum())
    assert len(made.bars) <= PIXELS * len({b.row for b in made.bars})


def test_bars_of_a_row_do_not_overlap_and_keep_their_order():
    """A whole step -> in each row, every bar ends where the next begins or before, single kernels within a pixel."""
    made = step_bars(counted("cuda_graph"), 0, "bucket")
    for row in {b.row for b in made.bars}:
        mine = [b for b in made.bars if b.row == row]
        assert all(a.end_ns <= b.start_ns + made.pixel_ns for a, b in pairwise(mine))


def test_a_figure_of_15000_kernels_is_small():
    """A step of 15,000 kernels -> under 3 MB of JSON."""
    assert len(figures.timeline(counted("split_k"), "split_k").to_json()) < 3e6


def test_a_window_shows_single_kernels_at_their_exact_times():
    """The first 0.3 ms of a graph replay -> single kernels with the start and end that the trace says."""
    part = counted("cuda_graph")
    made = step_bars(part, 0, "bucket", window=(0, 0.3))
    acts = part.activities[part.step == 0]
    start = acts[col.START_NS].to_numpy() - acts[col.START_NS].min()
    known = set(zip(start.tolist(), (start + acts[col.DUR_NS].to_numpy()).tolist(), strict=True))
    alone = [b for b in made.bars if b.kernels == 1]
    assert len(alone) > 10
    assert all((int(b.start_ns), int(b.end_ns)) in known for b in alone)
    assert made.outside == len(acts) - sum(b.kernels for b in made.bars)


def test_a_long_kernel_is_not_hidden_by_short_ones_beside_it():
    """Copies below a pixel before and after a long product in one row -> most of the row is the product's colour."""
    names = [("copy", 10), ("gemm", 900_000), ("copy", 10)]
    made = step_bars(part_of([names], origins=("moe",) * 3), 0, "origin", pixels=100)
    longest = max(made.bars, key=lambda b: b.end_ns - b.start_ns)
    assert longest.sums[longest.bucket] >= 900_000


def test_a_hover_of_a_merged_bar_says_how_many_and_how_long():
    """A merged bar -> its hover counts the activities and gives the exact sum."""
    figure = figures.timeline(counted("split_k"), "split_k")
    texts = [t for trace in figure.data for t in trace.customdata]
    assert any("activities, sum" in t for t in texts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"step": 7}, "counted steps"), ({"step": -1}, "counted steps"), ({"rows": "layer"}, "choose from"),
     ({"window": (5000, 6000)}, "nothing to draw"), ({"window": (2, 1)}, "nothing to draw")],
)  # fmt: skip
def test_a_step_or_window_that_is_not_there_is_refused(arguments, said):
    """A step, row or window that does not exist -> one line that says what there is."""
    with pytest.raises(HtaDsv4Error, match=said):
        step_bars(counted("cuda_graph"), **arguments)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 50_000)), min_size=1, max_size=60),
    st.integers(1, 40),
)
def test_bars_keep_counts_and_sums_whatever_the_durations(kernels, pixels):
    """Any durations, zero included, and any number of pixels -> counts and sums are kept."""
    part = part_of([kernels])
    made = step_bars(part, 0, "stream", pixels=pixels)
    assert sum(b.kernels for b in made.bars) == len(kernels)
    assert sum(b.sum_ns for b in made.bars) == int(np.sum([d for _, d in kernels]))


def test_small_rows_are_one():
    """Rows with less than a part of the sum -> one row of others, with which every activity is still in one bar."""
    part = counted("cuda_graph")
    every, fewer = step_bars(part), step_bars(part, least=0.02)
    assert len({b.row for b in fewer.bars}) < len({b.row for b in every.bars})
    assert OTHERS in {b.row for b in fewer.bars}
    assert sum(b.kernels for b in fewer.bars) == sum(b.kernels for b in every.bars)
    assert sum(b.sum_ns for b in fewer.bars) == sum(b.sum_ns for b in every.bars)


def test_steps_together_share_a_clock_and_show_idle():
    """An eager and a graph step -> one row each on one axis; the eager one mostly empty, the graph's whole."""
    figure = figures.steps_together([(n, counted(n)) for n in ("mhc_fused", "cuda_graph")])
    bars = [t for t in figure.data if t.type == "bar"]
    covered = dict.fromkeys(("mhc_fused", "cuda_graph"), 0.0)
    for trace in bars:
        for row, ms in zip(trace.y, trace.x, strict=True):
            covered[row] += ms
    end = figure.layout.xaxis.range[1]
    assert end > 300  # the eager step, recorded
    assert covered["mhc_fused"] < 0.3 * end
    assert covered["cuda_graph"] == pytest.approx(52, abs=2)
