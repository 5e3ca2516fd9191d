"""What findings say of the step once it is tuned: the next finding, done and measured; a graph at one request."""

from __future__ import annotations

from functools import cache

import pytest

import hta_dsv4
from hta_dsv4.analysis.fill import CTAS, RESIDENT, UNDERFILLED, launch_fill
from hta_dsv4.analysis.findings.finding import LEAVE
from hta_dsv4.analysis.findings.ranking import Findings
from hta_dsv4.runs.profiler_cost import profiler_notes
from hta_dsv4.runs.run import Run

HOPPER = "_sparse_mla_hopper_kernel"


@cache
def load(name: str) -> Run:
    files = hta_dsv4.traces()
    return hta_dsv4.load(files[name], companion=files[f"{name}_eager"])


@cache
def found(name: str) -> Findings:
    return load(name).findings()


def test_divided_projections_save_what_was_promised() -> None:
    """Tuned puts the FP8 projections first, in fp8_split they are divided -> saved within the range, none to split."""
    first = found("tuned").ranked[0].finding
    assert first.rule == "underfilled"
    assert first.title.startswith("_fp8_block_gemm_kernel: 64 CTAs on 132 SMs")

    def projections(name: str) -> float:
        shares = load(name).shares("bucket").table.set_index("bucket")
        return float(shares.loc["dense_gemm", "time_ns_per_step"])

    saved = projections("tuned") - projections("fp8_split")
    assert first.recoverable is not None
    assert first.recoverable.low < saved < first.recoverable.high
    assert saved == pytest.approx(1.368e6, rel=0.01)
    assert not any(
        "_fp8_block_gemm_kernel" in r.finding.title
        for r in found("fp8_split").ranked
        if r.finding.rule == "underfilled"
    )


def test_one_kernel_in_many_origins_is_one_finding() -> None:
    """fp8_split: FP8 projections of four origins, none large alone -> first, together, and no origin told beside it."""
    done = found("fp8_split")
    first = done.ranked[0]
    assert first.finding.rule == "floor_headroom"
    assert first.finding.title.startswith(
        "_fp8_block_gemm_kernel in 4 origins (o_proj 1.1 ms, qkv_proj 713.1 us, "
    )
    assert "2.5 ms (8.5 % of the GPU time) against a floor of 1.31 ms" in first.finding.title
    assert first.finding.launches == 279
    assert first.share == pytest.approx(0.026, abs=0.001)
    shares = load("fp8_split").shares("kernel").table.set_index("kernel")
    assert first.finding.time_ns <= shares.loc["_fp8_block_gemm_kernel", "time_ns_per_step"]
    told = [r.finding for r in (*done.smaller, *done.covered) if r.finding.rule == "floor_headroom"]
    assert told
    assert not any("_fp8_block_gemm_kernel" in f.kernels for f in told)


def test_small_launches_are_spoken_of() -> None:
    """fp8_split, 7.5 % of the time in launches under 3 us -> too little to list, a note; at one request a finding."""
    done = found("fp8_split")
    assert not any(r.finding.rule == "small_launches" for r in done.ranked)
    (note,) = (n for n in done.notes if n.startswith("launches under 3 us"))
    assert note.startswith(
        "launches under 3 us: 1,210 a step, 2.2 ms (7.5 % of the GPU time; norm_act_quant 543.2 us"
    )
    assert "need 185 us of it" in note
    assert note.endswith("at most 607 fewer, 401 us a step")
    one = next(r for r in found("tuned_c1").ranked if r.finding.rule == "small_launches")
    assert (one.remaining is not None and one.remaining.low) == 0
    assert one.finding.confidence == 0.3
    assert not any(n.startswith("launches under") for n in found("tuned_c1").notes)


def test_the_hopper_form_is_known_for_what_it_is() -> None:
    """Twelve warps with a job each -> attention, one CTA an SM, 128 of 132 SMs busy, a floor by its tokens."""
    run = load("tuned")
    kernels = run.counted.activities
    mine = kernels[kernels["name"].astype(str) == HOPPER]
    assert set(mine["bucket"].astype(str)) == {"attention"}
    assert set(mine["role"].astype(str)) == {"attention_core"}
    assert set(mine["origin"].astype(str)) == {"attention"}
    fill = launch_fill(mine, run.traces[0].meta)
    assert set(fill[RESIDENT]) == {1}
    assert set(fill[CTAS]) == {128}
    assert fill[UNDERFILLED].all()
    assert not any(
        HOPPER in r.finding.title for r in found("tuned").ranked
    )  # 4 of 132 SMs are not worth a split
    attention = next(r.finding for r in found("tuned").ranked if r.finding.title.startswith("attention"))
    assert "640 valid tokens a request, each read once for all 64 heads" in attention.because


def test_a_graph_at_one_request_is_not_asked_to_become_one() -> None:
    """tuned_c1, one launch a step, 10.9 ms against 10.6 inside the graph -> launching is to be left alone."""
    said = [*(r.finding for r in found("tuned_c1").ranked), *found("tuned_c1").leave]
    (launching,) = (f for f in said if f.rule == "launch_bound")
    assert launching.kind == LEAVE
    assert launching.title == (
        "launching: a step is one CUDA graph already; its replay takes 10.6 ms, the step without the profiler 10.9 ms"
    )


def test_what_the_capture_did_not_see_is_not_claimed() -> None:
    """From tuned to fp8_split, 31.2 and 30.9 ms unprofiled, ranges overlap -> said, though own time fell by 1.4 ms."""
    runs = [load(n) for n in ("tuned", "fp8_split")]
    notes = profiler_notes(runs, [r.shares() for r in runs])
    assert any(
        "tuned 31.2 (31.0 to 32.7) and fp8_split 30.9 (30.6 to 32.4) ms a step overlap, in another run of the "
        "unprofiled step: the recorded wall time, from 31.8 to 30.5 ms, orders the recorded steps alone" in n
        for n in notes
    )
    assert "0 %, 0 % of the idle time is the profiler's" in notes[0]
    assert not any("has the profiler's part" in n or "profiler added" in n for n in notes)
