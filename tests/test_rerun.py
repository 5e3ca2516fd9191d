"""The step's timeline run again: exact as recorded, monotonic, and right about who waited for whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.timeline import LAUNCH, OTHER, STREAM, timeline
from hta_dsv4.trace import activities as col
from tests.speed import counted_of


@st.composite
def parts(draw):
    """A few steps of activities on up to three streams, launched late or early, some overlapping, some in graphs."""
    n = draw(st.integers(1, 25))
    launch, rows, free = 1_000, [], {}
    for i in range(n):
        launch += draw(st.sampled_from([0, 1, 500, 5_000, 400_000]))
        stream = draw(st.integers(7, 9))
        dur = draw(st.integers(0, 300_000))
        before = free.get(stream, 0)
        overlap = draw(st.sampled_from([0, 0, 0, 200]))
        start = max(before - overlap, launch + draw(st.integers(1, 20_000)), rows[-1][1] if rows else 0)
        more = {col.STREAM: stream, col.LAUNCH_DUR_NS: draw(st.sampled_from([0, 5_000]))}
        if draw(st.booleans()) or draw(st.booleans()):
            more["launch"] = launch
        rows.append((f"k{i}", start, dur, more))
        free[stream] = max(before, start + dur)
    return counted_of(rows, [i * 3 // n for i in range(n)])


@settings(max_examples=50)
@given(parts())
def test_unchanged_durations_give_the_recorded_timeline(part):
    """Any timeline, nothing changed -> every start to the nanosecond."""
    model = timeline(part)
    again = model.starts(model.dur, np.ones(len(model.dur), dtype=bool))
    assert again.tolist() == model.start.tolist()


@settings(max_examples=50)
@given(parts(), st.floats(0, 1), st.data())
def test_shorter_durations_never_start_anything_later(part, factor, data):
    """Some durations scaled down -> no start later than before."""
    model = timeline(part)
    n = len(model.dur)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    less = np.where(chosen, (model.dur * factor).astype(np.int64), model.dur)
    starts = model.starts(less, np.ones(n, dtype=bool))
    assert (starts <= model.start).all()


@settings(max_examples=50)
@given(parts())
def test_a_faster_host_never_starts_anything_later(part):
    """The host's own work halved, or none of it (one graph) -> no start later than before."""
    model = timeline(part)
    every = np.ones(len(model.dur), dtype=bool)
    half = model.starts(model.dur, every, host_scale=0.5)
    graph = model.starts(model.dur, every, graph_gap=416)
    assert (half <= model.start).all()
    assert (graph <= model.start).all()


@pytest.mark.parametrize("name", ["original", "mma", "split_k_c64", "mhc_fused", "cuda_graph"])
def test_shipped_timelines_are_given_back_exactly(name):
    """A shipped trace, nothing changed -> every start to the nanosecond."""
    model = timeline(hta_dsv4.load(hta_dsv4.traces()[name]).counted)
    again = model.starts(model.dur, np.ones(len(model.dur), dtype=bool))
    assert np.array_equal(again, model.start)


def rerun(rows, dur, keep=None, **more):
    model = timeline(counted_of(rows))
    keep = np.ones(len(model.dur), dtype=bool) if keep is None else np.asarray(keep)
    return model, model.starts(np.asarray(dur, dtype=np.int64), keep, **more).tolist()


def test_a_kernel_that_waited_for_its_stream_follows_the_one_before():
    """Launched early, 1 us after the one before -> starts 1 us after its new end."""
    rows = [("a", 10_000, 50_000, {"launch": 1_000}), ("b", 61_000, 5_000, {"launch": 2_000})]
    model, starts = rerun(rows, [20_000, 5_000])
    assert model.cause.tolist() == [LAUNCH, STREAM]
    assert starts == [10_000, 31_000]


def test_a_kernel_that_waited_for_its_launch_does_not_move():
    """Launched after the one before had ended -> a faster predecessor brings nothing."""
    rows = [("a", 10_000, 5_000, {"launch": 1_000}), ("b", 49_000, 5_000, {"launch": 40_000})]
    model, starts = rerun(rows, [1_000, 5_000])
    assert model.cause.tolist() == [LAUNCH, LAUNCH]
    assert starts == [10_000, 49_000]


