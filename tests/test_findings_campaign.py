"""Findings on the shipped campaign: what is first, what it would save against what it did save, and the command."""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache

import pytest

import hta_dsv4
from hta_dsv4.analysis.change import parse_set, remove, select
from hta_dsv4.analysis.findings import Findings
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.cli.findings_log import append, entry
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.findings import findings, sweeps
from hta_dsv4.runs.run import Run
from tests.campaign import campaign
from tests.conftest import cli

TRACES = [
    "original",
    "mma",
    "split_k",
    "indexer_triton",
    "mhc_fused",
    "cuda_graph",
    "mma_c1",
    "split_k_c1",
    "split_k_8k",
]
COMPANIONS = {"cuda_graph": "cuda_graph_eager", "moe_tuned": "moe_tuned_eager"}


@cache
def load(name: str) -> Run:
    files = hta_dsv4.traces()
    beside = COMPANIONS.get(name)
    return hta_dsv4.load(files[name], companion=None if beside is None else files[beside])


@cache
def found(name: str) -> Findings:
    return load(name).findings()


def gpu_ms(name: str) -> float:
    """GPU time per step as the trace has it."""
    return found(name).own_ns / 1e6


def of(name: str, rule: str, part: str = ""):
    """The ranked finding of a rule whose title holds ``part``."""
    return next(r for r in found(name).ranked if r.finding.rule == rule and part in r.finding.title)


# --- what the campaign should have been told ----------------------------------------------------------------------


def test_the_original_is_told_of_its_static_maximum_first():
    """The original -> first what follows the maximum context, indexer and attention; then the redundant reads."""
    first, second = found("original").ranked[:2]
    assert first.finding.rule == "static_maximum"
    assert (
        "1,048,576 tokens, not the 3,840 of a request: indexer 301 ms, attention 636 ms"
        in first.finding.title
    )
    assert second.finding.rule == "redundant_reads"
    assert second.after == (1,)
    values = {e.what: e.value for e in second.finding.evidence}
    assert values["repeats"] == pytest.approx(32.8, abs=0.05)
    assert values["achieved, of unique bytes"] < 1 < 30 < values["asked for (caches serve the repeats)"]


def test_neither_bf16_nor_fusing_comes_first_in_the_indexer():
    """The first three variants -> bf16 and fusing in the indexer are taken by the first finding, all but 2 %."""
    for name in ("original", "mma", "split_k"):
        covered = {r.finding.title.split(":")[0].split(",")[0]: r for r in found(name).covered}
        for title in ("FP32 product of indexer", "indexer"):
            assert 1 in covered[title].after
            assert covered[title].remaining.mid < 0.02 * covered[title].finding.recoverable.mid
        assert not any("product of indexer" in r.finding.title for r in found(name).ranked)


@pytest.mark.parametrize("name", ["mma", "split_k"])
def test_with_fast_attention_the_indexer_is_first(name):
    """mma, split_k -> the first finding is the indexer's static width and nothing else."""
    first = found(name).ranked[0]
    assert first.finding.rule == "static_maximum"
    assert first.finding.title.endswith("of a request: indexer 301 ms")


def test_at_one_request_launching_comes_first():
    """split_k_c1: 15,598 launches for 39 ms of GPU time -> a graph first, then the hyper-connections' chains."""
    rules = [r.finding.rule for r in found("split_k_c1").ranked]
    assert rules[:3] == ["launch_bound", "glue_chains", "static_maximum"]
    assert "11,868 glue launches" in of("split_k_c1", "glue_chains", "mhc_pre").finding.title


def test_mma_at_one_request_is_underfilled_and_the_split_is_counted():
    """Mma at C=1 -> its attention holds 1 SM of 132; split into 16, at least half of its time back."""
    worst = of("mma_c1", "underfilled", "_sparse_mla_mma_kernel")
    assert "1 CTAs on 132 SMs" in worst.finding.title
    assert worst.finding.title.endswith("split into 16, 16 CTAs")
    values = {e.what: e.value for e in worst.finding.evidence}
    assert values["CTAs of a launch"] == 1
    assert values["splits suggested"] == 16
    # What the split brought: the same step, captured with it.
    took = load("mma_c1").counted.activities
    split = load("split_k_c1").counted.activities

    def attention(table):
        return table.loc[table["bucket"] == "attention", "dur_ns"].sum() / 2

    saved = attention(took) - attention(split)
    assert worst.finding.recoverable.low <= saved <= worst.finding.recoverable.high


def test_what_is_left_at_the_end_stands_with_its_floors():
    """cuda_graph -> FP4 MoE first, 40 ms against 16.7; launching to be left alone; little else."""
    done = found("cuda_graph")
    first = done.ranked[0].finding
    assert first.title.startswith(
        "fp4_moe of moe: 40.2 ms (78.3 % of the GPU time) against a floor of 16.7 ms"
    )
    assert [f.rule for f in done.leave] == ["launch_bound"]
    assert all(r.share < 0.05 for r in done.ranked[1:])
    assert any("needs at least 19.6 ms" in n for n in done.notes)


