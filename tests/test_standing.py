"""Where variants stand: the step without the profiler where it is known, tokens per second, and what bounds it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.analysis.idle import Idle
from hta_dsv4.present.standing_grid import change_in_words, standing_grid, step_ms
from hta_dsv4.runs.standing import GPU, HOST, OTHER, Standing, standings
from tests.builders import KinetoTrace
from tests.conftest import CASES


def standing(label: str, step_ms: float, busy_ms: float = 50.0, **more: object) -> Standing:
    waiting = Idle(100, 90, 1000, 900, 10, 1)
    made = Standing(
        label, 3, busy_ms * 1e6, busy_ms * 1e6, step_ms * 1e6, (step_ms * 0.99e6, step_ms * 1.01e6), True, 32, waiting
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_shipped_variants_stand_where_their_manifest_says():
    """mhc_fused and cuda_graph -> the manifest's steps and C, the trace's GPU time; one host-bound, one GPU-bound."""
    shipped = hta_dsv4.traces()
    found = standings([hta_dsv4.load(shipped[n]) for n in ("mhc_fused", "cuda_graph")])
    assert [round(s.step_ns / 1e6, 1) for s in found] == [221.7, 53.5]
    assert [s.unprofiled for s in found] == [True, True]
    assert [round(s.tokens_per_s or 0) for s in found] == [144, 598]
    assert [s.bound_by for s in found] == [HOST, GPU]
    assert found[1].own_ns == pytest.approx(51.378e6, abs=1e3)
    assert found[1].times_faster(found[0]) == pytest.approx(4.14, abs=0.01)


def test_without_a_manifest_the_step_is_the_recorded_one_and_says_so(tmp_path):
    """The same trace away from its manifest -> the recorded period, told as that, never set against another's."""
    shipped = hta_dsv4.traces()["cuda_graph"]
    copy = shutil.copy(shipped, tmp_path / "alone.trace.json.gz")
    alone, known = standings([hta_dsv4.load(copy), hta_dsv4.load(shipped)])
    assert not alone.unprofiled
    assert alone.step_ns == pytest.approx(57.6e6, abs=0.5e6)  # 52.6 and 5.0 of the profiler's between steps
    assert known.times_faster(alone) is None
    made = standing_grid([alone, known])
    assert [row[3] for row in made.rows] == ["recorded", "unprofiled"]
    assert any("the profiler's own gaps in it" in n for n in made.notes)


def test_a_trace_without_steps_stands_nowhere():
    """No decode step -> no entry, instead of a step of the whole trace."""
    assert standings([hta_dsv4.load(CASES / "37-hostile-kernel-names.json")]) == []


@pytest.mark.parametrize(
    ("busy_ms", "waiting", "bound"),
    [
        (95.0, Idle(5, 5, 100, 95, 10, 1), GPU),
        (40.0, Idle(60, 50, 100, 40, 10, 1), HOST),
        (40.0, Idle(60, 10, 100, 40, 10, 1), OTHER),
        (40.0, Idle(60, None, 100, 40, None, 1, "no launches"), ""),
    ],
)
def test_what_bounds_a_step(busy_ms, waiting, bound):
    """95 % busy; idle with an empty queue, with a full one, launches not recorded -> GPU, host, other, unknown."""
    assert standing("a", 100.0, busy_ms, waiting=waiting).bound_by == bound


def test_steps_that_overlap_are_not_called_faster_alone():
    """Steps whose ranges overlap -> the factor says so; far apart -> the factor alone; another source -> none."""
    a, b = standing("a", 100.0), standing("b", 101.0)
    rows = standing_grid([a, b, standing("c", 50.0), standing("d", 40.0, unprofiled=False)]).rows
    column = standing_grid([a, b]).headers.index("faster")
    assert standing_grid([a, b]).rows[1][column] == "0.99x, ranges overlap"
    faster = [row[column + 1] for row in rows]  # behind the column that says how each was measured
    assert faster == ["-", "0.99x, ranges overlap", "2.02x", "-"]


def test_a_change_leads_with_the_step_and_names_no_trifle():
    """A change made by one effect -> the step first, then GPU time, and that effect alone."""
    shipped = hta_dsv4.traces()
    runs = [hta_dsv4.load(shipped[n]) for n in ("cuda_graph", "moe_tuned")]
    change = hta_dsv4.why(runs).pairs[0]
    text = change_in_words(change, *standings(runs))
    assert text.startswith(
        "cuda_graph → moe_tuned: step 53.5 → 31.6 ms (1.70x); GPU 51.378 → 30.967 ms (-39.7 %)"
    )
    assert text.count("(-20") == 1
    assert " and " not in text.split("mostly")[1]
    assert change_in_words(change, None, None).startswith("cuda_graph → moe_tuned: GPU 51.378")


def test_a_change_that_steps_alone_could_make_is_given_no_reason():
    """Three steps of each, GPU time 2 % apart by which steps were recorded -> the step's gain, and no effect named."""
    runs = [hta_dsv4.load(hta_dsv4.traces()[n]) for n in ("mhc_fused", "cuda_graph")]
    text = change_in_words(hta_dsv4.why(runs).pairs[0], *standings(runs))
    assert text.endswith("step 221.7 → 53.5 ms (4.14x); GPU 52.402 → 51.378 ms (-2.0 %, within spread)")


def test_a_late_host_between_two_steps_is_in_the_recorded_step(tmp_path):
    """260 us of work every 1,000 us, C = 32 -> steps of 1 ms, 32,000 tok/s, bound by the host, not by the GPU."""
    found = standings([hta_dsv4.load(late_between(tmp_path / "bs32.json", 6))])[0]
    assert (found.step_ns, found.range_ns, found.period) == (1e6, (1e6, 1e6), True)
    assert found.busy_share == pytest.approx(0.26)
    assert found.bound_by == HOST
    assert replace(found, batch=32).tokens_per_s == pytest.approx(32_000)
    made = standing_grid([found])
    assert made.rows[0][2] == "1.00"
    single = standings([hta_dsv4.load(late_between(tmp_path / "one.json", 1))])[0]
    assert (single.step_ns, single.period) == (280_000.0, False)
    assert any("no step follows another" in n for n in standing_grid([single]).notes)


def late_between(path: Path, steps: int) -> Path:
    """A trace whose steps are 100 and 160 us of work with 20 us between, one every 1,000 us."""
    trace = KinetoTrace()
    for i in range(steps):
        at = 1000 + 1000 * i
        trace.step(i, at - 1, 998)
        for name, offset, dur in (("attn", 0, 100), ("moe", 120, 160)):
            number = trace.next_id()
            trace.launch(at + offset, 0.5, correlation=number)
            trace.kernel(name, at + offset + 2, dur, correlation=number)
    return trace.write(path)


@pytest.mark.parametrize(
    ("ms", "said"), [(221.7, "221.7"), (10.0, "10.0"), (0.3, "0.300"), (0.01234, "0.0123"), (9.996, "10.0")]
)
def test_short_steps_keep_three_digits(ms, said):
    """Steps from 12 us to 222 ms -> one decimal from 10 ms on, three significant digits below."""
    assert step_ms(ms * 1e6) == said
