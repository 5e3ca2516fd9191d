"""Throughput over concurrency: levels, what a repeat counts for, the campaign's table, variants side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hta_dsv4.analysis.speedup import Speedup, speedups
from hta_dsv4.analysis.sweep_plan import levels_of, rounds
from hta_dsv4.analysis.throughput import spread, throughput
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.throughput_grid import line_words, throughput_grids
from hta_dsv4.runs.sweep_record import read_sweeps
from tests.conftest import cli
from tests.sweeps import CAMPAIGN, H200, LINE, measured, swept

# --- levels ---------------------------------------------------------------------------------------------------


def test_level_is_c_over_the_mean_step_and_repeats_stay_apart() -> None:
    """Three repeats at 39.9, 40 and 40.1 ms -> C over their mean; slowest and fastest kept; requests counted."""
    level = throughput(swept(*LINE)).levels[0]
    assert level.step_ns == pytest.approx(40e6)
    assert level.tokens_per_s == pytest.approx(25)
    assert (level.low_tokens_per_s, level.high_tokens_per_s) == pytest.approx((1e3 / 40.1, 1e3 / 39.9))
    assert (level.repeats, level.tried, level.requests, level.failed, level.tokens) == (3, 3, 3, 0, 300)
    assert level.ttft is not None
    assert level.ttft.n == 3


def test_percentiles_are_values_that_were_measured() -> None:
    """1..100 ns, then 1..10 -> p50 and p99 the smallest value that enough do not exceed; nothing -> no spread."""
    hundred = spread(range(1, 101))
    assert hundred is not None
    assert (hundred.p50_ns, hundred.p99_ns, hundred.mean_ns) == (50, 99, 50.5)
    ten = spread(range(1, 11))
    assert ten is not None
    assert (ten.p50_ns, ten.p99_ns) == (5, 10)
    assert spread([]) is None


def test_a_repeat_with_a_failure_is_reported_and_counts_in_no_figure() -> None:
    """One of C requests failed, the others were fast -> the level is the whole repeats'; the failure is told."""
    broken = measured(
        4, 4, 1.0, tokens_per_s=None, failures=("the server answered 500",), unusable="the batch was not full"
    )
    found = throughput(swept(*LINE, broken))
    level = found.levels[1]
    assert level.step_ns == pytest.approx(70e6)
    assert (level.repeats, level.tried, level.failed) == (3, 4, 1)
    assert level.tpot is not None
    assert level.tpot.n == 12
    said = " ".join(found.notes)
    assert "C=4, repeat 4: 1 failed: the server answered 500" in said
    assert "counts in no figure: the batch was not full" in said
    assert found.line == throughput(swept(*LINE)).line


def test_a_level_without_a_whole_repeat_has_no_figure() -> None:
    """Every repeat at C=16 failed -> no throughput there, and the line is of the other two values."""
    rest = [r for r in LINE if r.concurrency < 16]
    broken = measured(16, 1, 1.0, tokens_per_s=None, failures=("x",) * 3, unusable="not full")
    found = throughput(swept(*rest, broken))
    assert found.levels[2].tokens_per_s is None
    assert found.line is not None
    assert found.line.values == (1, 4)
    table = throughput_grids([found])[0]
    assert table.rows[2][:2] == ("16", "-")
    assert table.rows[2][3] == "0 of 1"


def test_one_value_of_c_has_no_line_and_says_why() -> None:
    """C=4 alone -> no line, the reason names it; no measurement at all -> an error."""
    found = throughput(swept(*[r for r in LINE if r.concurrency == 4]))
    assert found.line is None
    assert found.reason.startswith("only C=4 was measured")
    assert line_words(found) == [found.reason]
    with pytest.raises(HtaDsv4Error, match="without a single measurement"):
        throughput(swept())


