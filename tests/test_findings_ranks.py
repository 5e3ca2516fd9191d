"""Findings about communication: nothing that is a kernel's, and transfer against wait where all ranks are there."""

from __future__ import annotations

from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.devices import ceilings
from hta_dsv4.analysis.findings import Findings, find, subject
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Device, TraceMeta
from tests.gpu_frames import H200 as LIMITS
from tests.gpu_frames import sized
from tests.rank_traces import RankSim
from tests.speed import counted_of

TP2 = hta_dsv4.traces()["cuda_graph"].parent / "tp2" / "cuda_graph_c32_tp2"
META = TraceMeta(devices=(Device(0, "NVIDIA H200", LIMITS),))


@pytest.fixture(scope="module")
def both() -> Findings:
    return hta_dsv4.load(TP2).findings()


def test_two_ranks_tell_transfer_from_wait(both: Findings) -> None:
    """Two ranks -> one finding: 88 collectives, 713 us transfer, 59 waiting, bound by latency, no saving."""
    (one,) = [r.finding for r in both.ranked if r.finding.rule == "communication"]
    assert "88 collectives a step, 713.2 us transfer (2.3 % of the GPU time) and 59.0 us waiting" in one.title
    assert "87 all_reduce of 256 KiB a step take 7.8 us each: bound by latency" in one.title
    assert one.title.endswith("(at the link's speed 0.667 us)")
    assert one.recoverable is None  # NCCL itself takes 7.1 us with nothing beside it, and one shot 7.8
    assert "nothing over 20 % faster was measured" in one.unknown_because
    assert "713.2 us" in one.unknown_because
    waits = {e.what: e.value for e in one.evidence}
    assert waits["waiting for other ranks"] == pytest.approx(59_019, abs=1)


def test_no_other_rule_speaks_of_collectives(both: Findings) -> None:
    """The same folder -> NCCL kernels in no other finding; FP4 experts held against one rank's half, so far from it."""
    others = [*(r.finding for r in (*both.ranked, *both.covered)), *both.leave, *both.recapture]
    assert not [f.title for f in others if f.rule != "communication" and any("nccl" in k for k in f.kernels)]
    first = both.ranked[0].finding
    assert first.title.startswith("fp4_moe of moe: 20.7 ms")
    assert "floor of 8.36 ms" in first.title


def test_one_rank_alone_asks_for_the_others() -> None:
    """One rank of two -> transfer and wait cannot be told apart, and what to record."""
    found = hta_dsv4.load(TP2 / "cuda_graph_c32_tp2_rank0.trace.json.gz").findings()
    assert "communication" not in {r.finding.rule for r in found.ranked}
    (lack,) = [f for f in found.recapture if f.rule == "missing_ranks"]
    assert "cannot be told apart" in lack.title


def test_a_rank_without_durations_has_nothing_to_divide(tmp_path: Path) -> None:
    """All kernels of the first rank last 0 ns, as of a broken capture -> findings end, none of communication."""
    for number, trace in enumerate(RankSim(2, layers=1).traces()):
        for event in trace.events if number == 0 else ():
            event["dur"] = 0 if event["cat"] == "kernel" else event["dur"]
        trace.write(tmp_path / f"run-TP-{number}.trace.json")
    found = hta_dsv4.load(tmp_path).findings()
    assert "communication" not in {r.finding.rule for r in found.ranked}


def test_a_collective_of_few_ctas_is_not_to_be_split() -> None:
    """22 CTAs of an all-reduce, 90 % of the step -> no split; the same kernel as attention -> one."""

    def rules(bucket: str) -> set[str]:
        more = {
            k: v for k, v in sized("k", 0, 1, 22).items() if k.startswith(("grid", "block", "reg", "shared"))
        }
        rows = [("k", 0, 90_000, {**more, col.BUCKET: bucket}), ("small", 95_000, 1_000, {})]
        found = find(subject("x", counted_of(rows), Workload(), ceilings("H200"), META))
        return {r.finding.rule for r in found.ranked}

    assert "underfilled" in rules("attention")
    assert "underfilled" not in rules("communication")
