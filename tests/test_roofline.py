"""Floors and headroom: made launches, the campaign's FP32 product, the shipped traces, the command."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction

import pytest

import hta_dsv4
from hta_dsv4.analysis.costs.gemm import gemm_cost
from hta_dsv4.analysis.costs.shapes import operands
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.devices import ceilings
from hta_dsv4.analysis.roofline import roofline
from hta_dsv4.analysis.verdicts import product_verdict
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.roofline_grid import roofline_grid
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.speed import counted_of

H200 = ceilings("NVIDIA H200")
PRO6000 = ceilings("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
BMM = ("[[32,262144,128],[32,128,64]]", '["float","float"]')
COPY = {col.OP: "aten::copy_", col.OP_DTYPES: '["float","float","Scalar"]', col.ROLE: "copy_cast"}


def copy_of(n):
    return {**COPY, col.OP_SHAPES: f"[[{n}],[{n}],[]]", col.BUCKET: "glue"}


@pytest.fixture(scope="module")
def original():
    return hta_dsv4.load(hta_dsv4.traces()["original"])


@pytest.fixture(scope="module")
def graph():
    files = hta_dsv4.traces()
    return hta_dsv4.load(files["cuda_graph"], companion=files["cuda_graph_eager"])


def test_the_campaigns_fp32_product_is_dram_bound():
    """4.349 ms a call on an RTX PRO 6000 -> 1.48 TB/s, 83 % of the bandwidth: tensor cores are not the answer."""
    cost = gemm_cost("bmm", operands(*BMM), "cutlass_80_simt_sgemm_64x128_8x5_tn_align1")
    assert PRO6000 is not None
    text = product_verdict(cost, 1004.64e6 / 231, PRO6000, "indexer")
    assert "1.48 TB/s" in text
    assert "DRAM-bound (83 % of the bandwidth" in text
    assert "bf16 tensor cores are not the answer" in text


def test_the_same_product_on_an_h200_is_bound_by_fp32(original):
    """3.45 ms on a GPU with 2.7 times the bandwidth -> FP32 arithmetic bounds it, and the bytes come next."""
    (text,) = (v for v in original.roofline("origin").verdicts if "of indexer" in v)
    assert "6.44 GB and 137.4 GFLOP" in text
    assert "bound by FP32 arithmetic" in text
    assert "the same bytes would bound it at 1,462.8 us" in text


def test_a_product_far_from_both_sides_is_bound_by_neither():
    """8 us for a product that needs 1 us -> neither bytes nor arithmetic."""
    assert H200 is not None
    cost = gemm_cost("mm", operands("[[32,4096],[4096,256]]", '["float","float"]'), "sgemm")
    assert "far from both ceilings" in product_verdict(cost, 8000, H200)


def test_floor_headroom_and_bandwidth_of_made_launches():
    """A copy at half its bandwidth, a tiny one, one without cost -> memory, launch and unknown, told apart."""
    n = 4275 * 10_000 // 8  # a copy of n floats takes 10 us at 4275 GB/s
    part = counted_of(
        [("big", 0, 20_000, {**copy_of(n), col.ROLE: "copy_cast"}), ("small", 30_000, 2_000, copy_of(8)),
         ("odd", 40_000, 5_000, {col.BUCKET: "unknown"})]
    )  # fmt: skip
    found = roofline("x", part, Workload(), H200, "NVIDIA H200", ("kernel",))
    big, small, odd = (next(r for r in found.rows if r.key == (k,)) for k in ("big", "small", "odd"))
    assert big.floor_ns == pytest.approx(10_000, abs=2)
    assert big.headroom_ns == pytest.approx(10_000, abs=2)
    assert (big.bound, big.known) == ("memory", "measured")
    assert big.gb_s == pytest.approx(4275 / 2, rel=1e-3)
    assert (small.floor_ns, small.bound) == (660, "launch")
    assert (odd.known_ns, odd.headroom_ns, odd.known) == (0, 0, "unknown")
    cells = next(r for r in roofline_grid(found).rows if r[0] == "odd")
    assert cells[2:4] == ("-", "-")
    assert found.known_share == pytest.approx(22 / 27)
    assert found.rows[0] is big


def test_a_launch_below_its_floor_is_said():
    """A copy faster than DRAM permits -> counted, and told apart by whether a cache explains it."""
    fast = counted_of([("c", 0, 1_000, copy_of(1_000_000)), ("k", 5_000, 700, copy_of(8))])
    found = roofline("x", fast, Workload(), H200, "NVIDIA H200", ("kernel",))
    row = next(r for r in found.rows if r.key == ("c",))
    assert row.below == 1
    assert row.headroom_ns is not None
    assert row.headroom_ns < 0
    assert any("1 launches" in n and "twice the L2" in n and "model is wrong" not in n for n in found.notes)
    huge = roofline(
        "x", counted_of([("c", 0, 1_000, copy_of(50_000_000))]), Workload(), H200, "NVIDIA H200", ("kernel",)
    )
    assert any("for the other 1 the model is wrong" in n for n in huge.notes)


def test_waiting_for_the_launch_ahead_is_nobodys_headroom():
    """A combine that starts 90 us before the split ends -> 10 us of its own, 90 shown as waiting."""
    big = {col.OP: "aten::copy_", **copy_of(1 << 25)}
    part = counted_of(
        [("split", 0, 100_000, big), ("combine", 10_000, 100_000, {col.ROLE: "attention_combine"})]
    )
    found = roofline("x", part, Workload(), ceilings("H200"), "H200", ["kernel"])
    rows = {r.key[0]: r for r in found.rows}
    assert (rows["combine"].time_ns, rows["combine"].early_ns) == (10_000, 90_000)
    assert (rows["split"].time_ns, rows["split"].early_ns) == (100_000, 0)
    assert found.total.time_ns == 110_000
    grid = roofline_grid(found)
    assert grid.headers[2] == "waits us"
    assert any("45 % of the summed durations" in n and "combine" in n for n in grid.notes)
    alone = roofline(
        "x", counted_of([("split", 0, 100_000, big)]), Workload(), ceilings("H200"), "H200", ["kernel"]
    )
    assert "waits us" not in roofline_grid(alone).headers


def test_without_ceilings_bandwidth_is_told_and_floors_are_not():
    """A GPU outside the table -> achieved GB/s, no floor, and the reason."""
    part = counted_of([("c", 0, 1_000, copy_of(125_000))])
    found = roofline("x", part, Workload(), None, "Tesla V100", ("kernel",))
    (row,) = found.rows
    assert (row.floor_ns, row.headroom_ns) == (None, None)
    assert row.gb_s == pytest.approx(1000)
    assert found.known_share == 0
    assert any("'Tesla V100' is not in the device table" in n for n in found.notes)


def test_nearly_all_of_the_original_has_a_floor(original):
    """The first trace of the campaign -> 99.9 % of the time, floors far below it, rows that add up."""
    found = original.roofline("bucket")
    assert found.known_share > 0.999
    assert found.total is not None
    assert found.total.floor_ns is not None
    assert sum(r.time_ns for r in found.rows) == pytest.approx(found.total.time_ns, abs=len(found.rows))
    assert sum(r.floor_ns or 0 for r in found.rows) == pytest.approx(
        found.total.floor_ns, abs=len(found.rows)
    )
    assert 0.12 < found.total.floor_ns / found.total.time_ns < 0.2


def test_the_original_names_its_redundant_attention(original):
    """One program a head over padded lists -> KV asked for over 30 times, operations 10 times over."""
    row = next(r for r in original.roofline("role").rows if r.key == ("attention_core",))
    assert row.redundancy is not None
    assert 30 < row.redundancy < 64
    assert row.waste is not None
    assert row.waste > 10
    assert row.gb_s is not None
    assert row.gb_s < 10


def test_the_models_floor_shows_what_the_programs_floor_hides(original):
    """The torch indexer's own floors -> over 100 ms, while the model's indexer needs under 0.1 ms."""
    found = original.roofline("origin")
    row = next(r for r in found.rows if r.key == ("indexer",))
    assert row.floor_ns is not None
    assert row.floor_ns > 100e6
    assert found.model_ns["indexer"] < 0.1e6
    assert sum(found.model_ns.values()) == pytest.approx(18.5e6, rel=0.02)


@pytest.mark.parametrize("name", ["indexer_triton", "split_k_c1"])
def test_floors_hold_where_time_is_what_it_is(name):
    """Other shipped traces -> known for over 98 % of the time, and next to nothing below its floor."""
    found = hta_dsv4.load(hta_dsv4.traces()[name]).roofline("bucket")
    assert found.known_share > 0.98
    assert found.total is not None
    assert found.total.below_ns < 0.005 * found.total.time_ns


def test_a_graph_replay_gets_costs_through_its_companion(graph):
    """Replayed kernels with the eager trace beside them -> floors for nearly all; fp4_moe leads the headroom."""
    found = graph.roofline("bucket")
    assert found.known_share > 0.99
    assert found.rows[0].key == ("fp4_moe",)
    assert found.rows[0].bound == "memory"


def test_a_graph_replay_alone_is_modelled_or_unknown():
    """Without a companion -> Triton kernels are modelled, torch's kernels unknown, with the reason."""
    found = hta_dsv4.load(hta_dsv4.traces()["cuda_graph"]).roofline("role")
    assert 0.5 < found.known_share < 0.99
    norm = next(r for r in found.rows if r.key == ("norm",))
    assert norm.known == "unknown"
    assert any("companion" in s for s in norm.sources)


