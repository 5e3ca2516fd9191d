"""Several ranks beside one GPU: speed-up, efficiency, what is divided, what it costs; the loss adds up."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.parallel_gain import RECORDED, ParallelGain, Side, parallel_gain
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.parallel_grid import parallel_body, sentences
from hta_dsv4.runs.parallel import parallel_gain as of_runs
from hta_dsv4.trace import activities as col
from tests.builders import KinetoTrace
from tests.conftest import cli
from tests.speed import counted_of

TP2 = "cuda_graph_c32_tp2"


def side(label: str, times: dict[str, int], step_ms: float | None = None, batch: int | None = 32) -> Side:
    """A step of one kernel a bucket, one after the other."""
    at, rows = 0, []
    for bucket, ns in times.items():
        rows.append((bucket, at, ns, {col.BUCKET: bucket}))
        at += ns
    return Side(label, counted_of(rows), None if step_ms is None else step_ms * 1e6, batch)


ONE = side("one", {"fp4_moe": 40_000_000, "mhc": 1_000_000, "dense_gemm": 4_000_000}, 46.0)
TWO = side(
    "two",
    {"fp4_moe": 20_500_000, "mhc": 1_000_000, "dense_gemm": 3_000_000, "communication": 700_000},
    26.0,
)


def test_what_is_divided_and_what_is_not() -> None:
    """Halved, equal, three quarters, new -> divided, whole, partly, new; excess over half; 1.77 times at 88 %."""
    found = parallel_gain(ONE, TWO, 2, communication=(600_000.0, 100_000.0))
    assert {r.key[0]: (r.how, r.excess_ns) for r in found.rows} == {
        "fp4_moe": ("divided", 500_000), "mhc": ("whole", 500_000), "dense_gemm": ("partly", 1_000_000),
        "communication": ("new", 700_000),
    }  # fmt: skip
    assert found.speedup == pytest.approx(46 / 26)
    assert found.efficiency == pytest.approx(46 / 52)
    said = " ".join(sentences(found))
    assert "1.77 times as fast, efficiency 88 %" in said
    assert "696 tok/s on one, 1,231 on 2, 615 per GPU" in said
    assert "600.000 us transfer and 100.000 us waiting" in said
    assert "1.00 dense_gemm (partly divided)" in said


def test_without_unprofiled_steps_recorded_ones_are_taken_and_said() -> None:
    """One side's manifest lacks the step -> walls as recorded, with a note."""
    found = parallel_gain(ONE, side("two", {"fp4_moe": 20_000_000}), 2)
    assert (found.step_from, found.single_step_ns, found.step_ns) == (RECORDED, 45_000_000, 20_000_000)
    assert any("step times are as recorded" in n for n in found.notes)


def test_another_batch_gives_no_speed_up() -> None:
    """32 requests beside 64 -> rows, and no tokens per second."""
    found = parallel_gain(ONE, side("two", {"fp4_moe": 1_000}, 20.0, 64), 2)
    assert found.tokens_per_s(1e6) is None
    assert "another step, so no speed-up" in found.notes[-1]
    assert len(sentences(found)) == 1


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=8),
    st.integers(2, 8),
)
def test_the_loss_adds_up(times: list[tuple[int, int]], ranks: int) -> None:
    """Any times -> rows' excess is the GPU time's, and with the rest the step's loss."""
    one, many = ({"both": 1, **{f"b{i}": t[k] for i, t in enumerate(times)}} for k in (0, 1))
    found = parallel_gain(side("one", one, 1.0), side("many", many, 0.7), ranks)
    assert sum(r.excess_ns for r in found.rows) == pytest.approx(
        found.own_ns - found.single_own_ns / ranks, abs=1e-3
    )
    assert sum(r.excess_ns for r in found.rows) + found.rest_ns == pytest.approx(found.lost_ns, abs=1e-3)


def test_one_rank_and_no_steps_are_one_line() -> None:
    """A single rank, or a trace without steps -> an error with the reason."""
    with pytest.raises(HtaDsv4Error, match="needs a folder of ranks"):
        parallel_gain(ONE, TWO, 1)
    with pytest.raises(HtaDsv4Error, match="empty: no steps"):
        parallel_gain(ONE, Side("empty", counted_of([])), 2)


@pytest.fixture(scope="module")
def shipped() -> ParallelGain:
    files = hta_dsv4.traces()
    return of_runs(hta_dsv4.load(files["cuda_graph"]), hta_dsv4.load(files[TP2]))


