"""Steps: what counts as one, and which activity belongs to which."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.reader import read_trace
from hta_dsv4.trace.steps import (
    EMPTY,
    ENGINE,
    GRAPH,
    NONE,
    PERIOD,
    PROFILER,
    WARM_UP,
    find_steps,
    marker_phase,
)
from tests.campaign import campaign
from tests.conftest import CASES
from tests.frames import kernel, make_trace, marker


def placed(steps) -> list[int | None]:
    return [
        None if x is None or x != x else int(x)
        for x in steps.of_activity.astype(object).where(steps.of_activity.notna(), None)
    ]


def test_kernel_running_after_its_marker_closed_belongs_to_the_step_that_launched_it():
    """Kernel lands in the next step's window -> its launch decides."""
    trace = make_trace(
        [kernel("a", 150, 10, launch=20), kernel("a", 250, 10, launch=120)],
        [marker("ProfilerStep#1", 0, 100), marker("ProfilerStep#2", 100, 200)],
    )
    steps = find_steps(trace)
    assert (steps.method, placed(steps)) == (PROFILER, [0, 1])


def test_nested_engine_annotations_are_one_step():
    """SGLang step with vLLM-style execute inside -> one step each, the outer one, and ProfilerStep gives way."""
    events = [marker("ProfilerStep#1", 0, 5000)]
    acts = []
    for i in range(3):
        t = 1000 * i
        events += [
            marker("step[DECODE bs=16]", t, t + 500),
            marker("execute_16_context_0(a)_generation_16(b)", t + 5, t + 490),
        ]
        acts.append(kernel("a", t + 600, 10, launch=t + 20))
    steps = find_steps(make_trace(acts, events))
    assert steps.method == ENGINE
    assert steps.table["batch"].tolist() == [16, 16, 16]
    assert placed(steps) == [0, 1, 2]


def test_prefill_steps_are_labelled_and_left_out_where_decode_steps_exist():
    """One prefill among decode steps -> found, labelled, not counted."""
    events = [
        marker("step[EXTEND bs=1]", 0, 10),
        marker("step[DECODE bs=4]", 20, 30),
        marker("step[DECODE bs=4]", 40, 50),
    ]
    steps = find_steps(make_trace([kernel("a", 5, 1, launch=1)], events))
    assert steps.table["phase"].tolist() == ["prefill", "decode", "decode"]
    assert steps.counted.index.tolist() == [1, 2]


def test_equal_graph_replays_are_steps_and_the_sampling_after_one_belongs_to_it():
    """Two replays of one sequence and an eager kernel after the first -> two steps, the kernel in the first."""
    graph = {col.LAUNCH_NAME: "cudaGraphLaunch"}
    acts = [
        kernel("a", 100, 10, launch=50, **graph), kernel("b", 110, 10, launch=50, **graph),
        kernel("sample", 130, 5, launch=80),
        kernel("a", 400, 10, launch=300, **graph), kernel("b", 410, 10, launch=300, **graph),
    ]  # fmt: skip
    steps = find_steps(make_trace(acts))
    assert (steps.method, placed(steps)) == (GRAPH, [0, 0, 0, 1, 1])


def test_piecewise_graphs_without_markers_give_no_step():
    """Replays of different sequences, no marker -> none, with the reason."""
    graph = {col.LAUNCH_NAME: "cudaGraphLaunch"}
    acts = [kernel("a", 100, 10, launch=50, **graph), kernel("b", 400, 10, launch=300, **graph)]
    steps = find_steps(make_trace(acts))
    assert steps.method == NONE
    assert "2 different kernel sequences" in steps.detail
    assert not len(steps.table)


def test_eager_trace_without_markers_gives_no_step():
    """No marker at all -> no step is invented."""
    steps = find_steps(make_trace([kernel("a", 0, 1, launch=0), kernel("a", 2, 1, launch=2)]))
    assert steps.method == NONE
    assert placed(steps) == [None, None]


def test_unlinked_kernel_is_placed_by_the_gpu_twin_of_the_marker():
    """Kernel without launch inside the GPU-side annotation -> that step; outside -> none."""
    twin = {col.CATEGORY: "gpu_user_annotation"}
    events = [marker("ProfilerStep#1", 0, 100), marker("ProfilerStep#1", 140, 200, **twin)]
    steps = find_steps(make_trace([kernel("a", 150, 10), kernel("a", 300, 10)], events))
    assert placed(steps) == [0, None]