def test_few_values_for_a_p99_and_single_repeats_are_said() -> None:
    """Three requests, one repeat each -> notes say that p99 is the largest, and that nothing tests the line."""
    notes = " ".join(throughput(swept(*[r for r in LINE if r.repeat == 1])).notes)
    assert "p99 is the largest value" in notes
    assert "one repeat each" in notes


def test_repeats_that_disagree_are_said() -> None:
    """Repeats at 20 and 40 ms a step -> a note that something besides C changes; 20 and 21 -> none."""
    apart = throughput(swept(measured(4, 1, 20), measured(4, 2, 40)))
    assert any(n.startswith("C=4: repeats differ 2.0 times") for n in apart.notes)
    assert not any("differ" in n for n in throughput(swept(measured(4, 1, 20), measured(4, 2, 21))).notes)


def test_line_that_only_noise_leaves_standing() -> None:
    """Repeats that scatter by half -> not "a line fits" but that nothing rules one out, and to measure more."""
    steps = {1: (20, 60), 4: (30, 90), 16: (40, 130), 32: (150, 400)}
    found = throughput(
        swept(*[measured(c, i, s) for c, both in steps.items() for i, s in enumerate(both, 1)])
    )
    assert found.line is not None
    assert found.line.fits is True
    assert line_words(found)[0].startswith("nothing rules a line out")


def test_rounds_go_up_and_down() -> None:
    """Two rounds -> over all values of C upwards, then downwards: drift is no slope."""
    assert rounds((1, 4, 16), 2) == [(1, 1), (1, 4), (1, 16), (2, 16), (2, 4), (2, 1)]


@pytest.mark.parametrize(("text", "wanted"), [("1,4,16", (1, 4, 16)), (" 16, 4,4 ", (4, 16)), ("7", (7,))])
def test_values_of_c(text: str, wanted: tuple[int, ...]) -> None:
    """Whole numbers with commas -> increasing, each once."""
    assert levels_of(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "1,-4", "1,x", "1.5", "1,,4"])
def test_no_values_of_c(text: str) -> None:
    """Anything else -> one line with an example."""
    with pytest.raises(HtaDsv4Error, match="whole number of at least 1; write 1,4,16"):
        levels_of(text)


# --- the campaign's table, and its like measured on an H200 ---------------------------------------------------


def test_the_campaigns_table_says_what_the_campaign_said_of_mma() -> None:
    """The published tok/s -> MMA: 14 to 15 ms a request and about 70 tok/s; split-K a little more, 64 tok/s."""
    original, mma, split_k = map(throughput, read_sweeps([str(CAMPAIGN)]))
    assert mma.line is not None
    assert 14 < mma.line.per_request_ns / 1e6 < 15
    last = mma.line.segments[-1]
    assert 14 < last.slope_ns / 1e6 < 15
    assert last.ceiling.tokens_per_s == pytest.approx(70.2, abs=0.1)
    assert split_k.line is not None
    assert split_k.line.per_request_ns / 1e6 == pytest.approx(15.66, abs=0.01)
    assert split_k.line.ceiling.tokens_per_s == pytest.approx(63.8, abs=0.1)
    assert split_k.line.ceiling.high == pytest.approx(70.0, abs=0.1)
    # "whatever the kernel" does not hold of the first one: a request more costs it twice as much.
    assert original.line is not None
    assert original.line.per_request_ns / 1e6 == pytest.approx(32.7, abs=0.1)
    assert original.line.ceiling.tokens_per_s == pytest.approx(30.6, abs=0.1)


def test_three_published_points_do_not_bound_mma() -> None:
    """Three points without repeats -> MMA's ceiling is not bounded by them, and that is said beside the estimate."""
    done = cli("sweep", "--from", str(CAMPAIGN))
    assert done.returncode == 0
    assert "mma: a ceiling is not bounded by these data" in done.stdout
    assert "the line itself says 67.13 tok/s" in done.stdout
    assert (
        "from C=16 to 64 a request more costs 14.250 ms; if that goes on, throughput ends at 70.17"
        in done.stdout
    )
    row = next(line for line in done.stdout.splitlines() if line.startswith("split_k"))
    assert row.split()[1:4] == ["22.43", "56.46", "61.98"]


