"""Own times and walls of shipped traces, against a few lines on the files' own JSON that use nothing of the package."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import pytest

from hta_dsv4 import load, shipped
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.counted import step_times
from hta_dsv4.runs import comparing
from hta_dsv4.runs.run import Run
from tests.conftest import cli

LAYERS = 43


@cache
def activities(name: str) -> list[dict[str, Any]]:
    """Kernels, copies and sets of a file by start, with integer ``start`` and ``end`` in ns."""
    with gzip.open(shipped.traces()[name]) as file:
        events = json.load(file)["traceEvents"]
    found = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    for e in found:
        e["start"], e["end"] = round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000)
    assert len({(e["args"]["device"], e["args"]["stream"]) for e in found}) == 1
    return sorted(found, key=lambda e: e["start"])


def own(name: str, kernel: str) -> tuple[int, int]:
    """Launches of kernels whose names hold a word, and what they add to the time the one stream is busy, ns."""
    rows = activities(name)
    reach = [0, *accumulate((e["end"] for e in rows), max)]
    mine = [
        max(e["end"] - max(e["start"], r), 0)
        for e, r in zip(rows, reach, strict=False)
        if kernel in e["name"]
    ]
    return len(mine), sum(mine)


@cache
def run(name: str) -> Run:
    return load(shipped.traces()[name], label=name)


@pytest.mark.parametrize(
    ("name", "kernel", "us"),
    [
        ("mma", "_sparse_mla_mma_kernel", 1_705),
        ("split_k", "_sparse_mla_split_k_kernel", 766),
        ("split_k", "_sparse_mla_combine_kernel", 453),
        ("cuda_graph", "_sparse_mla_combine_kernel", 437),
        ("moe_tuned", "_moe_reduce_kernel", 90),
    ],
)
def test_own_time_of_a_kernel_is_that_of_the_file(name, kernel, us):
    """Attention and reduce kernels -> to the ns what the file's own intervals say; per step the documented figure."""
    launches, ns = own(name, kernel)
    row = run(name).shares("kernel").table.set_index("kernel").loc[kernel]
    assert (launches % LAYERS, int(row[sh.LAUNCHES]), int(row[sh.OWN_NS])) == (0, launches, ns)
    assert ns / (launches / LAYERS) / 1e3 == pytest.approx(us, abs=0.5)


def test_attention_falls_from_mma_to_split_k():
    """Mma -> split_k: by the files -29 % of the attention kernels' own time; diff says it to the ns, sums would not."""
    before, after = own("mma", "_sparse_mla"), own("split_k", "_sparse_mla")
    assert (before[0], after[0]) == (2 * LAYERS, 4 * LAYERS)
    assert (after[1] - before[1]) / before[1] == pytest.approx(-0.285, abs=0.001)
    why = comparing.why([run("mma"), run("split_k")], "kernel").pairs[0]
    rows = why.kernels[why.kernels["kernel"].str.contains("_sparse_mla")]
    assert (int(rows["base_time_ns"].sum()), int(rows["other_time_ns"].sum())) == (before[1], after[1])
    summed = sum(e["end"] - e["start"] for e in activities("split_k") if "_sparse_mla" in e["name"])
    assert summed > before[1]