def test_a_launch_that_is_gone_gives_the_host_its_time_back():
    """The middle one of three late launches removed -> the last comes as much earlier as that call cost."""
    rows = [("a", 10_000, 1_000, {"launch": 1_000}), ("b", 40_000, 1_000, {"launch": 31_000}),
            ("c", 70_000, 1_000, {"launch": 61_000})]  # fmt: skip
    _, starts = rerun(rows, [1_000] * 3, [True, False, True])
    assert starts[2] == 40_000


def test_a_kernel_on_another_stream_waits_for_what_it_waited_for():
    """A start that only another stream's end explains -> moves with that end."""
    rows = [("a", 10_000, 90_000, {"launch": 1_000, col.STREAM: 7}),
            ("b", 10_500, 1_000, {"launch": 1_500, col.STREAM: 8}),
            ("c", 101_000, 1_000, {"launch": 2_000, col.STREAM: 8})]  # fmt: skip
    model, starts = rerun(rows, [30_000, 1_000, 1_000])
    assert model.cause.tolist()[2] == OTHER
    assert starts[2] == 41_000


def test_overlap_under_programmatic_launch_is_kept():
    """The second began 3 us before the first ended -> still does, but never before the first begins."""
    rows = [
        ("a", 10_000, 20_000, {"launch": 1_000}),
        ("b", 27_000, 5_000, {"launch": 1_000}),
    ]  # one graph launch
    assert rerun(rows, [10_000, 5_000])[1] == [10_000, 17_000]
    assert rerun(rows, [1_000, 5_000])[1] == [10_000, 10_000]


def test_a_host_that_waited_for_the_gpu_waits_again():
    """The next call came 10 us after a long kernel's end -> it comes 10 us after the new end."""
    rows = [("a", 10_000, 900_000, {"launch": 1_000, col.LAUNCH_DUR_NS: 5_000}),
            ("b", 930_000, 1_000, {"launch": 920_000}), ("c", 950_000, 1_000, {"launch": 940_000}),
            ("d", 970_000, 1_000, {"launch": 960_000})]  # fmt: skip
    model, starts = rerun(rows, [100_000, 1_000, 1_000, 1_000])
    assert model.call_wait.tolist() == [-1, 10_000, -1, -1]
    assert starts == [10_000, 130_000, 150_000, 170_000]


def test_a_full_launch_queue_holds_the_host_back():
    """A thousand calls ahead of the GPU, then one for each kernel that begins -> faster kernels, earlier calls."""
    ahead, n, dur = 1_000, 1_400, 20_000
    period = dur + 1_000
    calls = [10 * i if i < ahead else 10_500 + (i - ahead) * period for i in range(n)]
    rows = [(f"k{i}", 10_000 + i * period, dur, {"launch": calls[i]}) for i in range(n)]
    model, starts = rerun(rows, [dur // 2] * n)
    assert model.queue >= 900
    assert (model.call_room >= 0).sum() > 300
    assert starts[-1] == 10_000 + (n - 1) * (dur // 2 + 1_000)


def test_graph_replays_keep_their_gaps():
    """Three kernels of one graph launch -> only the first waits for it, the others for their stream."""
    more = {"launch": 1_000, col.LAUNCH_NAME: "cudaGraphLaunch"}
    rows = [("a", 20_000, 5_000, more), ("b", 25_400, 5_000, more), ("c", 31_000, 5_000, more)]
    model, starts = rerun(rows, [1_000, 5_000, 5_000])
    assert model.cause.tolist() == [LAUNCH, STREAM, STREAM]
    assert starts == [20_000, 21_400, 27_000]


def test_a_trace_without_launches_keeps_its_gaps():
    """No CPU side -> gaps are dependency gaps, whatever caused them."""
    assert rerun([("a", 10_000, 5_000, {}), ("b", 95_000, 5_000, {})], [1_000, 5_000])[1] == [10_000, 91_000]
