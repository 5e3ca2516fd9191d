"""What-if: how changes are written, what they do to a step, and how well they predict the campaign."""

from __future__ import annotations

import csv
import io
import json

import pytest

import hta_dsv4
from benchmarks.whatif_campaign import BASE, CASES, outcome
from hta_dsv4.analysis import change as ch
from hta_dsv4.analysis.change import halve_bytes, parse_set, remove, select
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.devices import ceilings
from hta_dsv4.analysis.floors import launch_floors
from hta_dsv4.analysis.whatif import what_if
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.speed import counted_of

GLUE = {col.BUCKET: "glue", col.ROLE: "copy_cast", col.ORIGIN: "indexer"}
CORE = {col.BUCKET: "attention", col.ROLE: "attention_core", col.ORIGIN: "attention"}


@pytest.fixture(scope="module")
def original():
    return hta_dsv4.load(hta_dsv4.traces()[BASE])


@pytest.mark.parametrize(
    ("text", "selector", "kind", "value", "count"),
    [
        ("attention=floor", "attention", ch.FLOOR, 0, 0),
        ("origin:indexer*0.1", "origin:indexer", ch.SCALE, 0.1, 0),
        ("indexer/4", "indexer", ch.SCALE, 0.25, 0),
        ("role:copy_cast=12.5us", "role:copy_cast", ch.EACH, 12_500, 0),
        ("attention = 43 x 0.025ms", "attention", ch.REPLACE, 25_000, 43),
        ("kernel:foo<a*, 4>=900ns", "kernel:foo<a*, 4>", ch.EACH, 900, 0),
        ("scope:/indexer/logits*0", "scope:/indexer/logits", ch.SCALE, 0, 0),
    ],
)
def test_changes_are_read_as_written(text, selector, kind, value, count):
    """Each form of --set -> its selector, kind and value."""
    found = parse_set(text)
    assert (found.selector, found.kind, found.count) == (selector, kind, count)
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["attn", "=floor", "attn=", "attn=12", "a*x", "a/0", "a*-1", "a*inf", "a*nan", "a=0x3us", "a=-3us", ""],
)  # fmt: skip
def test_what_is_no_change_is_refused_in_one_line(text):
    """Missing parts, units or numbers -> an error that shows the forms."""
    with pytest.raises(HtaDsv4Error, match="write SELECTOR=floor"):
        parse_set(text)


def small():
    """A copy for the indexer, the attention, a copy for the attention; 1 us apart on one stream."""
    merge = {**GLUE, col.ORIGIN: "attention"}
    return counted_of(
        [("copy", 0, 4_000, GLUE), ("core", 5_000, 10_000, CORE), ("copy", 16_000, 2_000, merge)]
    )


@pytest.mark.parametrize(
    ("selector", "rows", "meaning"),
    [
        ("indexer", [1, 0, 0], "origin indexer"),
        ("attention", [0, 1, 1], "origin attention"),
        ("bucket:attention", [0, 1, 0], "bucket attention"),
        ("glue", [1, 0, 1], "bucket glue"),
        ("copy_cast", [1, 0, 1], "role copy_cast"),
        ("origin:attention+bucket:glue", [0, 0, 1], "origin attention and bucket glue"),
        ("kernel:cor", [0, 1, 0], "kernel with 'cor'"),
    ],
)
def test_selectors_mean_what_they_say(selector, rows, meaning):
    """Bare words and keyed terms -> the launches, and how it was read."""
    found = select(small().activities, selector)
    assert (found.rows.astype(int).tolist(), found.meaning) == (rows, meaning)


@pytest.mark.parametrize(
    "selector", ["bucket:mhc", "nothing_like_it", "kernel:xyz", "origin:indexer+bucket:attention"]
)
def test_a_selector_that_matches_nothing_is_refused(selector):
    """No such launches -> one line that says what there is."""
    with pytest.raises(HtaDsv4Error, match=r"there are|is no origin|holds|none matches"):
        select(small().activities, selector)


def project(part, *changes, device=None, **more):
    return what_if("x", part, changes, floors=launch_floors(part, Workload(), device), **more)


def test_no_change_changes_nothing():
    """Durations times 1 -> the recorded step in every measure."""
    found = project(small(), parse_set("copy_cast*1"), batch=4)
    assert found.after == found.before
    assert found.before.wall_ns == 18_000
    assert found.tokens_per_s(found.before.wall_ns) == pytest.approx(4e9 / 18_000)


def test_scaling_and_removing_shift_what_follows():
    """Attention halved, then the indexer's copy taken out -> sum and wall as counted by hand, gaps kept."""
    found = project(small(), parse_set("bucket:attention*0.5"), remove("origin:indexer"))
    assert found.after.own_ns == 5_000 + 2_000
    assert found.after.wall_ns == 5_000 + 1_000 + 2_000
    first, second = found.effects
    assert (first.time_ns, first.time_ns_after) == (10_000, 5_000)
    assert (second.launches, second.launches_after) == (1, 0)


def test_a_faster_kernel_lets_its_successor_wait_less():
    """A combine that starts 8 us early and owns 2 -> with the split at half, 5 us and the same 2; wall falls by 5."""
    part = counted_of(
        [("split", 0, 10_000, CORE), ("combine", 2_000, 10_000, GLUE), ("next", 13_000, 1_000, GLUE)]
    )
    found = project(part, parse_set("attention+bucket:attention*0.5"))
    assert (found.before.own_ns, found.before.wall_ns, found.early_ns) == (13_000, 14_000, 8_000)
    assert (found.after.own_ns, found.after.wall_ns) == (8_000, 9_000)
    assert any("early time" in a for a in found.assumptions)
    gone = project(part, remove("kernel:combine"))
    assert (gone.effects[0].time_ns, gone.after.own_ns) == (2_000, 11_000)


