"""What the captured steps are, from annotations as both engines write them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hta_dsv4.serving.collect import collect
from hta_dsv4.serving.decode_check import DecodeCheck, check_decode
from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace


def trace_of(labels: list[str], rank: int = 0, world_size: int = 1) -> KinetoTrace:
    t = KinetoTrace(rank=rank, world_size=world_size)
    for i, label in enumerate(labels):
        t.annotation(label, i * 100, 90)
        t.eager("sgemm", 5, at=i * 100 + 10)
    return t


def checked(tmp_path: Path, labels: list[str], concurrency: int, groups: int = 1) -> DecodeCheck:
    return check_decode(read_trace(trace_of(labels).write(tmp_path / "t.json")), concurrency, 0, groups)


VLLM = "execute_context_0(0)_generation_32(32)"
VLLM_DETAILED = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk900sqsq32sqsk900)"


@pytest.mark.parametrize(
    ("labels", "c", "ok", "said"),
    [
        ([VLLM] * 3, 32, True, "all 3 captured steps are decode steps of 32 requests"),
        ([VLLM_DETAILED] * 2, 32, True, "all 2 captured steps are decode steps of 32 requests"),
        (["step[DECODE bs=8]"], 8, True, "the captured step is a decode step of 8 requests"),
        ([VLLM] * 3, 16, False, "0 of 3 captured steps decode 16 requests and nothing else (3 decode of 32)"),
        (
            [VLLM, "execute_context_7(112)_generation_1(1)", "execute_context_4(64)_generation_0(0)"], 32, False,
            "1 of 3 captured steps decode 32 requests and nothing else "
            "(1 decode of 32, 1 prefill, 1 prefill and decode mixed)",
        ),
        (
            [VLLM, "execute_context_0(0)_generation_0(0)"], 32, False,
            "1 of 2 captured steps decode 32 requests and nothing else (1 decode of 32, 1 without requests)",
        ),
        (["step[EXTEND bs=16 toks=16]"], 16, False, "0 of 1 captured steps decode 16 requests"),
        (
            ["step[TARGET_VERIFY bs=4]", "step[DRAFT_EXTEND bs=4]"] * 2, 4, True,
            "all 2 captured steps are decode steps of 4 requests, with 2 of the draft model",
        ),
        ([], 4, False, "annotates no step, so nothing in it tells"),
    ],
)  # fmt: skip
def test_steps_are_told(tmp_path: Path, labels: list[str], c: int, ok: bool, said: str) -> None:
    """Annotations of either engine -> whether all decode C requests, and a sentence with the counts where not."""
    found = checked(tmp_path, labels, c)
    assert found.ok is ok
    assert found.steps == len(labels)
    assert said in found.sentence


@pytest.mark.parametrize(("batch", "ok"), [(8, True), (7, True), (9, False), (30, False)])
def test_data_parallel_ranks_decode_their_part(tmp_path: Path, batch: int, ok: bool) -> None:
    """30 requests over 4 groups -> steps of 7 or of 8 are as asked, others are not."""
    found = checked(tmp_path, [f"step[DECODE bs={batch}]"] * 2, 30, groups=4)
    assert found.ok is ok
    assert "7 or 8 of 30 requests, divided over 4 data-parallel groups" in found.sentence


def test_speculation_is_seen(tmp_path: Path) -> None:
    """Verified drafts -> speculative, plain decode is not."""
    assert checked(tmp_path, ["step[TARGET_VERIFY bs=4]"], 4).speculative
    assert not checked(tmp_path, ["step[DECODE bs=4]"], 4).speculative


@pytest.mark.parametrize(
    "name", ["hta-1-TP-{0}-DP-{0}.trace.json.gz", "hta-1_dp{0}_pp0_tp0_dcp0_ep0_rank0.7{0}.pt.trace.json.gz"]
)
def test_groups_are_counted_by_the_files(tmp_path: Path, name: str) -> None:
    """Two data-parallel ranks' files of either engine -> each is held to half of the requests."""
    for rank in (0, 1):
        trace_of(["step[DECODE bs=16]"] * 2, rank, world_size=2).write(tmp_path / name.format(rank))
    found = collect(tmp_path, frozenset(), "hta-1", 32, timeout_s=20)
    assert [(r.rank, r.check.ok, r.check.groups) for r in found.ranks] == [(0, True, 2), (1, True, 2)]


def test_files_of_before_are_not_taken(tmp_path: Path) -> None:
    """Traces that were in the folder, a frontend's, a merged one and a table -> only the new rank's trace is taken."""
    old = trace_of(["step[DECODE bs=4]"]).write(tmp_path / "hta-0_rank0.1.pt.trace.json.gz")
    for name in (
        "hta-1_h_7.async_llm.9.pt.trace.json.gz",
        "merged-hta-1.trace.json.gz",
        "hta-1_rank0.profiler_out.txt",
    ):
        (tmp_path / name).write_text("not a rank's trace")
    trace_of(["step[DECODE bs=4]"]).write(tmp_path / "hta-1_rank0.2.pt.trace.json.gz")
    began = time.monotonic()
    found = collect(tmp_path, frozenset({old.name}), "hta-1", 4, timeout_s=20)
    assert [r.path.name for r in found.ranks] == ["hta-1_rank0.2.pt.trace.json.gz"]
    assert time.monotonic() - began < 10
