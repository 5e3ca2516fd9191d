"""Ranks judged by own time: early starts make no rank slow and no rank the median; GPU models are said first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.analysis.rank_gpus import mixed_gpus_note, used_gpus
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.present.ranks_grid import overview_grid, spread_grid
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Device, Trace, TraceMeta
from tests.conftest import cli
from tests.frames import kernel, make_trace, marker
from tests.test_parallel_gain import trace_of

H200, B200 = "NVIDIA H200", "NVIDIA B200"


def early_and_late() -> Run:
    """Three ranks of two kernels: sums 200, 150, 160 ns; the first waits 90 of its own, so own 110, 150, 160."""
    rows, events = [], []
    for rank, (second, dur) in enumerate(((10, 100), (100, 50), (100, 60))):
        rows += [
            kernel("flash_attn_fwd", 0, 100, launch=1, rank=rank),
            kernel("void gemm_wo_b()", second, dur, launch=2, rank=rank),
        ]
        events.append(marker("ProfilerStep#1", 0, 5, rank=rank))
    return Run("made", (make_trace(rows, events),), default_rules())


def test_early_starts_make_no_rank_the_slowest_or_the_median():
    """Most sum, least own time -> another rank has most work, and another is the median one; sums stand beside."""
    run = early_and_late()
    table = run.ranks_table("kernel")
    assert run.shares("kernel").median_rank.rank == run.counted.rank == 1
    assert table.slowest == 2
    view = table.overview.set_index("rank")
    assert view["sum_ns"].tolist() == view["work_ns"].tolist() == [200, 150, 160]
    assert view["own_ns"].tolist() == view["own_work_ns"].tolist() == [110, 150, 160]
    assert view["over_median"].tolist() == pytest.approx([110 / 150 - 1, 0, 160 / 150 - 1])


def test_rows_by_key_are_judged_by_own_time_and_keep_their_sums():
    """A kernel of 100 ns recorded, 10 its own -> most on another rank; the table shows own times and says so."""
    table = early_and_late().ranks_table("kernel")
    row = table.table.set_index("kernel").loc["void gemm_wo_b()"]
    assert (row["median_ns"], row["min_ns"], row["max_ns"], row["spread_ns"]) == (60, 50, 100, 50)
    assert [row[f"own_{k}_ns"] for k in ("median", "min", "max", "spread")] == [50, 10, 60, 50]
    assert row["most_rank"] == 2
    assert table.wide.loc["void gemm_wo_b()"].tolist() == [10, 50, 60]
    assert table.wide_sum.loc["void gemm_wo_b()"].tolist() == [100, 50, 60]
    grid = spread_grid(table)
    assert grid.headers[1] == "rank 0 own us/step"
    assert grid.rows[1][1:] == ("0.010", "0.050", "0.060", "0.050", "0.050", "2")


def test_json_keeps_its_sums_and_adds_own_times():
    """A shipped capture with early starts -> each rank's sums as ever, own times beside; rows of both."""
    (one,) = json.loads(cli("ranks", "cuda_graph_c32_tp2", "--json").stdout)["variants"]
    for rank in one["ranks"]:
        assert rank["sum_ns"] - rank["work_ns"] == pytest.approx(rank["communication_ns"], abs=1)
        assert 0 < rank["own_work_ns"] < rank["own_ns"] < rank["sum_ns"]
    for row in one["rows"]:
        assert set(row["each_ns"]) == set(row["own_each_ns"]) == {"0", "1"}
        assert all(row["own_each_ns"][r] <= ns for r, ns in row["each_ns"].items())
        assert (
            row["own_max_ns"] == row["own_each_ns"][str(row["most_rank"])] == max(row["own_each_ns"].values())
        )
    total = sum(sum(row["own_each_ns"].values()) for row in one["rows"])
    assert total == pytest.approx(sum(r["own_ns"] for r in one["ranks"]), abs=len(one["rows"]))


def on(*of_rank: str | None, listed: tuple[str, ...] = ()) -> tuple[Trace, ...]:
    """One trace per rank, on a GPU of that name; of each host the further GPUs ``listed`` have no activity."""
    out = []
    for rank, name in enumerate(of_rank):
        devices = (Device(0, name, {}), *(Device(i + 1, n, {}) for i, n in enumerate(listed)))
        out.append(make_trace([kernel("a", 0, 10, launch=1, rank=rank)], meta=TraceMeta(devices=devices)))
    return tuple(out)


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        (on(H200, H200), None),
        (on(H200, None), None),
        (on(H200, H200, listed=(B200,)), None),
        (on(H200, B200), f"(rank 1 {B200}; rank 0 {H200})"),
        (on(*[H200] * 6, B200), f"(rank 6 {B200}; ranks 0, 1, 2, 3 and 2 more {H200})"),
    ],
)
def test_gpu_models_among_the_ranks(traces, said):
    """One model, one unknown, another GPU in the host unused -> no note; two models -> who ran on which."""
    note = mixed_gpus_note(traces)
    assert len(note) == (said is not None)
    assert said is None or said in note[0]


def test_a_merged_file_tells_its_ranks_gpus_apart():
    """One file of two ranks on devices 0 and 1 of two models -> each rank's own; numbers not listed -> all names."""
    meta = TraceMeta(devices=(Device(0, H200, {}), Device(1, B200, {})))
    rows = [kernel("a", 0, 10, rank=r, **{col.DEVICE: r}) for r in range(2)]
    assert used_gpus(make_trace(rows, meta=meta)) == {0: (H200,), 1: (B200,)}
    assert len(mixed_gpus_note((make_trace(rows, meta=meta),))) == 1
    elsewhere = [kernel("a", 0, 10, rank=r, **{col.DEVICE: 4 + r}) for r in range(2)]
    assert used_gpus(make_trace(elsewhere, meta=meta)) == {0: (B200, H200), 1: (B200, H200)}


def test_ranks_on_two_models_are_said_first(tmp_path: Path):
    """An H200 and a B200 -> the first line under the title of ranks, the first note of JSON and of shares."""
    for rank, gpu in enumerate((H200, B200)):
        kernels = {"flash_attn_fwd": 50, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 30}
        trace_of(tmp_path / f"r{rank}.json", kernels, rank, 2, gpu)
    run = hta_dsv4.load(tmp_path)
    grid = overview_grid(run.ranks_table(), run.collectives())
    assert grid.lead[0].startswith(
        "not comparable: ranks on different GPUs (rank 1 NVIDIA B200; rank 0 NVIDIA H200)"
    )
    assert not [n for n in grid.notes if n in grid.lead]
    lines = cli("ranks", str(tmp_path)).stdout.splitlines()
    assert lines[1].strip().startswith("not comparable: ranks on different GPUs")
    (one,) = json.loads(cli("ranks", str(tmp_path), "--json").stdout)["variants"]
    assert one["notes"][0] == grid.lead[0] == run.shares().notes[0]