def test_measured_sweep_on_an_h200() -> None:
    """Real sweeps, three repeats -> no line over C=1 to 64; beyond 32, kernels no longer differ but for the first."""
    original, mma, split_k, graph = (throughput(read_sweeps([str(p)])[0]) for p in H200.values())
    for found in (original, mma, split_k, graph):
        assert found.line is not None
        assert found.line.fits is False
        assert not found.line.holds
    last = {t.sweep.label: t.line.segments[-1] for t in (original, mma, split_k, graph) if t.line}
    assert last["mma"].interval is not None
    assert last["mma"].interval[0] < last["split_k"].slope_ns < last["mma"].interval[1]
    assert last["original"].slope_ns > 3 * last["mma"].slope_ns
    assert last["mma"].slope_ns > 10 * last["cuda_graph"].slope_ns
    assert mma.line is not None
    assert mma.line.bend is not None
    assert mma.line.bend.at == 16


def times_of(steps_a: list[float], steps_b: list[float]) -> Speedup:
    """Throughput of b over a's at C=4, from step times in ms."""
    a, b = (
        throughput(swept(*[measured(4, i + 1, s) for i, s in enumerate(steps)], label=label))
        for label, steps in (("a", steps_a), ("b", steps_b))
    )
    (found,) = speedups(a, b)
    return found


def test_speedup_is_the_ratio_of_the_table_with_an_interval_from_the_repeats() -> None:
    """Twice as fast, three repeats each -> 2 times, sure; the same but for noise -> not sure; one repeat -> unknown."""
    fast = times_of([100, 101, 99], [50, 50.2, 49.8])
    assert fast.times == pytest.approx(2)
    assert fast.interval is not None
    assert fast.interval[0] < 2 < fast.interval[1] < 2.1
    assert fast.sure is True
    assert times_of([100, 101, 99], [100.5, 99.5, 99.9]).sure is False
    assert times_of([100], [50, 51]).interval is None
    assert times_of([100], [50, 51]).sure is None


def test_speedup_holds_the_truth_as_often_as_stated() -> None:
    """300 pairs of sweeps, noise of 2 %, twice as fast in truth -> 2 inside the interval in 95 % of them or more."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(300):
        found = times_of(*(list(m * (1 + 0.02 * rng.normal(size=3))) for m in (100.0, 50.0)))
        assert found.interval is not None
        inside += found.interval[0] <= 2 <= found.interval[1]
    assert inside >= 270


def test_variants_side_by_side_have_their_ratios() -> None:
    """Four real sweeps -> each against the first at every C, in text and JSON; one sweep alone -> none."""
    names = [str(p) for p in H200.values()]
    done = cli("sweep", "--from", *names, "--json")
    variants = json.loads(done.stdout)["variants"]
    assert variants[0]["against_first"] is None
    split_k = {s["concurrency"]: s for s in variants[2]["against_first"]}
    assert list(split_k) == [1, 4, 16, 32, 64]
    assert split_k[64]["times"] == pytest.approx(92.56 / 30.60, rel=1e-3)
    low, high = split_k[64]["interval"]
    assert 3.0 < low < split_k[64]["times"] < high < 3.05
    assert "throughput as a multiple of original's" in cli("sweep", "--from", *names).stdout
    assert "multiple of" not in cli("sweep", "--from", names[0]).stdout


def test_notebook_shows_sweeps_side_by_side() -> None:
    """show() of two sweeps -> one table of both, as HTML and Markdown."""
    from hta_dsv4.present.notebook import show

    shown = show(*(throughput(read_sweeps([str(H200[v])])[0]) for v in ("mma", "split_k")))
    assert "throughput as a multiple of mma" in repr(shown)
    assert "<table" in shown._repr_html_()