def test_another_gpus_ceilings_on_request(original):
    """--device B200 on an H200 trace -> its floors, lower than the H200's; a wrong name -> an error."""
    here, there = original.roofline("bucket"), original.roofline("bucket", device="B200")
    assert there.ceilings is not None
    assert there.ceilings.name == "NVIDIA B200"
    assert here.total is not None
    assert there.total is not None
    assert (there.total.floor_ns or 0) < (here.total.floor_ns or 0)
    with pytest.raises(HtaDsv4Error, match="--device V100"):
        original.roofline(device="V100")


def test_the_command_prints_text_json_csv_and_markdown():
    """hta-dsv4 roofline on a shipped trace -> four forms of the same rows."""
    text = cli("roofline", "mhc_fused", "--by", "origin", "--top", "3")
    assert text.returncode == 0, text.stderr
    assert "headroom us" in text.stdout
    assert "model us" in text.stdout
    assert "(14 more)" in text.stdout
    body = json.loads(cli("roofline", "mhc_fused", "--by", "origin", "--json").stdout)
    assert (body["schema"], body["command"], body["by"]) == (2, "roofline", ["origin"])
    (variant,) = body["variants"]
    assert variant["device"]["name"] == "NVIDIA H200"
    assert variant["workload"]["concurrency"] == 32
    assert sum(r["time_ns_per_step"] for r in variant["rows"]) == pytest.approx(
        variant["step"]["time_ns_per_step"], abs=20
    )
    rows = list(csv.DictReader(io.StringIO(cli("roofline", "mhc_fused", "--by", "origin", "--csv").stdout)))
    assert {r["origin"] for r in rows} == {r["origin"] for r in variant["rows"]}
    assert cli("roofline", "mhc_fused", "--md").stdout.count("| --") >= 1


def test_the_command_lists_devices_and_refuses_nothing_to_do():
    """--devices -> the table with sources; no trace -> one line and exit code 2."""
    listed = cli("roofline", "--devices")
    assert "NVIDIA H200 datasheet" in listed.stdout
    assert "4,275*" in listed.stdout
    empty = cli("roofline")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)


def test_early_time_is_rounded_once():
    """fp8_split by kernel, over 8 steps -> each row's early time is the nearest ns to its exact mean."""
    run = hta_dsv4.load(hta_dsv4.traces()["fp8_split"])
    acts = run.counted.activities
    exact = (acts[col.DUR_NS] - acts[col.OWN_NS]).groupby(acts[col.NAME].astype(str)).sum()
    rows = run.roofline("kernel").rows
    assert sum(r.early_ns for r in rows) > 900_000
    for r in rows:
        assert abs(r.early_ns - Fraction(int(exact[r.key[0]]), run.counted.steps)) <= Fraction(1, 2)
