"""A host that is late between two steps: what it costs a user, and what in such a gap is not the host's to win."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import hta_dsv4
from hta_dsv4.analysis.findings.finding import ATTACK, LEAVE
from hta_dsv4.present.findings_grid import findings_grid
from hta_dsv4.present.idle_grid import idle_grid
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from tests.findings_made import saved
from tests.frames import kernel, marker
from tests.gpu_frames import run_of

STEPS, KERNELS, TOOK = 8, 10, 26_000
STEP = KERNELS * TOOK  # 260 us
CALL = 5_000
OTHER = {col.TID: "2"}
SYNC = {col.CATEGORY: "cuda_runtime", col.CORRELATION: 9}
PYTHON = {col.CATEGORY: "python_function"}


def gapped(
    gaps: list[int], inside: list[tuple[str, int, int, dict[str, Any]]] = (), graph: bool = True, call: int = CALL
) -> Run:  # fmt: skip
    """Steps of ten kernels end to end, ``gaps[i]`` ns after step i until the next.

    The host launches a step ``call`` ns before its first kernel, as one graph or kernel by kernel in 100 ns each.

    Args:
        gaps: ns between steps.
        inside: name, first and last ns of a call in every gap, counted from its begin, and further columns.
        graph: each step is one graph launch.
        call: ns that a step's first launch takes.
    """
    rows, events, at = [], [], 1_000_000
    for i, gap in enumerate([*gaps, 0]):
        index = 1000 * i
        for k in range(KERNELS):
            mine = index if graph else index + k
            begun, took = (at - call, call) if graph or k == 0 else (at + 100 * k, 100)
            name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
            link = {col.LAUNCH_INDEX: mine, col.LAUNCH_DUR_NS: took, col.LAUNCH_NAME: name}
            rows.append(kernel(f"k{k}", at + TOOK * k, TOOK, begun, **link))
            if not graph or k == 0:
                made = {col.CATEGORY: "cuda_runtime", col.EVENT_INDEX: mine, col.CORRELATION: mine + 1}
                events.append(marker(name, begun, begun + took, **made))
        events.append(marker(f"ProfilerStep#{i}", at - call, at + 1_500, **{col.EVENT_INDEX: index + 500}))
        end = at + STEP
        for n, (name, first, last, more) in enumerate(inside if gap else ()):
            index_of = {col.EVENT_INDEX: index + 600 + n}
            events.append(marker(name, end + first, end + last, **{**index_of, **more}))
        at = end + gap
    return run_of(rows, events)


def host_findings(run: Run):
    """What ``launch_bound`` says of a run: to attack with its share of the step, and to be left alone."""
    found = run.findings()
    attack = [r for r in found.ranked if r.finding.rule == "launch_bound"]
    return attack, [f for f in found.leave if f.rule == "launch_bound"]


@pytest.mark.parametrize("graph", [True, False])
def test_a_host_late_before_every_step_is_found(graph):
    """Steps of 260 us a millisecond apart, host elsewhere -> up to 995 us (a graph's launch call is not its)."""
    attack, leave = host_findings(gapped([1_000_000] * 7, graph=graph))
    (only,) = attack
    most = 1_000_000 - (CALL if graph else 0)
    assert not leave
    assert saved(only.finding) == (0, most / 2, most)
    assert (only.finding.kind, only.finding.confidence, only.finding.saves) == (ATTACK, 0.3, "wall time")
    assert only.share == pytest.approx(most / 2 / (STEP + most))
    step, wait = ("1.3 ms", "995.0 us") if graph else ("1.3 ms", "1.0 ms")
    assert only.finding.title == (
        f"between {'graph replays' if graph else 'steps'}: before each the GPU waits {wait} for the host (median), so "
        f"a {'replay of 260 us' if graph else 'step of 260.0 us'} takes {step} as recorded"
    )
    assert "at most all of it" in only.finding.because
    assert "profiler" in only.finding.needs
    evidence = {e.what: e.value for e in only.finding.evidence}
    assert evidence["from a step's start to the next one's, as recorded"] == STEP + 1_000_000


def test_work_after_a_short_synchronisation_is_the_hosts():
    """The host waits for the step, 10 us into the gap, and works 985 more -> those are its own."""
    wait = ("cudaStreamSynchronize", -50_000, 10_000, SYNC)
    (only,), _ = host_findings(gapped([1_000_000] * 7, [wait]))
    assert only.finding.recoverable.high == 985_000


@pytest.mark.parametrize(
    "call",
    [
        ("cudaStreamSynchronize", -100, 990_000, SYNC),
        ("threading.py(320): wait", 5_000, 990_000, PYTHON),
        ("<built-in method acquire of _thread.lock object at 0x7f21>", 5_000, 990_000, PYTHON),
        ("zmq/sugar/socket.py(955): recv_pyobj", 5_000, 990_000, PYTHON),
        ("shm_broadcast.py(512): acquire_read", 5_000, 990_000, PYTHON),
        ("Buffer Flush", 5_000, 990_000, {col.CATEGORY: "overhead", **OTHER}),
    ],
)
def test_a_gap_in_which_the_host_waited_is_not_its_own(call):
    """A synchronisation, a lock, a socket of requests, the profiler's flush over each gap -> left alone."""
    attack, (leave,) = host_findings(gapped([1_000_000] * 7, [call]))
    assert not attack
    assert leave.kind == LEAVE
    assert "one CUDA graph already" in leave.title


@pytest.mark.parametrize(
    "call",
    [
        ("cudaStreamSynchronize", -100, 990_000, {**SYNC, **OTHER}),
        ("threading.py(320): wait", 5_000, 990_000, {**PYTHON, **OTHER}),
        ("threading.py(973): run", 5_000, 990_000, PYTHON),
        ("engine.py(12): wait", 5_000, 1_100_000, PYTHON),
    ],
)
def test_a_wait_of_another_thread_or_around_the_launch_excuses_nothing(call):
    """Another thread waits, Python works, a call named wait launches the step -> the host's own as before."""
    (only,), _ = host_findings(gapped([1_000_000] * 7, [call]))
    assert only.finding.recoverable.high == 995_000


def test_one_long_gap_is_no_habit():
    """One gap of 50 ms among steps queued in time -> nothing, whatever the host did there."""
    attack, leave = host_findings(gapped([0, 0, 0, 50_000_000, 0, 0, 0]))
    assert not attack
    assert len(leave) == 1


def test_a_graph_launch_that_the_profiler_makes_long_is_not_the_hosts():
    """All of each gap in the graph's launch call, as profilers of nodes make it -> left alone."""
    attack, leave = host_findings(gapped([1_000_000] * 7, call=999_000))
    assert not attack
    assert "replay takes 260 us" in leave[0].title


def test_steps_end_to_end_are_left_alone():
    """No time between steps -> left alone, and no words of it."""
    run = gapped([0] * 7)
    attack, leave = host_findings(run)
    assert not attack
    assert len(leave) == 1
    assert not [n for n in idle_grid([run.idle()]).notes if "between steps" in n]


def test_head_and_idle_say_the_time_from_step_to_step():
    """A late host between steps -> findings name 1.3 ms beside 260 us of wall; idle says whose the gap is."""
    run = gapped([1_000_000] * 7)
    assert "260.0 us wall a step as recorded, 1.3 ms from step to step" in findings_grid(run.findings()).title
    grid = idle_grid([run.idle()])
    assert ("  of it the host's own, median", "995.000", "") in grid.rows
    (said,) = (n for n in grid.notes if n.startswith("the host is late between steps"))
    assert "995.000 us before each" in said
    assert said.endswith("1,260.000 us")


@pytest.mark.parametrize("name", ["cuda_graph", "moe_tuned", "tuned_c1", "h200_probe"])
def test_shipped_graphs_without_their_manifest_get_no_false_one(name: str, tmp_path: Path):
    """A capture whose gaps are the profiler's in graph launches, alone in a folder -> nothing between its steps."""
    shutil.copy(hta_dsv4.traces()[name], tmp_path)
    attack, _ = host_findings(hta_dsv4.load(tmp_path / hta_dsv4.traces()[name].name))
    assert not [r for r in attack if r.finding.title.startswith("between")]
