"""Idle time by cause: hand-worked gaps, exact sums, the graph's gain against a real graph, HTA beside it."""

from __future__ import annotations

import json
import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis import gaps as g
from hta_dsv4.analysis import launch_bound as lb
from hta_dsv4.analysis.launch_bound import IdleTime
from hta_dsv4.analysis.window import window
from hta_dsv4.present.idle_grid import idle_grid
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.frames import kernel, marker
from tests.gpu_frames import run_of


def call(name: str, start: int, end: int, category: str = "cuda_runtime") -> dict[str, object]:
    """A call on the host over ``[start, end)``."""
    return marker(name, start, end, **{col.CATEGORY: category})


def launched(
    name: str, start: int, dur: int, begun: int, took: int, index: int, **more: object
) -> dict[str, object]:
    """A kernel and the launch call that asked for it."""
    link = {col.LAUNCH_DUR_NS: took, col.LAUNCH_INDEX: index}
    return kernel(name, start, dur, begun, **{**link, **more})


def causes(found: IdleTime) -> dict[str, int]:
    """The causes that took time."""
    return {c: ns for c, ns in found.causes.items() if ns}


@pytest.mark.parametrize(
    ("begun", "took", "expected"),
    [
        (
            150,
            20,
            {g.LATE: 50, g.CALL: 20, g.START: 30},
        ),  # the GPU ran dry at 100; called 150..170, started 200
        (90, 20, {g.CALL: 10, g.START: 90}),  # the call was under way when the GPU ran dry
        (150, 90, {g.LATE: 50, g.CALL: 50}),  # started before the call returned
        (50, 50, {g.SAME_STREAM: 100}),  # the call had returned: queued behind its own stream
        (0, 10, {g.SAME_STREAM: 100}),
    ],
)
def test_a_gap_is_divided_by_its_launch_call(begun: int, took: int, expected: dict[str, int]) -> None:
    """GPU idle over [100, 200), the next kernel's call at various times -> parts that add up to the gap."""
    rows = [launched("a", 0, 100, 0, 5, 0), launched("b", 200, 50, begun, took, 1)]
    assert causes(run_of(rows).idle()) == expected


def test_other_stream_graph_and_no_launch() -> None:
    """Queued behind another stream, inside one graph launch, without a launch -> three causes, each its gap."""
    graph = {col.LAUNCH_NAME: "cudaGraphLaunch"}
    rows = [
        launched("a", 0, 100, 0, 5, 0),
        launched("b", 110, 90, 6, 5, 1, **{col.STREAM: 9}),  # 10 after another stream
        launched(
            "c", 220, 80, 12, 500, 2, **{col.STREAM: 9, **graph}
        ),  # the call runs on: host's, in the call
        launched("d", 303, 97, 12, 500, 2, **{col.STREAM: 9, **graph}),  # 3 between nodes of one graph
        kernel("e", 450, 10),  # nobody knows who launched it
    ]
    found = run_of(rows).idle()
    assert causes(found) == {g.OTHER_STREAM: 10, g.CALL: 20, g.GRAPH: 3, g.UNKNOWN: 50}
    assert found.idle_ns == 83
    assert found.host_ns == 20


def test_a_host_that_waited_for_the_gpu() -> None:
    """The host inside a synchronisation when the GPU runs dry -> after a wait; a call elsewhere -> host late."""
    rows = [launched("a", 0, 100, 0, 5, 0), launched("b", 200, 50, 150, 100, 1)]
    waiting = run_of(rows, [call("cudaStreamSynchronize", 10, 104)]).idle()
    assert causes(waiting) == {g.WAITED: 50, g.CALL: 50}
    copying = run_of(rows, [call("cudaMemcpyAsync", 10, 104)]).idle()
    assert causes(copying) == {g.WAITED: 50, g.CALL: 50}
    for other in (
        call("cudaStreamSynchronize", 10, 100), call("cudaStreamSynchronize", 110, 120), call("cudaMalloc", 10, 104)
    ):  # fmt: skip
        assert causes(run_of(rows, [other]).idle()) == {g.LATE: 50, g.CALL: 50}


def test_the_profilers_own_work_is_told() -> None:
    """Buffers flushed over [110, 130) and [120, 160), host late over [100, 150) -> 40 ns lie in the profiler's work."""
    rows = [launched("a", 0, 100, 0, 5, 0), launched("b", 200, 50, 150, 100, 1)]
    events = [
        call("Buffer Flush", 110, 130, "overhead"),
        call("Activity Buffer Request", 120, 160, "overhead"),
    ]
    assert run_of(rows, events).idle().profiler_ns == 40


def test_clocks_that_disagree_say_nothing() -> None:
    """Kernels that start before their launch began -> every gap unknown, one reason, no graph estimate."""
    rows = [launched(f"k{i}", i * 100, 50, i * 100 + 20, 5, i) for i in range(5)]
    found = run_of(rows).idle()
    assert causes(found) == {g.UNKNOWN: 200}
    assert "clocks" in found.reason
    assert found.graph is None