def test_two_h200s_beside_one(shipped: ParallelGain) -> None:
    """The shipped graph on two GPUs -> 1.66 times, 83 %; experts halved, mHC, indexer and norms whole, dense partly."""
    assert shipped.speedup == pytest.approx(53.54 / 32.16, abs=0.01)
    how = {r.key[0]: r.how for r in shipped.rows}
    assert how["fp4_moe"] == "divided"
    assert {how[b] for b in ("mhc", "indexer", "norm_act_quant")} == {"whole"}
    assert (how["dense_gemm"], how["communication"]) == ("partly", "new")
    assert shipped.transfer_ns == pytest.approx(713_152, abs=1)
    assert any("_compress_norm_rope_insert_kernel takes about" in n for n in shipped.notes)


def test_the_command_says_it(tmp_path: Any) -> None:
    """``ranks FOLDER --single TRACE`` -> a table first; JSON and CSV of it; --rows single without --single refused."""
    text = cli("ranks", TP2, "--single", "cuda_graph", "--top", "3").stdout
    assert text.startswith(f"{TP2}: 2 ranks beside one GPU (cuda_graph)")
    body = json.loads(cli("ranks", TP2, "--single", "cuda_graph", "--json").stdout)["variants"][0]["single"]
    assert (body["ranks"], body["label"], body["concurrency"]) == (2, "cuda_graph", 32)
    assert body["efficiency"] == pytest.approx(0.83, abs=0.01)
    table = cli("ranks", TP2, "--single", "cuda_graph", "--rows", "single", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {r["key"]: r["how"] for r in rows}["fp4_moe"] == "divided"
    refused = cli("ranks", TP2, "--rows", "single", "--csv")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--single TRACE" in refused.stderr


def trace_of(
    path: Path, kernels: dict[str, int], rank: int = 0, world: int = 1, gpu: str = "NVIDIA H200"
) -> Path:
    """A trace of four steps of these kernels, one after the other, us."""
    trace = KinetoTrace(rank, world, gpu)
    for i in range(4):
        trace.step(i, 999 + 1000 * i, 998)
        at = 1000 + 1000 * i
        for name, dur in kernels.items():
            number = trace.next_id()
            trace.launch(at, 0.5, correlation=number)
            trace.kernel(name, at + 2, dur, correlation=number)
            at += dur + 10
    return trace.write(path)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two ranks with attention and an all-reduce."""
    (tmp_path / "two").mkdir()
    for rank in range(2):
        kernels = {"flash_attn_fwd": 50, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 30}
        trace_of(tmp_path / "two" / f"r{rank}.json", kernels, rank, 2)
    return tmp_path / "two"


@pytest.mark.parametrize(
    ("kernels", "more", "said"),
    [
        ({"void at::native::elementwise_kernel<4>(int)": 100}, {}, "no bucket in common"),
        ({"flash_attn_fwd": 0}, {}, "take 0 ns"),
        ({"flash_attn_fwd": 50}, {"rank": 1, "world": 2}, "is one rank of 2 itself"),
    ],
)
def test_what_is_no_step_on_one_gpu_is_refused(
    tmp_path: Path, two: Path, kernels: dict[str, int], more: dict[str, Any], said: str
) -> None:
    """Nothing in common, no GPU time, itself a rank -> one line that says so, exit 2."""
    refused = cli("ranks", str(two), "--single", str(trace_of(tmp_path / "x.json", kernels, **more)))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert said in refused.stderr


def test_another_gpu_is_no_speed_up(tmp_path: Path, two: Path) -> None:
    """A single GPU of another model, ranks on two models -> not comparable, with the GPUs' names, and no speed-up."""
    single = trace_of(tmp_path / "x.json", {"flash_attn_fwd": 100}, gpu="NVIDIA B200")
    for path, said in (
        (single, "gpu differs: x NVIDIA B200, two NVIDIA H200"),
        (None, "r1.json NVIDIA B200"),
    ):
        if path is None:
            path = trace_of(tmp_path / "x.json", {"flash_attn_fwd": 100})
            trace_of(two / "r1.json", {"flash_attn_fwd": 50}, 1, 2, "NVIDIA B200")
        found = of_runs(hta_dsv4.load(path), hta_dsv4.load(two))
        assert not found.comparable
        assert said in found.notes[0]
        assert parallel_body(found)["speedup"] is None
        assert not any("times as fast" in s for s in sentences(found))