def test_once_the_first_finding_is_done_little_is_left():
    """moe_tuned -> the time saved lies in what was promised, MoE is listed no more, and no finding is over 6 %."""
    promised = found("cuda_graph").ranked[0].finding.recoverable
    before, after = (load(n).counted.activities for n in ("cuda_graph", "moe_tuned"))

    def moe(table, steps):
        return table.loc[table["bucket"] == "fp4_moe", "dur_ns"].sum() / steps

    saved = moe(before, 3) - moe(after, 8)
    assert promised.low <= saved <= promised.high
    done = found("moe_tuned")
    assert all("fp4_moe" not in r.finding.title for r in done.ranked)
    assert all(r.share < 0.06 for r in done.ranked)
    (attention,) = (r.finding for r in done.ranked if r.finding.title.startswith("attention"))
    assert (
        "attention of attention, 43 of its 86 launches:" in attention.title
    )  # combines have a launch's floor
    assert "640 valid tokens a request" in attention.because  # those of the 21 c4 layers: most of the floor


def test_without_its_companion_a_graph_is_to_be_recorded_again():
    """cuda_graph alone -> part of its time has no origin, and the remedy is a companion."""
    alone = hta_dsv4.load(hta_dsv4.traces()["cuda_graph"]).findings()
    (lack,) = (f for f in alone.recapture if f.rule == "missing_companion")
    assert "--companion" in lack.action
    assert not any(f.rule == "missing_companion" for f in found("cuda_graph").recapture)


# --- predicted against measured ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "rule", "part"),
    [
        ("split_k", "indexer_triton", "static_maximum", ""),
        ("split_k", "split_k_8k", "static_maximum", ""),
        ("indexer_triton", "mhc_fused", "glue_chains", "mhc_pre"),
        ("cuda_graph", "moe_tuned", "floor_headroom", "fp4_moe"),
    ],
)
def test_what_a_finding_promised_was_saved(before, after, rule, part):
    """A finding, and the trace in which just that was done -> GPU time saved as promised, within 15 % of it."""
    promised = of(before, rule, part).finding.recoverable
    extra = of(before, rule, "mhc_post").finding.recoverable.mid if part == "mhc_pre" else 0
    measured = (gpu_ms(before) - gpu_ms(after)) * 1e6
    assert promised.mid + extra == pytest.approx(measured, rel=0.15)


def test_the_simt_kernels_promise():
    """From original to mma, attention from 702 to 1.7 ms -> inside what the redundant reads alone promised."""
    promised = of("original", "redundant_reads").finding.recoverable
    before, after = (
        load(n).shares("role").table.set_index("role").loc["attention_core", "time_ns_per_step"]
        for n in ("original", "mma")
    )
    measured = before - after
    assert promised.low < measured < promised.high


def test_what_bf16_saved():
    """split_k to bf16_gemm: 13 % -> inside the range of the FP32 finding, which another finding had taken."""
    (bf16,) = (r.finding for r in found("split_k").covered if r.finding.rule == "fp32_products")
    measured = (gpu_ms("split_k") - gpu_ms("bf16_gemm")) * 1e6
    assert measured == pytest.approx(0.13 * found("split_k").own_ns, rel=0.01)
    assert bf16.recoverable.low < measured < bf16.recoverable.high
    assert measured < found("split_k").ranked[0].remaining.mid / 6


def test_a_graph_saved_what_was_promised():
    """mhc_fused to cuda_graph, unprofiled 221.7 to 53.5 ms -> 168 ms, as promised."""
    graph = of("mhc_fused", "launch_bound").finding
    assert graph.recoverable.mid == pytest.approx(168.2e6, rel=0.01)


# --- true of every shipped trace -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACES)
def test_every_finding_rests_on_a_number_and_says_what_to_do(name):
    """Every shipped trace -> findings with a measured number, a check, an action, a stop rule; times that add up."""
    done = found(name)
    for f in (*(r.finding for r in (*done.ranked, *done.covered)), *done.leave, *done.recapture):
        assert any(e.label == "measured" and e.value == e.value for e in f.evidence), f.title
        assert re.search(r"\d", f.title)
        assert f.check
        assert f.action
        assert f.stop
        assert 0 < f.confidence <= 1
    known = [r for r in done.ranked if r.remaining is not None]
    assert all(r.finding.unknown_because for r in done.ranked if r not in known)
    for r in known:
        assert 0 <= r.remaining.low <= r.remaining.mid <= r.remaining.high
        assert r.share >= done.material
    gpu = sum(r.remaining.mid for r in known if r.finding.saves == "GPU time")
    assert gpu < done.own_ns