def test_without_launches_idle_time_is_still_exact() -> None:
    """A trace of kernels alone -> idle time, cause unknown, and how to record it."""
    found = run_of([kernel("a", 0, 10), kernel("b", 30, 10)]).idle()
    assert causes(found) == {g.UNKNOWN: 20}
    assert "ProfilerActivity.CPU" in found.reason
    assert (found.launches, found.cadence_ns) == (None, None)


def two_steps() -> Run:
    """Two steps of three kernels, 100 ns each, launched 1,000 apart; 5,000 between the steps."""
    rows, events = [], []
    for s in range(2):
        events.append(marker(f"ProfilerStep#{s}", s * 8000, s * 8000 + 2900))
        for i in range(3):
            t = s * 8000 + i * 1000
            rows.append(launched(f"k{i}", t + 60, 100, t + 10, 30, 3 * s + i))
    return run_of(rows, events)


def test_launches_steps_and_cadence() -> None:
    """Two steps of three launches -> 3 calls of 30 ns a step, 1,000 ns from call to call, steps of their own wall."""
    found = two_steps().idle()
    assert (found.step_count, found.launches, found.cadence_ns) == (2, 6, 1000)
    assert found.calls[[lb.CALLS, lb.CALL_NS]].to_numpy().tolist() == [[6, 180]]
    assert found.steps[lb.LAUNCHES].tolist() == [3, 3]
    assert found.steps["wall"].tolist() == [2100, 2100]
    assert (found.between_steps_ns, found.between_count) == (5900, 1)
    assert (found.wall_ns, found.busy_ns, found.gap_count) == (4200, 600, 4)
    assert found.by_next[lb.GAPS].sum() == 4
    assert sum(found.between_causes.values()) == 5900
    assert found.short == lb.ShortKernels(3000, 6, 600, 6, 600)
    assert found.launch_bound


def test_graph_gain_is_modelled_from_gaps_inside_steps() -> None:
    """Four gaps of 900 ns inside two steps -> each shrinks to the default gap; the one between steps stays."""
    found = two_steps().idle()
    assert found.graph is not None
    saved = 900 - lb.NODE_GAP_NS
    assert found.graph.recoverable_ns == 4 * saved
    assert found.steps[lb.RECOVERABLE_NS].tolist() == [2 * saved, 2 * saved]
    assert found.graph.graph_step_ns == found.graph.step_ns - 2 * saved
    assert found.graph.helped == 2


def test_idle_in_front_of_what() -> None:
    """Gaps before two kernels -> one row each, most idle first, the host's part beside it."""
    rows = [
        launched("a", 0, 100, 0, 5, 0),
        launched("b", 200, 50, 150, 60, 1),
        launched("c", 260, 50, 160, 5, 2),
    ]
    table = run_of(rows).idle("kernel").by_next
    assert table.to_dict("list") == {
        "kernel": ["b", "c"], lb.GAPS: [1, 1], lb.IDLE_NS: [100, 10], lb.HOST_NS: [100, 0]
    }  # fmt: skip


activities = st.lists(
    st.tuples(
        st.integers(0, 300), st.integers(0, 40), st.integers(0, 60), st.integers(0, 40), st.integers(0, 2),
        st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=40)
@given(activities, st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=3))
def test_causes_add_up_to_the_idle_time(
    rows: list[tuple[int, int, int, int, int, str]], waits: list[tuple[int, int]]
) -> None:
    """Any timeline -> no cause below 0; causes, and what came next, add up to wall minus busy of the share table."""
    acts = [
        launched(
            f"k{i}", 100 + s, d, 100 + s - before, took, i, **{col.STREAM: stream, col.LAUNCH_NAME: name}
        )
        for i, (s, d, before, took, stream, name) in enumerate(rows)
    ]
    run = run_of(acts, [call("cudaDeviceSynchronize", 100 + s, 100 + s + d) for s, d in waits])
    found = run.idle()
    extent = run.shares().median_rank.extent
    assert found.idle_ns == extent.idle_ns
    assert sum(found.causes.values()) == found.idle_ns == int(found.by_next[lb.IDLE_NS].sum())
    assert all(ns >= 0 for ns in found.causes.values())
    assert found.causes[g.UNKNOWN] == 0
    assert found.host_ns <= found.idle_ns


@cache
def shipped(name: str) -> IdleTime:
    """Idle time of a shipped trace."""
    return hta_dsv4.load(hta_dsv4.traces()[name]).idle()


@pytest.mark.parametrize("eager", ["cuda_graph_eager", "mhc_fused"])
def test_graph_estimate_against_the_real_graph(eager: str) -> None:
    """From an eager trace alone -> the step as a graph within 2 % of the real one's 53.54 ms without the profiler."""
    graph = shipped(eager).graph
    assert graph is not None
    assert graph.step_ns > 250e6
    assert graph.helped == 3
    assert graph.graph_step_ns == pytest.approx(53.5366e6, rel=0.02)