@pytest.mark.parametrize(
    ("name", "phase", "batch"),
    [
        ("step[DECODE bs=16]", "decode", 16),
        ("step[TARGET_VERIFY bs=8]", "decode", 8),
        ("step[EXTEND bs=2 toks=100]", "prefill", 2),
        ("execute_16_context_0(sq0sk0)_generation_16(sq16sk8193)", "decode", 16),
        ("execute_context_0(0)_generation_32(32)", "decode", 32),
        ("execute_context_2(512)_generation_3(3)", "mixed", 3),
        ("execute_context_2(512)_generation_0(0)", "prefill", None),
        ("execute_model", "unknown", None),
    ],
)
def test_engine_annotation_says_its_phase_and_batch(name, phase, batch):
    """An engine's annotation -> phase and decode batch."""
    assert marker_phase(name) == (phase, batch)


def repeated(steps: int, kernels: int = 12, gap: int = 50, **more: object) -> list[dict[str, object]]:
    """The same kernels ``steps`` times, 10 ns each."""
    return [
        kernel(f"k{j}", s * (kernels * 20 + gap) + 20 * j, 10, **more)
        for s in range(steps)
        for j in range(kernels)
    ]


def test_a_repeating_sequence_without_markers_is_read_as_steps():
    """Five times the same twelve kernels, no launch, no marker -> five steps, the copy beside them placed too."""
    acts = repeated(5)
    copy = {col.NAME: "Memcpy DtoH", col.KIND: col.MEMCPY, col.STREAM: 9, col.START_NS: 300, col.DUR_NS: 4}
    steps = find_steps(make_trace([*acts, copy]))
    assert steps.method == PERIOD
    assert steps.table["phase"].tolist() == ["unknown"] * 5
    trace = make_trace([*acts, copy])
    assert placed(steps) == [int(a // 290) for a in trace.activities[col.START_NS]]


def test_the_published_campaign_is_read_as_eleven_steps():
    """5,596 launches a step, no marker, launch counts 231, 2541, 2783 -> 11 steps of 476.4 ms, whatever is linked."""
    for made in (campaign(), campaign(linked=False), campaign(gap_ns=300)):
        steps = find_steps(made.trace)
        assert (steps.method, len(steps.counted)) == (PERIOD, 11)
        assert (steps.of_activity.to_numpy() == made.step_of).all()
        total = int(made.trace.activities[col.DUR_NS].sum())
        assert round(total / 11 / 1e6, 1) == 476.4


def test_methods_that_find_the_same_steps_agree():
    """ProfilerStep over a repeating sequence -> the marker is taken, the repetition agrees."""
    steps = find_steps(campaign(markers=True).trace)
    assert steps.method == PROFILER
    (other,) = steps.agreement
    assert (other.method, other.steps, other.agrees, other.alike) == (PERIOD, 11, True, 1.0)
    assert steps.disagreements == ()


def test_a_marker_around_two_repetitions_is_told():
    """Each ProfilerStep launches two repetitions -> two steps by the marker, and the disagreement says 2 in each."""
    acts = [
        dict(a, **{col.LAUNCH_START_NS: a[col.START_NS], col.LAUNCH_NAME: "cudaLaunchKernel"})
        for a in repeated(4)
    ]
    events = [marker("ProfilerStep#0", 0, 580), marker("ProfilerStep#1", 580, 1200)]
    steps = find_steps(make_trace(acts, events))
    assert (steps.method, len(steps.table)) == (PROFILER, 2)
    (other,) = steps.disagreements
    assert (other.method, other.steps) == (PERIOD, 4)
    assert "2 in each step" in other.detail


def test_a_step_cut_by_the_end_of_the_capture_is_not_counted():
    """The last decode step has a quarter of its kernels -> partial, not counted."""
    events, acts = [], []
    for i in range(4):
        events.append(marker("step[DECODE bs=8]", 1000 * i, 1000 * i + 900))
        acts += [kernel(f"k{j}", 1000 * i + 10 * j, 5, launch=1000 * i + j) for j in range(8 if i < 3 else 2)]
    steps = find_steps(make_trace(acts, events))
    assert steps.table["phase"].tolist() == ["decode"] * 3 + ["partial"]
    assert steps.counted.index.tolist() == [0, 1, 2]


def test_a_decode_step_without_gpu_activity_is_not_counted():
    """One of four decode steps has no kernel -> said, not averaged in as zero."""
    events, acts = [], []
    for i in range(4):
        events.append(marker("step[DECODE bs=8]", 1000 * i, 1000 * i + 900))
        acts += [kernel("a", 1000 * i + 10 * j, 5, launch=1000 * i + j) for j in range(0 if i == 1 else 4)]
    steps = find_steps(make_trace(acts, events))
    assert steps.table["phase"].tolist() == ["decode", EMPTY, "decode", "decode"]
    assert steps.counted.index.tolist() == [0, 2, 3]


def test_a_warm_up_step_with_other_kernels_is_not_counted():
    """First ProfilerStep also runs an autotuner's kernels -> warm-up; the others count."""
    events, acts = [], []
    for i in range(5):
        events.append(marker(f"ProfilerStep#{i}", 1000 * i, 1000 * i + 1000))
        names = [f"k{j}" for j in range(10)] + (["candidate"] * 8 if i == 0 else [])
        acts += [kernel(n, 1000 * i + 10 * j, 5, launch=1000 * i + j) for j, n in enumerate(names)]
    steps = find_steps(make_trace(acts, events))
    assert steps.table["phase"].tolist() == [WARM_UP] + ["unknown"] * 4
    assert steps.counted.index.tolist() == [1, 2, 3, 4]


def test_a_first_decode_step_with_an_autotuners_launches_is_warm_up():
    """The engine says DECODE five times, the first with twice the kernels -> warm-up, four count."""
    events, acts = [], []
    for i in range(5):
        events.append(marker("step[DECODE bs=8]", 1000 * i, 1000 * i + 1000))
        acts += [kernel("a", 1000 * i + 10 * j, 5, launch=1000 * i + j) for j in range(20 if i == 0 else 10)]
    steps = find_steps(make_trace(acts, events))
    assert steps.table["phase"].tolist() == [WARM_UP] + ["decode"] * 4
    assert steps.counted.index.tolist() == [1, 2, 3, 4]


def test_the_layers_of_a_single_unmarked_step_are_no_steps():
    """One step of the campaign's trace alone: 20 equal layer pairs between others -> no step is invented."""
    made = campaign(linked=False)
    one = made.trace.activities[made.step_of == 3].reset_index(drop=True)
    steps = find_steps(replace(made.trace, activities=one))
    assert (steps.method, len(steps.table)) == (NONE, 0)
    assert "layers of one forward pass" in steps.detail


def test_the_parts_of_steps_cut_at_both_ends_are_partial():
    """A capture that begins and ends inside a step with a gap between steps -> whole steps counted, ends partial."""
    acts = [
        dict(a, **{col.START_NS: int(a[col.START_NS]) * 1000}) for a in repeated(6, kernels=20, gap=3000)
    ][7:-6]
    steps = find_steps(make_trace(acts))
    assert steps.table["phase"].tolist() == ["partial"] + ["unknown"] * 4 + ["partial"]
    assert placed(steps).count(0) == 13
    assert [placed(steps).count(i) for i in range(1, 5)] == [20] * 4


@pytest.mark.parametrize(
    ("case", "method", "sums_us"),
    [
        ("31-nested-step-markers.json", ENGINE, [150, 150, 150]),
        ("34-diff-a.json", ENGINE, [160] * 4),
        ("34-diff-b.json", ENGINE, [141] * 3),
        ("19-cuda-graph-shared-correlation.json", GRAPH, [61, 55]),
    ],
)
def test_cases_have_their_stated_steps(case, method, sums_us):
    """Hand-made traces with known steps -> that many, with the stated time in each."""
    trace = read_trace(CASES / case)
    steps = find_steps(trace)
    assert steps.method == method
    kernels = trace.activities[col.KIND] == col.KERNEL
    per_step = trace.activities[kernels].groupby(steps.of_activity[kernels])[col.DUR_NS].sum()
    assert [v / 1000 for v in per_step] == sums_us


@pytest.mark.skipif(
    "HTA_DSV4_EXTRA_TRACES" not in os.environ, reason="needs a folder of single-step server traces"
)
def test_a_single_real_step_stays_one():
    """Real decode traces of one step each -> one step by annotation, and no repetition taken for steps."""
    traces = sorted(Path(os.environ["HTA_DSV4_EXTRA_TRACES"]).glob("qwen3*.json.gz"))
    assert traces
    for path in traces:
        steps = find_steps(read_trace(path))
        assert (steps.method, len(steps.counted)) == (ENGINE, 1)
        assert not steps.disagreements
        assert {a.method: a.steps for a in steps.agreement}[PERIOD] == 0