def test_a_steps_wall_ends_where_its_graph_does():
    """Three replays -> each wall is first start to last end of one graph launch; what lies between is no step's."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for e in activities("cuda_graph"):
        steps.setdefault(e["args"]["correlation"], []).append(e)
    spans = [(s[0]["start"], max(e["end"] for e in s)) for s in steps.values()]
    part = run("cuda_graph").counted
    extent = run("cuda_graph").shares().median_rank.extent
    assert len(spans) == part.steps == 3
    assert extent.wall_ns == sum(b - a for a, b in spans)
    assert extent.between_ns == sum(b[0] - a[1] for a, b in pairwise(spans))
    assert extent.span_ns == spans[-1][1] - spans[0][0]


def test_the_table_and_the_explanation_are_of_one_time():
    """cuda_graph and moe_tuned side by side -> changes and shares are of own time, as the explanation."""
    runs = [run("cuda_graph"), run("moe_tuned")]
    table = comparing.compare(runs).table["moe_tuned"]
    rows = comparing.why(runs).pairs[0].rows.set_index("bucket")
    assert ((table["delta_ns_per_step"] - rows["delta_ns"].reindex(table.index)).abs() <= 1).all()
    assert table["own_share"].sum() == pytest.approx(1)
    assert table["delta_share"].sum() == pytest.approx(0, abs=1e-12)
    # summed, the reduce alone grows by 138 us; by itself it is faster
    assert table.loc["moe_other", "delta_ns_per_step"] < 0


def test_json_says_which_time_it_is_of():
    """Diff --json -> schema 2, own; sum = own + early and wall = steps + between in every variant; rows add up."""
    traces = [str(shipped.traces()[n]) for n in ("cuda_graph", "moe_tuned")]
    body = json.loads(cli("diff", *traces, "--json").stdout)
    assert (body["schema"], body["time"], body["explanation"]["time"]) == (2, "own", "own")
    for v in body["variants"]:
        assert v["sum_ns"] == v["own_ns"] + v["early_ns"] == sum(r["time_ns"] for r in v["rows"])
        assert v["own_ns"] == sum(r["own_ns"] for r in v["rows"])
        assert v["wall_ns"] == v["step_wall_ns"] + v["between_ns"]
        assert v["gaps"] == v["steps"] - 1
    (pair,) = body["explanation"]["pairs"]
    for side, v in zip(("base", "other"), body["variants"], strict=True):
        assert abs(pair["per_step"][side]["between_ns"] * v["gaps"] - v["between_ns"]) <= v["gaps"]
    for side, total in pair["over_steps"].items():
        assert total["wall_ns"] == total["sum_ns"] - total["overlap_ns"] + total["idle_ns"]
        assert total["sum_ns"] == total["own_ns"] + total["early_ns"]
        for key, ns in total.items():
            parts = pair["per_step"][side]["gaps"] if key == "between_ns" else pair["steps"][side]
            assert abs(pair["per_step"][side][key] - Fraction(ns, parts)) <= Fraction(1, 2)
    assert sum(r["delta_ns"] for r in pair["rows"]) == pair["per_step"]["delta"]["own_ns"]
    assert pair["wall_change"]["verdict"] == "beyond spread"


def test_text_says_early_where_there_is_some_and_only_there():
    """A table with early starts -> a column of own time, two rows below and a note; one without -> none of them."""
    early, plain = (cli("shares", str(shipped.traces()[n])).stdout for n in ("moe_tuned", "mma_c1"))
    assert "own us/step" in early
    assert "own: sum - early" in early
    assert "note: early: 1,593.2 us a step (4.9 % of the sum, 47 % of it _moe_fp4_gemm_w2_kernel)" in early
    assert "own" not in plain
    assert "early" not in plain


def test_times_that_are_one_stand_in_one_row_below_the_table():
    """One stream -> own = busy (under own) and early = overlap, or sum = busy alone; no row longer than its figures."""
    early, plain = (cli("shares", str(shipped.traces()[n])).stdout for n in ("moe_tuned", "mma_c1"))
    rows = [line.split("  ")[0] for line in early.splitlines()]
    assert [r for r in rows if r in ("own = busy", "early = overlap", "between")] == [
        "own = busy", "early = overlap", "between",
    ]  # fmt: skip
    (header,) = (line for line in early.splitlines() if line.startswith("bucket"))
    (own,) = (line for line in early.splitlines() if line.startswith("own = busy"))
    column = header.index("own us/step") + len("own us/step")
    assert own[:column].split()[-1] == own.split()[3]
    assert len(own[:column]) == column == len(own[:column].rstrip())
    assert "\nsum = busy " in plain
    assert "overlap" not in plain
    (legend,) = (line for line in early.splitlines() if line.startswith("sum: durations added; "))
    assert all(
        f"{name}: " in legend for name in ("own", "busy", "early", "overlap", "wall", "idle", "between")
    )


@pytest.mark.parametrize("by", ["bucket", "role", "bucket,role", "kernel"])
def test_a_row_has_one_figure_in_the_table_and_in_the_explanation(by):
    """split_k and cuda_graph, by any keys -> each row's own time per step is the explanation's, to the nanosecond."""
    runs = [run("split_k"), run("cuda_graph")]
    compared, pair = comparing.compare(runs, by), comparing.why(runs, by).pairs[0]
    rows = pair.rows.set_index(list(compared.by))
    for label, column, step in zip(
        ("split_k", "cuda_graph"), ("base_ns", "other_ns"), pair_steps(pair), strict=True
    ):
        own = compared.table[label]["own_ns_per_step"].dropna().astype("int64")
        shared = own.index.intersection(rows.index)
        assert len(shared) > 5
        assert (own[shared] == rows.loc[shared, column]).all()
        assert own.sum() == step


def pair_steps(pair):
    """Own time of a step, base and other."""
    return pair.decomposition.base.per_step.own_ns, pair.decomposition.other.per_step.own_ns


@pytest.mark.parametrize("name", ["tuned", "fp8_split", "cuda_graph", "split_k"])
def test_the_rows_below_a_table_add_up_as_printed(name):
    """Sum, own, early, wall, idle as printed -> the nearest 0.001 us; they add up, or it says that each is rounded."""
    done = cli("shares", str(shipped.traces()[name])).stdout
    lines = done.splitlines()
    foot = next(i for i, line in enumerate(lines) if line.startswith("sum "))
    rows = (line.replace(" = busy", "").replace(" = overlap", "").split() for line in lines[foot : foot + 5])
    ns = {row[0]: round(1000 * float(row[1].replace(",", ""))) for row in rows}
    times = step_times(load(shipped.traces()[name]).counted)
    assert {
        k: abs(v - Fraction(int(times[k].sum()), len(times))) <= Fraction(1, 2) for k, v in ns.items()
    } == (dict.fromkeys(ns, True))
    exact = (ns["sum"], ns["wall"]) == (ns["own"] + ns["early"], ns["own"] + ns["idle"])
    assert exact != ("each mean is rounded once" in done)


def test_idle_is_the_same_in_every_command_and_a_diff_adds_up():
    """999.677375 us idle a step -> 999.677 in idle, shares and diff, with what rounding leaves over in a row."""
    files = [str(shipped.traces()[n]) for n in ("fp8_split", "moe_tuned")]

    def cells(*arguments, row, at):
        lines = [line for line in cli(*arguments).stdout.splitlines() if line.startswith(row)]
        return lines[at].removeprefix(row).split()

    assert cells("idle", files[0], row="idle ", at=1)[0] == "999.677"
    assert cells("shares", files[0], row="idle ", at=0)[0] == "999.677"
    assert cells("diff", *files, row="idle ", at=0)[0] == "999.677"
    rows = {r: cells("diff", *files, "--full", row=r, at=-1)[:3]
            for r in ("= own ", "- overlap ", "+ idle ", "+ rounding ", "= wall ")}  # fmt: skip
    assert rows["+ idle "] == ["999.677", "906.854", "-92.823"]
    assert rows["+ rounding "] == ["0.001", "0.000", "-0.001"]
    own, overlap, *more, wall = ([round(1000 * float(c.replace(",", ""))) for c in r] for r in rows.values())
    assert [a - b + sum(c) for a, b, *c in zip(own, overlap, *more, strict=True)] == wall
    said = next(line for line in cli("diff", *files).stdout.splitlines() if line.startswith("  wall "))
    assert said.endswith("= own +1,482.294, overlap 0, idle -92.823, rounding -0.001")
