"""What idle time waited for, worked by hand; the gaps are the idle time, to the nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hta_dsv4.analysis.counted import Counted, counted, step_times
from hta_dsv4.analysis.idle import idle
from hta_dsv4.trace import activities as col
from tests.frames import kernel, make_trace
from tests.variants import given as given_steps
from tests.variants import labelled


def part(*rows: tuple[int, int, int, int], **more: object) -> Counted:
    """One step of kernels (start, duration, launch start, launch duration), ns."""
    kernels = [
        kernel("k", start, dur, launch, **{col.LAUNCH_DUR_NS: took, col.LAUNCH_INDEX: i, **more})
        for i, (start, dur, launch, took) in enumerate(rows)
    ]
    return counted(labelled(make_trace(kernels)), given_steps([0], [0] * len(rows)), 0)


def test_a_gap_is_divided_where_the_launch_call_returned():
    """Gap 10..100 us, the call runs 30..40 -> 30 us with an empty queue, 60 us of latency."""
    found = idle(part((0, 10_000, -5_000, 1_000), (100_000, 5_000, 30_000, 10_000)))
    assert (found.idle_ns, found.queue_empty_ns, found.wall_ns) == (90_000, 30_000, 105_000)
    assert (found.launches, found.host_bound) == (2, True)


def test_a_kernel_queued_in_time_waits_for_no_launch():
    """The call returned before the kernel ahead had ended -> none of the gap is the host's."""
    found = idle(part((0, 10_000, -5_000, 1_000), (12_000, 5_000, 2_000, 1_000)))
    assert (found.idle_ns, found.queue_empty_ns, found.host_bound) == (2_000, 0, False)


def test_a_gap_inside_a_graph_is_not_the_hosts():
    """The graph's launch call still runs while its first nodes do -> the gap between two of them is the graph's."""
    one = {col.LAUNCH_NAME: "cudaGraphLaunch", col.LAUNCH_INDEX: 0, col.LAUNCH_DUR_NS: 30_000}
    nodes = [kernel("k", start, 5_000, 0, **one) for start in (10_000, 20_000)]
    found = idle(counted(labelled(make_trace(nodes)), given_steps([0], [0, 0]), 0))
    assert (found.idle_ns, found.queue_empty_ns, found.launches) == (5_000, 0, 1)


def test_the_wait_ends_when_the_kernel_starts():
    """The kernel starts at 50 us while its call runs to 70 -> the whole gap of 40 us, no more."""
    found = idle(part((0, 10_000, -5_000, 1_000), (50_000, 5_000, 45_000, 25_000)))
    assert (found.idle_ns, found.queue_empty_ns) == (40_000, 40_000)


def test_what_cannot_be_told_has_a_reason():
    """No launches, clocks that disagree, two devices -> no number but why; idle stays exact."""
    blind = counted(labelled(make_trace([kernel("k", 0, 5), kernel("k", 9, 5)])), given_steps([0], [0, 0]), 0)
    skewed = part((0, 10, 100, 5), (50, 10, 150, 5))
    two = part((0, 10, -9, 5), (50, 10, -3, 2))
    two.activities.loc[two.activities.index[1], col.DEVICE] = 1
    for made, why in ((blind, "launch is in the trace"), (skewed, "clocks"), (two, "2 devices")):
        found = idle(made)
        assert (found.queue_empty_ns, found.queue_empty_share, found.host_bound) == (None, None, False)
        assert why in found.reason
    assert idle(blind).idle_ns == 4


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, 10**5), st.integers(0, 10**5)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_gaps_are_the_idle_time_whatever_overlaps(rows):
    """Any kernels, launched at any time before they start -> gaps equal wall minus busy, the empty part within them."""
    made = part(*((start, dur, start - before, took) for start, dur, before, took in rows))
    found = idle(made)
    assert found.idle_ns == int(step_times(made)["idle"].sum())
    assert 0 <= found.queue_empty_ns <= found.idle_ns


def test_idle_between_runs_of_steps_is_nobodys():
    """Two counted steps with one left out between -> only the gaps within the runs."""
    rows = [(0, 10, -9, 1), (30, 10, -5, 1), (1_000, 10, 900, 5), (1_020, 10, 905, 5)]
    kernels = [
        kernel("k", s, d, at, **{col.LAUNCH_DUR_NS: t, col.LAUNCH_INDEX: i})
        for i, (s, d, at, t) in enumerate(rows)
    ]
    made = counted(labelled(make_trace(kernels)), given_steps([0, 2], np.array([0, 0, 2, 2])), 0)
    assert idle(made).idle_ns == 20 + 10
