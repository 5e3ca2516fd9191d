"""Steps: what counts as one, and which activity belongs to which."""

from __future__ import annotations

import pytest

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import ENGINE, GRAPH, NONE, PROFILER, find_steps, marker_phase
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