@pytest.mark.parametrize("name", ["original", "split_k_c1", "cuda_graph"])
def test_the_checks_can_be_run(name):
    """``hta-dsv4 whatif`` in a finding's check -> selectors that match the trace."""
    tried = 0
    for r in (*found(name).ranked, *found(name).covered):
        for option, text in re.findall(r'whatif TRACE --(set|remove) "([^"]+)"', r.finding.check):
            change = parse_set(text) if option == "set" else remove(text)
            assert select(load(name).counted.activities, change.selector).rows.any()
            tried += 1
    assert tried >= 3


def test_a_variant_against_itself_is_no_sweep():
    """The same trace twice, or variants that differ in more -> no sweep; three maxima -> the largest is told."""
    twin = replace(load("split_k"), label="again")
    assert sweeps([load("split_k"), twin]) == {}
    assert sweeps([load("mma"), load("split_k_8k")]) == {}
    runs = [load("split_k_8k"), load("split_k")]
    assert set(sweeps(runs)) == {1}
    small, large = findings(runs)
    assert large.ranked[0].finding.confidence == 0.98
    assert any("growth from 8,192 to 1,048,576" in e.what for e in large.ranked[0].finding.evidence)
    assert small == found("split_k_8k")


def test_the_published_profile_without_shapes_or_gpu():
    """Published: 231 = 11 x 21 FP32 products -> first the indexer's fallback, inferred, all or nothing."""
    run = Run("published", (campaign().trace,), default_rules())
    first = run.findings().ranked[0].finding
    assert (first.rule, first.label, first.confidence) == ("static_maximum", "inferred", 0.5)
    values = {e.what: e.value for e in first.evidence}
    assert values["such products per step, one in each c4 layer"] == 21


# --- the command and the log --------------------------------------------------------------------------------------


def test_the_command_prints_blocks_and_json():
    """``findings split_k`` -> table, blocks, what is covered; --json, the same first finding; --csv, a line each."""
    text = cli("findings", "split_k", "--top", "1")
    assert text.returncode == 0
    assert "1. 80.6 % of the GPU time follows the static maximum" in text.stdout
    assert "(3 more)" in text.stdout
    assert "looks large, but findings above take it" in text.stdout
    document = json.loads(cli("findings", "split_k", "--json").stdout)
    assert (document["schema"], document["command"]) == (2, "findings")
    first = document["variants"][0]["findings"][0]
    assert first["rule"] == "static_maximum"
    assert first["remaining_ns"]["low"] < first["remaining_ns"]["mid"] < first["remaining_ns"]["high"]
    lines = cli("findings", "split_k", "--csv").stdout.splitlines()
    places = document["variants"][0]
    assert len(lines) == 1 + sum(len(places[k]) for k in ("findings", "covered", "leave", "recapture"))


def test_the_log_only_grows(tmp_path):
    """--append twice -> what stood there stays byte for byte, two dated entries with the trace's hash follow."""
    log = tmp_path / "PROFILE_FINDINGS.md"
    log.write_bytes(b"# mine\nno newline at the end")
    assert cli("findings", "cuda_graph", "--append", str(log), "--top", "1").returncode == 0
    once = log.read_bytes()
    assert once.startswith(b"# mine\nno newline at the end\n\n## ")
    assert cli("findings", "cuda_graph", "--append", str(log), "--top", "1").returncode == 0
    assert log.read_bytes().startswith(once)
    assert re.findall(r"^## \d{4}-\d\d-\d\d \d\d:\d\d UTC: cuda_graph$", log.read_text(), re.M).__len__() == 2
    assert log.read_text().count("`cuda_graph.trace.json.gz` (sha256 ") == 2


def test_a_log_that_cannot_be_written_is_one_line(tmp_path):
    """A folder as log, or a folder that is missing -> exit 2 and one line."""
    for path in (tmp_path, tmp_path / "none" / "log.md"):
        done = cli("findings", "cuda_graph", "--append", str(path))
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert str(path) in done.stderr


def test_entries_written_at_once_do_not_mix(tmp_path):
    """Eight writers of one log -> every entry is there whole."""
    log = tmp_path / "log.md"
    texts = [f"## {i}\n\n" + f"{i}" * 50_000 for i in range(8)]
    threads = [threading.Thread(target=append, args=(log, t)) for t in texts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(f"{x}\n" in log.read_text() for x in texts)
    assert len(log.read_text()) == sum(len(t) + 1 for t in texts) + 7


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    """A write that ends half way -> the error, and the file of before."""
    log = tmp_path / "log.md"
    append(log, "## one")
    before = log.read_bytes()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[: len(data) // 2]))
    with pytest.raises(HtaDsv4Error, match="it is as it was"):
        append(log, "## two " + "x" * 1000)
    assert log.read_bytes() == before


def test_an_entry_names_date_trace_and_findings():
    """One variant -> heading, file with hash, table, blocks."""
    run = load("cuda_graph")
    when = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)
    text = entry(found("cuda_graph"), [t.path for t in run.traces], 1, when)
    assert text.startswith(
        "## 2026-01-02 03:04 UTC: cuda_graph\n\nTrace: `cuda_graph.trace.json.gz` (sha256 "
    )
    assert "**1. fp4\\_moe of moe" in text
