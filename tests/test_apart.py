"""What variants differ in besides their times: another workload is said first, what was switched plainly."""

from __future__ import annotations

import pytest

import hta_dsv4
from hta_dsv4.analysis.apart import apart, work_differs
from hta_dsv4.analysis.comparability import Conditions
from hta_dsv4.present.report import build
from hta_dsv4.present.standing_grid import change_in_words
from hta_dsv4.runs import comparing
from hta_dsv4.runs.standing import standings
from tests.conftest import cli


def captured(label: str, **facts: object) -> Conditions:
    return Conditions(label, {"concurrency": 32, "gpu": "H200", "context": 4096, **facts})  # type: ignore[dict-item]


def path(name: str) -> str:
    return str(hta_dsv4.traces()[name])


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("concurrency", 1, "concurrency is 32 in a and 1 in b"),
        ("gpu", "B300", "gpu is H200 in a and B300 in b"),
        ("context", 8192, "context is 4,096 in a and 8,192 in b"),
    ],
)
def test_another_workload_is_the_first_thing_said(fact, value, said):
    """Another C, GPU or context, and a switch -> the workload first, then the switch."""
    found = apart(
        [captured("a", **{"switches.moe": "x"}), captured("b", **{fact: value, "switches.moe": "y"})]
    )
    assert found.workload == (fact,)
    assert found.notes[0].startswith(f"not the same workload: {said}: ")
    assert found.notes[1] == "what was changed: moe x → y"


def test_what_was_meant_to_change_is_no_warning():
    """A switch, or the static maximum alone -> said as the change; the maximum beside a switch -> another workload."""
    a, longer = captured("a", max_context=8192), captured("b", max_context=65536)
    assert apart([a, longer]).notes == ("what was changed: max_context 8,192 → 65,536",)
    both = captured("c", max_context=65536, **{"switches.moe": "y"})
    found = apart([captured("a", max_context=8192, **{"switches.moe": "x"}), both])
    assert (found.workload, found.changed) == (("max_context",), ("switches.moe",))
    assert apart([a, longer], "max_context").notes == apart([a, a]).notes == ()


def test_silence_is_no_difference():
    """One capture without a manifest -> nothing is said of what it does not say."""
    assert apart([captured("a", launch="eager", commit="1"), Conditions("b")]).notes == ()
    assert work_differs({"concurrency": 32}, {}) == ()


@pytest.mark.parametrize(
    ("one", "other", "different"),
    [
        ({"commit": "aaaaaaaaaaaa-dirty"}, {"commit": "bbbbbbbb"}, "(a of commit aaaaaaa-dirty; b of commit bbbbbbb)"),
        ({"captured_at": "2026-11-29T17:40:00"}, {"captured_at": "2026-11-29T18:40:00"}, "(b 60 minutes after a)"),
        ({"captured_at": "2026-11-29T17:40:00"}, {"captured_at": "2026-11-29T17:41:00"}, ""),
        ({"captured_at": "yesterday"}, {"captured_at": "today"}, ""),
    ],
)  # fmt: skip
def test_captures_of_different_runs_are_told(one, other, different):
    """Other commits, an hour apart, a minute apart, no times -> different runs, twice; else nothing."""
    notes = apart([captured("a", **one), captured("b", **other)]).notes
    assert [different in n for n in notes] == ([True] if different else [])


def test_diff_of_two_batches_says_so_first_and_blames_no_clock():
    """split_k at C = 32 and at 1 -> the first note names both; all kernels at another speed, but no word of clocks."""
    text = cli("diff", path("split_k"), path("split_k_c1")).stdout
    notes = [line for line in text.splitlines() if line.startswith("note: ")]
    assert notes[0].startswith(
        "note: not the same workload: concurrency is 32 in split_k and 1 in split_k_c1: "
    )
    assert "launched alike in both" in text
    assert "clocks" not in text
    same = cli("diff", path("mma"), path("split_k")).stdout
    assert "not the same workload" not in same
    assert "note: what was changed: attention mma → split_k\n" in same


def test_a_report_calls_no_smaller_batch_faster():
    """cuda_graph and tuned_c1 -> the lead says two workloads; a factor neither in its table nor in its sentence."""
    runs = [hta_dsv4.load(path(n)) for n in ("cuda_graph", "tuned_c1")]
    report = build(runs)
    (lead,) = report.lead
    assert lead.notes[0].startswith(
        "not the same workload: concurrency is 32 in cuda_graph and 1 in tuned_c1"
    )
    assert [row[lead.headers.index("faster")] for row in lead.rows] == ["-", "-"]
    assert not any("not the same workload" in c for c in report.caveats)
    text = change_in_words(comparing.why(runs).pairs[0], *standings(runs))
    assert text.startswith(
        "cuda_graph → tuned_c1: another workload (concurrency 32 → 1), step 53.5 and 10.9 ms; GPU "
    )


def test_a_scaling_warns_of_what_is_not_its_parameter():
    """Points over C by its name or another -> no warning; over a static maximum at two C -> one, first."""
    one, many = (hta_dsv4.load(path(n)) for n in ("split_k_c1", "split_k"))
    for name in ("concurrency", "requests"):
        assert "workload" not in comparing.scaling([(1, one), (32, many)], name).notes[0]
    found = comparing.scaling([(8192, hta_dsv4.load(path("split_k_8k"))), (1048576, one)], "max_context")
    assert found.notes[0].startswith(
        "not the same workload: concurrency is 32 in split_k_8k and 1 in split_k_c1"
    )