def test_shipped_verdicts() -> None:
    """Eager with short kernels -> launch-bound; the original and the graph -> not; a graph's own gaps are 440 ns."""
    assert shipped("split_k_c1").launch_bound
    assert shipped("mhc_fused").launch_bound
    assert not shipped("original").launch_bound
    graph = shipped("cuda_graph")
    assert not graph.launch_bound
    assert graph.graph is not None
    assert (graph.graph.recoverable_ns, graph.graph.replays) == (0, 3)
    assert graph.graph.node_gap_ns == pytest.approx(lb.NODE_GAP_NS, abs=0.5)
    assert graph.causes[g.LATE] == 0
    assert graph.launches == 3
    assert graph.idle_ns / graph.wall_ns == pytest.approx(0.0176, abs=0.0005)


@pytest.mark.parametrize("name", ["fp8_split", "cuda_graph", "original", "split_k_c1"])
def test_one_wall_everywhere(name: str) -> None:
    """Shipped traces -> idle, coverage and shares print the same wall, idle and time between, to the nanosecond."""
    run = hta_dsv4.load(hta_dsv4.traces()[name])
    extent, found, covered = run.shares().median_rank.extent, run.idle(), run.coverage("bucket")
    assert found.wall_ns == covered.wall_ns == extent.wall_ns
    assert found.idle_ns == covered.bands["idle"] == extent.idle_ns == sum(found.causes.values())
    assert found.between_steps_ns == covered.between_ns == extent.between_ns > 0
    assert found.between_count == covered.between_count == found.step_count - 1
    text = "\n".join(map(str, idle_grid([found]).rows))
    assert "of it between steps" not in text
    assert "between steps, mean gap" in text
    if found.unprofiled_step_ns is None:
        percents = [float(r[2]) for r in idle_grid([found]).rows if r[0] in ("busy", "idle")]
        assert sum(percents) == pytest.approx(100, abs=0.11)


def test_a_profiled_step_that_is_no_longer_is_not_called_so() -> None:
    """fp8_split, its steps recorded at 30.5 ms and 30.9 without the profiler -> no note that it made them longer."""
    run = hta_dsv4.load(hta_dsv4.traces()["fp8_split"])
    notes = " ".join(idle_grid([run.idle(unprofiled_step_ns=30.9476e6)]).notes)
    assert "the profiler made" not in notes
    assert "the profiler made" in " ".join(idle_grid([run.idle(unprofiled_step_ns=20e6)]).notes)


@pytest.mark.parametrize("name", ["cuda_graph", "mhc_fused"])
def test_hta_agrees_where_it_answers(name: str) -> None:
    """One stream -> HTA's host wait is the time of gaps whose call had begun or come late, up to its own rule.

    HTA calls a gap host wait as a whole when the launch call began after the stream ran dry.
    """
    run = hta_dsv4.load(hta_dsv4.traces()[name])
    table = run.hta.idle_time_breakdown()
    ours = run.idle()
    total = int(run.activities[col.DUR_NS].sum())
    assert total > 0
    assert table["idle_time"].sum() * 1000 == pytest.approx(ours.idle_ns + ours.between_steps_ns, abs=1)
    host = float(table.loc[table["idle_category"] == "host_wait", "idle_time"].sum()) * 1000
    ours_host = ours.host_ns + sum(ours.between_causes[c] for c in g.HOST)
    assert host <= ours_host + 1
    assert host == pytest.approx(ours_host, rel=0.01)


def test_many_gaps_are_fast() -> None:
    """60,000 launches -> all gaps divided in below a second (0.05 s measured)."""
    rows = [
        launched(f"k{i % 9}", i * 100, 50 + i % 40, max(0, i * 100 - 30 * (i % 7)), 10, i)
        for i in range(60_000)
    ]
    run = run_of(rows)
    part = window(run.classified[0], run.steps[0], 0)
    began = time.perf_counter()
    found = g.gaps(part, run.traces[0].events)
    assert time.perf_counter() - began < 1.0
    assert len(found.table) > 59_000  # a repeating sequence is cut into steps, whose rest is left out
    assert np.array_equal(
        found.table[list(g.CAUSES)].sum(axis=1).to_numpy(), found.table[g.GAP_NS].to_numpy()
    )


def test_command_line_forms() -> None:
    """Idle with --hta as text, JSON and CSV -> causes add up, the manifest's step time and HTA's rows stand beside."""
    text = cli("idle", "mhc_fused", "cuda_graph")
    assert text.returncode == 0, text.stderr
    assert "bound by launching" in text.stdout
    assert "steps run as CUDA graphs already" in text.stdout
    document = json.loads(cli("idle", "cuda_graph", "--hta", "--json").stdout)
    (variant,) = document["variants"]
    assert sum(variant["causes_ns"].values()) == variant["idle_ns"]
    assert variant["unprofiled_step_ns"] == 53536600.0
    assert variant["graph"]["method"] == "modelled"
    assert {r["idle_category"] for r in variant["hta"]["rows"]} <= {"host_wait", "kernel_wait", "other"}
    lines = cli("idle", "cuda_graph", "--csv").stdout.splitlines()
    assert len(lines) == 1 + len(g.CAUSES)
    assert cli("idle", "h200_probe", "--md").returncode == 0
