"""Findings on the host, the recording and what a trace lacks, on made launches worked out by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

import hta_dsv4
from hta_dsv4.analysis.costs.geometry import FLASH
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.findings import subject
from hta_dsv4.analysis.findings.finding import ATTACK, LEAVE, RECAPTURE, Recoverable
from hta_dsv4.analysis.findings.launch_bound import launch_bound
from hta_dsv4.analysis.findings.trust import missing, profiler_overhead, unknown_share
from hta_dsv4.analysis.launch_bound import NODE_GAP_NS, idle_time
from hta_dsv4.analysis.window import Window
from hta_dsv4.present.findings_grid import finding_grids, findings_grid
from hta_dsv4.present.text import print_grid
from hta_dsv4.trace import activities as col
from tests.findings_made import (
    FULL,
    H200,
    META,
    SMALL,
    W,
    copy_of,
    saved,
    subject_of,
)
from tests.frames import event_table
from tests.speed import counted_of


def late(gap, **timing):
    """Four steps of ten 2 us kernels, each launched as soon as ``gap`` ns after the one before has begun."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + gap * i
        link = {col.LAUNCH_NAME: "cudaLaunchKernel", col.LAUNCH_INDEX: i, col.LAUNCH_DUR_NS: 100}
        rows.append(("k", at, 2_000, {"launch": at - 500, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    return subject(
        "made", part, Workload(), H200, META, idle=idle_time("made", cut, event_table([])), timing=timing
    )


def test_a_host_that_is_late_asks_for_a_graph():
    """9 gaps of 18 us inside a step of 200 us -> with the gaps of a graph it saves up to 158 us, or nothing."""
    (found,) = launch_bound(late(20_000))
    whole = 9 * (18_000 - NODE_GAP_NS)
    # the last step's wall ends with its last kernel, but all of its gaps lie inside it
    assert saved(found) == pytest.approx((0, whole / 2, whole))
    assert (found.kind, found.saves, found.confidence) == (ATTACK, "wall time", 0.4)


def test_an_unprofiled_step_says_what_a_graph_saves():
    """The manifest's unprofiled step, 0.15 ms, its least and most -> each less the step as a graph."""
    s = late(20_000, unprofiled_step_ms=0.15, unprofiled_min_ms=0.14, unprofiled_max_ms=0.16)
    (found,) = launch_bound(s)
    graph = s.idle.graph.graph_step_ns
    assert saved(found) == pytest.approx((140_000 - graph, 150_000 - graph, 160_000 - graph))


def test_time_between_replays_asks_for_no_graph():
    """One graph launch a step of ten kernels, 0.4 ms from step to step -> enqueue ahead, and not a graph once more."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + 400_000 * (i // 10) + 2_500 * (i % 10)
        link = {col.LAUNCH_NAME: "cudaGraphLaunch", col.LAUNCH_INDEX: i // 10, col.LAUNCH_DUR_NS: 5_000}
        rows.append(("k", at, 2_000, {"launch": 1_000_000 + 400_000 * (i // 10) - 9_000, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    times = {"unprofiled_step_ms": 0.4, "unprofiled_min_ms": 0.39, "unprofiled_max_ms": 0.41}
    idle = idle_time("made", cut, event_table([]))
    (found,) = launch_bound(subject("made", part, Workload(), H200, META, idle=idle, timing=times))
    assert (found.kind, found.confidence) == (ATTACK, 0.6)
    assert found.title.startswith("between graph replays: a step takes 400.0 us without the profiler")
    assert "as one CUDA graph" not in found.title + found.action
    assert saved(found) == pytest.approx([t - idle.graph.graph_step_ns for t in (390_000, 400_000, 410_000)])


def test_a_step_that_is_one_graph_is_told_so():
    """Replays 0.02 ms apart, the step without the profiler as long as its replay -> a graph already, none to be won."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + 45_000 * (i // 10) + 2_500 * (i % 10)
        link = {col.LAUNCH_NAME: "cudaGraphLaunch", col.LAUNCH_INDEX: i // 10, col.LAUNCH_DUR_NS: 5_000}
        rows.append(("k", at, 2_000, {"launch": 1_000_000 + 45_000 * (i // 10) - 9_000, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    idle = idle_time("made", cut, event_table([]))
    (found,) = launch_bound(
        subject("made", part, Workload(), H200, META, idle=idle, timing={"unprofiled_step_ms": 0.025})
    )
    assert (found.kind, found.action) == (LEAVE, "leave it")
    assert found.title == (
        "launching: a step is one CUDA graph already; its replay takes 24.5 us, the step without the profiler 25.0 us"
    )


@pytest.mark.parametrize("name", ["cuda_graph", "moe_tuned", "fp8_split"])
def test_shipped_graphs_are_told_no_graph_would_save(name):
    """Captures of one graph launch a step -> no finding says that the GPU waits for the host or a graph saves."""
    found = hta_dsv4.load(hta_dsv4.traces()[name]).findings()
    said = [f.title for f in (*(r.finding for r in found.ranked), *found.leave) if f.rule == "launch_bound"]
    assert len(said) == 1
    assert "one CUDA graph already" in said[0]
    assert "waits for the host" not in said[0]


def test_summary_tables_fit_a_page_and_trifles_are_below_one():
    """Findings of a real trace on a page of 200 columns -> tables of 160; 27.6 ns saved -> <1, none -> 0."""
    found = hta_dsv4.load(hta_dsv4.traces()["fp8_split"]).findings()
    last = found.ranked[-1]
    small = replace(found.ranked[0], remaining=Recoverable(27.6, 2_000.0, 0.0))
    page = io.StringIO()
    tables = [findings_grid(replace(found, ranked=(small, last))), *finding_grids(found)[len(found.ranked) :]]
    for grid in tables:
        print_grid(replace(grid, notes=(), title=""), Console(file=page, width=200))
    assert max(map(len, page.getvalue().splitlines())) <= 160
    assert tables[0].rows[0][2:5] == ("2.00", "<1", "0")


def test_a_host_in_time_is_left_alone():
    """Gaps of 100 ns -> leave launching alone; without idle analysis -> nothing."""
    (found,) = launch_bound(late(2_100))
    assert found.kind == LEAVE
    assert not launch_bound(subject_of([SMALL]))


def test_a_recording_that_slows_what_it_records():
    """182 us recorded, 100 us without the profiler -> not to be trusted for wall time; 170 us -> nothing said."""
    (found,) = profiler_overhead(late(20_000, unprofiled_step_ms=0.1))
    assert found.kind == RECAPTURE
    assert "82 % longer" in found.title
    assert not profiler_overhead(late(20_000, unprofiled_step_ms=0.17))
    assert not profiler_overhead(late(20_000))


def rules_of(found):
    return {f.rule for f in found}


def test_what_a_trace_lacks_is_told_with_its_time():
    """No origin, no shapes, no GPU in the table, a replay without companion -> one sentence each, with the share."""
    known = {col.ORIGIN: "moe", col.OP: "aten::mm"}
    rows = [("a", 0, 90_000, known), ("b", 100_000, 10_000, {col.OP: "aten::mm"})]
    found = missing(subject_of(rows, shapes_recorded=False))
    assert rules_of(found) == {"unknown_origin", "missing_shapes"}
    assert next(f for f in found if f.rule == "unknown_origin").title.startswith("10.0 % of the GPU time")
    assert "unknown_gpu" in rules_of(missing(subject_of(rows, device=None)))
    replay = {col.LAUNCH_NAME: "cudaGraphLaunch"}
    assert "missing_companion" in rules_of(missing(subject_of([("a", 0, 9_000, replay)])))
    whole = [("copy", 0, 40_000, copy_of(FULL, **{col.ORIGIN: "moe"}))]
    assert not missing(subject_of(whole))


@pytest.mark.parametrize(
    ("work", "remedy"),
    [
        (Workload(), "fit no model whose costs are known"),
        (Workload(None, 16, 4096), "fit no model whose costs are known"),
        (Workload(FLASH, 16), "say --context, or capture"),
        (Workload(FLASH), "say --concurrency and --context, or capture"),
        (W, "roofline --by kernel names them"),
    ],
)
def test_the_remedy_for_unknown_costs_asks_for_what_is_missing_and_could_help(work, remedy):
    """Another model, a size not said, all said -> shapes by a companion, that size, the kernels."""
    rows = [("a", 0, 90_000, {col.ORIGIN: "moe", col.OP: "made::up"})]
    (lack,) = (f for f in missing(subject_of(rows, w=work)) if f.rule == "unknown_cost")
    assert remedy in lack.action


def test_kernels_that_no_rule_knows():
    """2 % of the time in bucket unknown -> said; 0.5 % -> not."""
    known = {col.BUCKET: "glue"}
    (found,) = unknown_share(subject_of([("a", 0, 98_000, known), ("odd", 100_000, 2_000, {})]))
    assert found.title.startswith("2.0 % of the GPU time (2.0 us a step)")
    assert not unknown_share(subject_of([("a", 0, 99_500, known), ("odd", 100_000, 500, {})]))