def test_fewer_launches_stand_where_the_old_ones_stood():
    """Four launches in place of which two of 3 us -> spread evenly, the rest gone; more than there are -> refused."""
    part = counted_of([(f"k{i}", 10_000 * i, 5_000, CORE) for i in range(4)])
    found = project(part, parse_set("attention=2x3us"))
    assert found.after.own_ns == 6_000
    assert found.effects[0].launches_after == 2
    with pytest.raises(HtaDsv4Error, match="5 launches in place of 4"):
        project(part, parse_set("attention=5x3us"))


def copy_of(n):
    return {
        **GLUE,
        col.OP: "aten::copy_",
        col.OP_SHAPES: f"[[{n}],[{n}],[]]",
        col.OP_DTYPES: '["float","float","Scalar"]',
    }


def test_floors_and_half_the_bytes():
    """A copy at half its bandwidth -> half the time at its floor; with half the bytes as well half the time."""
    h200 = ceilings("NVIDIA H200")
    part = counted_of([("c", 0, 20_000, copy_of(4275 * 10_000 // 8)), ("k", 30_000, 700, copy_of(8))])
    floor = project(part, parse_set("glue=floor"), device=h200)
    assert floor.after.own_ns == pytest.approx(10_000 + 660, abs=2)
    assert floor.effects[0].bound == "memory"
    half = project(part, halve_bytes("glue"), device=h200)
    assert half.after.own_ns == pytest.approx(10_000 + 700, abs=2)


def test_a_floor_that_is_not_known_is_refused():
    """No ceilings, or no cost -> an error with the reason instead of a number."""
    with pytest.raises(HtaDsv4Error, match="no floor is known"):
        project(small(), parse_set("attention=floor"), device=ceilings("NVIDIA H200"))
    with pytest.raises(HtaDsv4Error, match=r"no floor is known .*\(the GPU's ceilings are not known\)"):
        project(counted_of([("c", 0, 20_000, copy_of(8))]), parse_set("glue=floor"))


def test_a_step_bound_by_its_host_saves_no_wall_time():
    """Late launches, kernels twice as fast -> less GPU time, the same wall; as one graph the wall falls."""
    part = counted_of(
        [(f"k{i}", 30_000 * i + 10_000, 10_000, {**CORE, "launch": 30_000 * i}) for i in range(5)]
    )
    found = project(part, parse_set("attention*0.5"))
    assert found.after.own_ns == found.before.own_ns / 2
    assert found.after.wall_ns == found.before.wall_ns - 5_000
    graph = project(part, parse_set("attention*0.5"), graph=True)
    assert graph.after.wall_ns < found.after.wall_ns / 3
    assert found.wall_range[0] == graph.after.wall_ns


def test_the_unprofiled_step_scales_the_host():
    """An unprofiled step 20 us shorter than recorded, all of it the host's -> projected from there."""
    part = counted_of(
        [(f"k{i}", 30_000 * i + 10_000, 10_000, {**CORE, "launch": 30_000 * i}) for i in range(5)]
    )
    recorded = 4 * 30_000 + 10_000
    found = project(part, remove("kernel:k2"), unprofiled_ns=recorded - 20_000)
    assert found.unprofiled is not None
    assert found.unprofiled[0] == pytest.approx(recorded - 20_000, abs=100)
    assert found.unprofiled[1] == pytest.approx(recorded - 20_000 - 25_000, abs=100)


def test_a_trace_without_steps_cannot_be_projected():
    """No counted step -> an error, not zeros."""
    with pytest.raises(HtaDsv4Error, match="no steps"):
        project(counted_of([]), remove("glue"))


@pytest.mark.parametrize("case", [c for c in CASES if c.target != "bf16_gemm"], ids=lambda c: c.target)
def test_the_campaign_is_predicted_from_its_first_trace(original, case):
    """Original with the changed kernels' own benchmarks -> each later variant's GPU time within 15 %."""
    found = outcome(original, case)
    assert abs(found.error) <= 0.15
    if case.graph:
        assert abs(found.wall_ns / found.actual_wall_ns - 1) <= 0.15


def test_the_command_prints_text_json_csv_and_markdown():
    """hta-dsv4 whatif on a shipped trace -> four forms of one projection, with its assumptions."""
    words = (
        "whatif",
        "mhc_fused",
        "--set",
        "fp4_moe=floor",
        "--halve-bytes",
        "lm_head",
        "--remove",
        "sampling",
    )
    text = cli(*words)
    assert text.returncode == 0, text.stderr
    assert "wall without the profiler" in text.stdout
    assert "assumed:" in text.stdout
    body = json.loads(cli(*words, "--json").stdout)
    assert (body["schema"], body["command"], body["concurrency"]) == (2, "whatif", 32)
    before, after = body["per_step"]["recorded"], body["per_step"]["projected"]
    assert after["own_ns"] < before["own_ns"]
    assert before["wall_ns"] == before["busy_ns"] + before["idle_ns"]
    assert [c["launches_per_step_after"] for c in body["changes"]][2] == 0
    rows = list(csv.DictReader(io.StringIO(cli(*words, "--csv").stdout)))
    assert {r["measure"]: int(r["projected_ns"]) for r in rows}["own"] == after["own_ns"]
    assert "| --" in cli(*words, "--md").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [(("whatif", "mhc_fused"), "nothing changes"), (("whatif", "mhc_fused", "--set", "moe"), "no change in it"),
     (("whatif", "mhc_fused", "--remove", "bucket:nope"), "there are")],
)  # fmt: skip
def test_mistakes_are_one_line(words, said):
    """Nothing to do, no change in a change, no such launches -> one line and exit code 2."""
    done = cli(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
