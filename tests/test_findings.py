"""Rules of findings on made launches with numbers worked out by hand, and how findings are ranked."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import hta_dsv4
from hta_dsv4.analysis.costs.geometry import FLASH
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.devices import ceilings
from hta_dsv4.analysis.findings import RULES, Evidence, Finding, find, subject
from hta_dsv4.analysis.findings.casts import casts
from hta_dsv4.analysis.findings.finding import ATTACK, LEAVE, RECAPTURE, Claim, Recoverable, claim
from hta_dsv4.analysis.findings.floor_headroom import floor_headroom
from hta_dsv4.analysis.findings.fp32_products import fp32_products
from hta_dsv4.analysis.findings.glue_chains import glue_chains
from hta_dsv4.analysis.findings.launch_bound import launch_bound
from hta_dsv4.analysis.findings.ranking import rank
from hta_dsv4.analysis.findings.redundant_reads import redundant_reads
from hta_dsv4.analysis.findings.static_maximum import static_maximum
from hta_dsv4.analysis.findings.trust import missing, profiler_overhead, unknown_share
from hta_dsv4.analysis.findings.underfilled import split_count, underfilled
from hta_dsv4.analysis.launch_bound import NODE_GAP_NS, idle_time
from hta_dsv4.analysis.scaling import Point, scaling
from hta_dsv4.analysis.window import Window
from hta_dsv4.present.findings_grid import finding_grids, findings_grid, title
from hta_dsv4.present.text import print_grid
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Device, TraceMeta
from tests.frames import event_table
from tests.gpu_frames import H200 as LIMITS
from tests.gpu_frames import sized
from tests.speed import counted_of

H200 = ceilings("NVIDIA H200")
PRO6000 = ceilings("NVIDIA RTX PRO 6000 Blackwell Workstation Edition")
META = TraceMeta(devices=(Device(0, "NVIDIA H200", LIMITS),))
FLOATS, PRODUCT = '["float","float","Scalar"]', '["float","float"]'
INDEXER = {col.ORIGIN: "indexer"}
BMM = {
    col.OP: "aten::bmm", col.OP_DTYPES: PRODUCT, col.OP_SHAPES: "[[2,262144,128],[2,128,64]]",
    col.BUCKET: "fp32_simt_gemm", col.ROLE: "gemm_fp32_simt", **INDEXER,
}  # fmt: skip
SMALL = ("small", 900_000_000, 1_000, {})  # so that "a small launch here" is 1,000 ns
W = Workload(FLASH, 2, 4096, 1 << 20)


def subject_of(rows, step=None, w=None, device=H200, **more):
    return subject("made", counted_of(rows, step), w or Workload(), device, META, **more)


def copy_of(n, source="float", target="float", **more):
    return {
        col.OP: "aten::copy_", col.OP_SHAPES: f"[[{n}],[{n}],[]]", col.OP_DTYPES: f'["{target}","{source}","Scalar"]',
        col.BUCKET: "glue", col.ROLE: "copy_cast", **more,
    }  # fmt: skip


def gpu(name, start, dur, ctas, **more):
    row = sized(name, start, dur, ctas)
    size = {c: row[c] for c in (col.GRID_X, col.GRID_Y, col.GRID_Z, col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z,
                                col.REGISTERS, col.SHARED_MEM)}  # fmt: skip
    return name, start, dur, {**size, **more}


def saved(finding):
    r = finding.recoverable
    return (r.low, r.mid, r.high)


# --- cost that follows the static maximum ---------------------------------------------------------------


def test_padding_of_the_index_is_what_could_be_saved():
    """A product over 262,144 columns where 1,024 are real -> all but a 256th of it and a small launch."""
    (found,) = static_maximum(subject_of([("bmm", 0, 2_560_000, BMM), SMALL], w=W))
    assert saved(found) == (2_560_000 - 22_000, 2_560_000 - 11_000, 2_560_000 - 10_000)
    assert found.confidence == 0.95
    assert "1,048,576 tokens, not the 4,096 of a request: indexer 2.6 ms" in found.title
    values = {e.what: e.value for e in found.evidence}
    assert values["real entries of a row"] == 1024
    assert values["of what they compute is padding"] == pytest.approx(100 * 255 / 256)


@pytest.mark.parametrize(
    ("shapes", "more", "fires"),
    [
        ("[[2,4096,8192],[2,4096,8192],[]]", {}, True),  # pages of 64 keys of 128 bytes
        ("[[2,4096],[4096,512],[]]", {}, False),  # the hidden size is 4,096 too
        ("[[681,8448],[]]", {col.ROLE: "index_gather", col.GRID_X: 8192}, True),  # 2 x 4,096 pages gathered
        ("[[681,8448],[]]", {col.ROLE: "index_gather", col.GRID_X: 64}, False),
        ("[[2,262144],[2,262144],[]]", {col.ORIGIN: "moe"}, False),  # another part's business
    ],
)
def test_what_is_as_wide_as_the_static_index(shapes, more, fires):
    """Rows of pages, gathers and look-alikes -> only what the indexer does over the whole width."""
    row = {col.OP: "aten::copy_", col.OP_SHAPES: shapes, col.OP_DTYPES: FLOATS, **INDEXER, **more}
    assert bool(static_maximum(subject_of([("k", 0, 100_000, row), SMALL], w=W))) is fires


def test_a_maximum_that_requests_use_is_no_finding():
    """Requests of 600,000 tokens under a maximum of 1M -> nothing."""
    assert not static_maximum(
        subject_of([("bmm", 0, 2_560_000, BMM), SMALL], w=replace(W, context=600_000.0))
    )


def test_an_unknown_context_is_all_or_nothing():
    """The same shapes without manifest -> the width is guessed, the saving anything up to all but small launches."""
    (found,) = static_maximum(subject_of([("bmm", 0, 2_560_000, BMM), SMALL]))
    assert saved(found) == (0, 2_559_000, 2_559_000)
    assert found.confidence == 0.5
    assert "--context" in found.needs
    narrow = {**BMM, col.OP_SHAPES: "[[2,2048,128],[2,128,64]]"}
    assert not static_maximum(subject_of([("bmm", 0, 2_560_000, narrow), SMALL]))


def test_without_shapes_an_fp32_product_of_the_indexer_is_its_fallback():
    """No op recorded, a SIMT product with origin indexer -> inferred, all or nothing; a bf16 product says nothing."""
    row = {col.BUCKET: "fp32_simt_gemm", **INDEXER}
    (found,) = static_maximum(
        subject_of([("sgemm", 0, 50_000, row), ("copy", 60_000, 40_000, INDEXER), SMALL])
    )
    assert saved(found) == (0, 88_000, 88_000)
    assert found.label == "inferred"
    dense = {col.BUCKET: "dense_gemm", **INDEXER}
    assert not static_maximum(subject_of([("gemm", 0, 50_000, dense), SMALL]))


def attention_rows(c128_ns):
    """One attention launch in a window layer, a c4 and a c128 layer: 128, 640 and 160 valid tokens."""
    more = {col.BUCKET: "attention", col.ROLE: "attention_core", col.ORIGIN: "attention"}
    times = {0: 12_800, 2: 64_000, 3: c128_ns}
    return [
        ("_sparse_mla", 1_000_000 * i, ns, {**more, col.SCOPE: f"layer.{i}/attention"})
        for i, ns in times.items()
    ]


def test_attention_that_takes_as_long_as_its_padding():
    """c128: 160 valid tokens, but 13 times as long as 640 -> it walks the 8,320 padded columns of a 1M maximum."""
    (found,) = static_maximum(subject_of([*attention_rows(832_000), SMALL], w=W))
    values = {e.what: e.value for e in found.evidence}
    (columns,) = (v for k, v in values.items() if k.startswith("columns they walk"))
    assert columns == pytest.approx(8320)
    # 160 of 8,320 columns are left, 16,000 ns, and a small launch
    assert saved(found)[:2] == pytest.approx((832_000 - 34_000, 832_000 - 17_000))
    assert found.launches == 1


@pytest.mark.parametrize("c128_ns", [20_000, 200_000, 3_000_000])
def test_attention_that_does_not_walk_its_padding(c128_ns):
    """Times that the padded width does not explain -> nothing is claimed of the maximum."""
    assert not static_maximum(subject_of([*attention_rows(c128_ns), SMALL], w=W))


def sweep_of(small, large):
    points = [Point(str(x), x, {"moe": np.array([ns, ns])}) for x, ns in ((8192, small), (1 << 20, large))]
    return scaling(points, "max_context", "origin")


def test_a_sweep_measures_what_shapes_do_not_show():
    """An origin grows from 2 to 10 us with the maximum -> 8 us of it are recoverable, by measurement."""
    rows = [("k", 0, 10_000, {col.ORIGIN: "moe"}), SMALL]
    (found,) = static_maximum(subject_of(rows, sweep=sweep_of(2_000, 10_000)))
    assert saved(found) == pytest.approx((8_000, 8_000, 8_000))
    assert found.confidence == 0.98
    assert not static_maximum(subject_of(rows, sweep=sweep_of(10_000, 10_000)))


# --- reads and products ------------------------------------------------------------------------------------


def test_one_program_a_head_repeats_its_reads():
    """A SIMT launch with one program per head -> bytes asked for over unique bytes; the tensor-core form: nothing."""
    more = {col.BUCKET: "attention", col.ROLE: "attention_core", col.ORIGIN: "attention", col.SCOPE: "layer.2/x",
            col.GRID_X: 2, col.GRID_Y: 64, col.GRID_Z: 1}  # fmt: skip
    (found,) = redundant_reads(subject_of([("_sparse_mla_simt", 0, 2_000_000, more), SMALL], w=W))
    query, tokens = 2 * 2 * 64 * 512, 640
    unique = 2 * tokens * 588 + 2 * query + 4 * 2 * 64
    asked = 64 * 2 * (tokens * 584 + 4 * 640) + 2 * query
    values = {e.what: e.value for e in found.evidence}
    assert values["repeats"] == pytest.approx(asked / unique)
    assert values["achieved, of unique bytes"] == pytest.approx(unique / 2_000_000)
    assert saved(found)[1] == pytest.approx(2_000_000 - 2_000_000 * unique / asked - 1_000)
    assert not redundant_reads(
        subject_of([("_sparse_mla_mma", 0, 2_000_000, {**more, col.GRID_Y: 2}), SMALL], w=W)
    )


CAMPAIGN = {**BMM, col.OP_SHAPES: "[[32,262144,128],[32,128,64]]"}


def test_the_campaigns_product_is_left_alone():
    """4.349 ms on an RTX PRO 6000 -> bound by bytes at 1.48 TB/s: bf16 is refuted, with the number."""
    (found,) = fp32_products(subject_of([("sgemm", 0, 4_349_091, CAMPAIGN)], device=PRO6000))
    assert found.kind == LEAVE
    assert "1.48 TB/s" in found.title
    assert "bf16 tensor cores are not the answer" in found.title
    assert found.recoverable is None


def test_a_product_bound_by_arithmetic_gains_until_its_bytes_bind():
    """3.45 ms on an H200 -> from 1.463 ms for its bytes at 1/2, 3/4 of bandwidth, to half of its bytes."""
    (found,) = fp32_products(subject_of([("sgemm", 0, 3_450_000, CAMPAIGN)]))
    moved = 4 * 32 * (262_144 * 128 + 128 * 64 + 262_144 * 64)
    memory = H200.memory_ns(moved - 4 * 32 * 262_144 * 64, 4 * 32 * 262_144 * 64)
    assert memory == pytest.approx(1_462_800, rel=1e-3)
    expected = (3_450_000 - memory / 0.5, 3_450_000 - memory / 0.75, 3_450_000 - memory / 2)
    assert saved(found) == pytest.approx(expected)


def test_a_product_far_from_both_sides_is_not_judged():
    """Ten times as long as bytes and arithmetic need -> nothing said of tensor cores."""
    assert not fp32_products(subject_of([("sgemm", 0, 34_500_000, CAMPAIGN)]))
    assert not fp32_products(subject_of([("sgemm", 0, 3_450_000, CAMPAIGN)], device=None))


# --- fill --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ctas", "sms", "columns", "count"),
    [
        (2, 132, None, 16), (2, 188, None, 16), (32, 188, None, 6), (128, 188, None, 2),  # the campaign's choices
        (2, 132, 128, 4), (2, 132, 640, 16), (100, 132, None, 2), (132, 132, None, 1), (2, 132, 16, 1),
    ],
)  # fmt: skip
def test_split_counts(ctas, sms, columns, count):
    """CTAs, SMs and tokens of a program -> one CTA for each SM, at most 16 splits, 32 tokens each."""
    assert split_count(ctas, sms, columns) == count


def test_two_ctas_on_132_sms_are_split():
    """Tensor-core attention at C=1: 2 CTAs, 100 us, 43 times -> split into 16, what divides shrinks to a 16th."""
    rows = [
        gpu("_sparse_mla_mma_kernel", 200_000 * i, 100_000, 2,
            **{col.BUCKET: "attention", col.ROLE: "attention_core", col.ORIGIN: "attention"})
        for i in range(43)
    ]  # fmt: skip
    s = subject_of([*rows, SMALL])
    (found,) = underfilled(s)
    assert "2 CTAs on 132 SMs" in found.title
    assert found.title.endswith("split into 16, 32 CTAs")
    after = 99_000 / 16 + 1_000 + 1_000
    assert saved(found) == pytest.approx(
        (43 * (100_000 - after) / 2, 43 * (100_000 - after), 43 * (100_000 - 100_000 / 16))
    )
    assert find(s).ranked[0].finding.rule == "underfilled"


def test_tokens_limit_a_split():
    """A window of 128 tokens -> 4 splits of 32, though 66 would fit on the SMs."""
    more = {
        col.BUCKET: "attention",
        col.ROLE: "attention_core",
        col.ORIGIN: "attention",
        col.SCOPE: "layer.0/x",
    }
    (found,) = underfilled(subject_of([gpu("mma", 0, 100_000, 2, **more), SMALL], w=replace(W, batch=1)))
    assert found.title.endswith("split into 4, 8 CTAs")
    assert found.confidence == 0.75


@pytest.mark.parametrize(("ctas", "dur"), [(132, 100_000), (2, 4_000)])
def test_full_or_short_launches_are_not_split(ctas, dur):
    """A CTA for each SM, or 4 us -> nothing to split."""
    assert not underfilled(subject_of([gpu("k", 0, dur, ctas), SMALL]))


# --- chains, casts, floors -----------------------------------------------------------------------------------


def chain(start, n, ns=2_000, **more):
    return [
        ("ew", start + 3_000 * i, ns, {col.BUCKET: "glue", col.ORIGIN: "mhc_pre", **more}) for i in range(n)
    ]


def test_chains_that_repeat_are_fused():
    """Two chains of five 2 us launches without shapes -> 8 launches fewer, two small ones in place of each chain."""
    gap = [("gemm", 50_000, 9_000, {col.BUCKET: "dense_gemm", col.ORIGIN: "mhc_pre"})]
    (found,) = glue_chains(subject_of([*chain(0, 5), *gap, *chain(100_000, 5)]))
    # at least 4 x 660 ns of each chain of 10,000; likely 4,000 are left, at best a launch as its mean
    assert saved(found) == pytest.approx((2 * 2_640, 2 * 6_000, 2 * 8_000))
    values = {e.what: e.value for e in found.evidence}
    assert values["launches saved per step, one left of each chain"] == 8
    assert values["chains per step"] == 2
    assert "shapes" in found.needs


def test_bytes_between_fused_launches_are_counted():
    """Four copies of 1 MB in a row, twice -> what the first reads and the last writes stays, 6 of 8 MB do not."""
    mb = copy_of(250_000, **{col.ORIGIN: "mhc_pre"})
    gap = [("gemm", 50_000, 9_000, {col.BUCKET: "dense_gemm"})]
    (found,) = glue_chains(subject_of([*chain(0, 4, **mb), *gap, *chain(100_000, 4, **mb)]))
    values = {e.what: e.value for e in found.evidence}
    assert values["bytes between them that a fused kernel keeps on chip"] == 2 * (8e6 - 2e6)
    assert found.confidence == 0.8


def test_what_torch_compile_left_is_not_sent_to_torch_compile():
    """Chains of generated kernels, nothing known of who asked -> by hand, and said so; others may try the compiler."""
    gap = [("gemm", 50_000, 9_000, {col.BUCKET: "dense_gemm"})]
    made = {col.ROLE: "inductor_fused", col.ORIGIN: "unknown"}
    (found,) = glue_chains(subject_of([*chain(0, 5, **made), *gap, *chain(100_000, 5, **made)]))
    assert "by hand: these launches are what torch.compile left" in found.action
    assert found.title.startswith("origin not known: 10 glue launches")
    (found,) = glue_chains(subject_of([*chain(0, 5), *gap, *chain(100_000, 5)]))
    assert "or torch.compile over that part" in found.action


@pytest.mark.parametrize(
    "rows",
    [
        chain(0, 8),  # one chain a step does not repeat
        [*chain(0, 3), ("gemm", 50_000, 1_000, {}), *chain(100_000, 3)],  # three are none
        [*chain(0, 4), ("gemm", 50_000, 1_000, {}), *chain(100_000, 2), ("gemm", 150_000, 1_000, {})],
    ],
)
def test_short_or_single_chains_are_left(rows):
    """One chain, or chains of three -> nothing."""
    assert not glue_chains(subject_of(rows))


def test_a_copy_that_changes_the_dtype():
    """bf16 to float, 30 us for 2 + 4 bytes an element -> the write goes, 10 us of reading at most stay."""
    cast = copy_of(1_000_000, "c10::BFloat16", "float", **INDEXER)
    (found,) = casts(subject_of([("cast", 0, 30_000, cast)]))
    assert saved(found) == pytest.approx((20_000, 25_000, 30_000))
    assert "BFloat16 into float" in found.title
    assert not casts(subject_of([("copy", 0, 30_000, copy_of(1_000_000, **INDEXER))]))


FULL = 4275 * 20_000 // 8  # a copy of so many floats takes 20 us at the copy bandwidth of 4,275 GB/s


def test_headroom_above_a_floor():
    """A copy at half its floor's speed -> nothing cautiously, a third likely, half at best."""
    (found,) = floor_headroom(subject_of([("copy", 0, 40_000, copy_of(FULL))]))
    assert saved(found) == pytest.approx((0, 40_000 - 20_000 / 0.75, 20_000), abs=2)
    assert (found.kind, found.confidence) == (ATTACK, 0.6)


def test_a_kernel_at_its_floor_is_left_alone():
    """A copy at 91 % of its floor's speed -> leave it; and with nothing else to find, the table says so."""
    s = subject_of([("copy", 0, 22_000, copy_of(FULL))])
    (found,) = floor_headroom(s)
    assert found.kind == LEAVE
    assert "90.9 % of the floor's speed" in found.title
    everything = find(s)
    assert everything.ranked == ()
    assert "nothing over 1 % of the step found" in findings_grid(everything).notes


def test_short_floors_are_doubted():
    """A floor of 2 us -> the same headroom, half the confidence."""
    (found,) = floor_headroom(subject_of([("copy", 0, 4_000, copy_of(FULL // 10))]))
    assert found.confidence == 0.3


# --- the host, the recording, what lacks -----------------------------------------------------------------------


def late(gap, **timing):
    """Four steps of ten 2 us kernels, each launched as soon as ``gap`` ns after the one before has begun."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + gap * i
        link = {col.LAUNCH_NAME: "cudaLaunchKernel", col.LAUNCH_INDEX: i, col.LAUNCH_DUR_NS: 100}
        rows.append(("k", at, 2_000, {"launch": at - 500, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    return subject(
        "made", part, Workload(), H200, META, idle=idle_time("made", cut, event_table([])), timing=timing
    )


def test_a_host_that_is_late_asks_for_a_graph():
    """9 gaps of 18 us inside a step of 200 us -> with the gaps of a graph it saves up to 158 us, or nothing."""
    (found,) = launch_bound(late(20_000))
    whole = 9 * (18_000 - NODE_GAP_NS)
    # the last step's wall ends with its last kernel, but all of its gaps lie inside it
    assert saved(found) == pytest.approx((0, whole / 2, whole))
    assert (found.kind, found.saves, found.confidence) == (ATTACK, "wall time", 0.4)


def test_an_unprofiled_step_says_what_a_graph_saves():
    """The manifest's unprofiled step, 0.15 ms, its least and most -> each less the step as a graph."""
    s = late(20_000, unprofiled_step_ms=0.15, unprofiled_min_ms=0.14, unprofiled_max_ms=0.16)
    (found,) = launch_bound(s)
    graph = s.idle.graph.graph_step_ns
    assert saved(found) == pytest.approx((140_000 - graph, 150_000 - graph, 160_000 - graph))


def test_time_between_replays_asks_for_no_graph():
    """One graph launch a step of ten kernels, 0.4 ms from step to step -> enqueue ahead, and not a graph once more."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + 400_000 * (i // 10) + 2_500 * (i % 10)
        link = {col.LAUNCH_NAME: "cudaGraphLaunch", col.LAUNCH_INDEX: i // 10, col.LAUNCH_DUR_NS: 5_000}
        rows.append(("k", at, 2_000, {"launch": 1_000_000 + 400_000 * (i // 10) - 9_000, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    times = {"unprofiled_step_ms": 0.4, "unprofiled_min_ms": 0.39, "unprofiled_max_ms": 0.41}
    idle = idle_time("made", cut, event_table([]))
    (found,) = launch_bound(subject("made", part, Workload(), H200, META, idle=idle, timing=times))
    assert (found.kind, found.confidence) == (ATTACK, 0.6)
    assert found.title.startswith("between graph replays: a step takes 400.0 us without the profiler")
    assert "as one CUDA graph" not in found.title + found.action
    assert saved(found) == pytest.approx([t - idle.graph.graph_step_ns for t in (390_000, 400_000, 410_000)])


def test_a_step_that_is_one_graph_is_told_so():
    """Replays 0.02 ms apart, the step without the profiler as long as its replay -> a graph already, none to be won."""
    rows, step = [], []
    for i in range(40):
        at = 1_000_000 + 45_000 * (i // 10) + 2_500 * (i % 10)
        link = {col.LAUNCH_NAME: "cudaGraphLaunch", col.LAUNCH_INDEX: i // 10, col.LAUNCH_DUR_NS: 5_000}
        rows.append(("k", at, 2_000, {"launch": 1_000_000 + 45_000 * (i // 10) - 9_000, **link}))
        step.append(i // 10)
    part = counted_of(rows, step)
    cut = Window(0, 4, part.activities, part.step, part.run[part.step], part.run)
    idle = idle_time("made", cut, event_table([]))
    (found,) = launch_bound(
        subject("made", part, Workload(), H200, META, idle=idle, timing={"unprofiled_step_ms": 0.025})
    )
    assert (found.kind, found.action) == (LEAVE, "leave it")
    assert found.title == (
        "launching: a step is one CUDA graph already; its replay takes 24.5 us, the step without the profiler 25.0 us"
    )


@pytest.mark.parametrize("name", ["cuda_graph", "moe_tuned", "fp8_split"])
def test_shipped_graphs_are_told_no_graph_would_save(name):
    """Captures of one graph launch a step -> no finding says that the GPU waits for the host or a graph saves."""
    found = hta_dsv4.load(hta_dsv4.traces()[name]).findings()
    said = [f.title for f in (*(r.finding for r in found.ranked), *found.leave) if f.rule == "launch_bound"]
    assert len(said) == 1
    assert "one CUDA graph already" in said[0]
    assert "waits for the host" not in said[0]


def test_summary_tables_fit_a_page_and_trifles_are_below_one():
    """Findings of a real trace on a page of 200 columns -> tables of 160; 27.6 ns saved -> <1, none -> 0."""
    found = hta_dsv4.load(hta_dsv4.traces()["fp8_split"]).findings()
    last = found.ranked[-1]
    small = replace(found.ranked[0], remaining=Recoverable(27.6, 2_000.0, 0.0))
    page = io.StringIO()
    tables = [findings_grid(replace(found, ranked=(small, last))), *finding_grids(found)[len(found.ranked) :]]
    for grid in tables:
        print_grid(replace(grid, notes=(), title=""), Console(file=page, width=200))
    assert max(map(len, page.getvalue().splitlines())) <= 160
    assert tables[0].rows[0][2:5] == ("2.00", "<1", "0")


def test_a_host_in_time_is_left_alone():
    """Gaps of 100 ns -> leave launching alone; without idle analysis -> nothing."""
    (found,) = launch_bound(late(2_100))
    assert found.kind == LEAVE
    assert not launch_bound(subject_of([SMALL]))


def test_a_recording_that_slows_what_it_records():
    """182 us recorded, 100 us without the profiler -> not to be trusted for wall time; 170 us -> nothing said."""
    (found,) = profiler_overhead(late(20_000, unprofiled_step_ms=0.1))
    assert found.kind == RECAPTURE
    assert "82 % longer" in found.title
    assert not profiler_overhead(late(20_000, unprofiled_step_ms=0.17))
    assert not profiler_overhead(late(20_000))


def rules_of(found):
    return {f.rule for f in found}


def test_what_a_trace_lacks_is_told_with_its_time():
    """No origin, no shapes, no GPU in the table, a replay without companion -> one sentence each, with the share."""
    known = {col.ORIGIN: "moe", col.OP: "aten::mm"}
    rows = [("a", 0, 90_000, known), ("b", 100_000, 10_000, {col.OP: "aten::mm"})]
    found = missing(subject_of(rows, shapes_recorded=False))
    assert rules_of(found) == {"unknown_origin", "missing_shapes"}
    assert next(f for f in found if f.rule == "unknown_origin").title.startswith("10.0 % of the GPU time")
    assert "unknown_gpu" in rules_of(missing(subject_of(rows, device=None)))
    replay = {col.LAUNCH_NAME: "cudaGraphLaunch"}
    assert "missing_companion" in rules_of(missing(subject_of([("a", 0, 9_000, replay)])))
    whole = [("copy", 0, 40_000, copy_of(FULL, **{col.ORIGIN: "moe"}))]
    assert not missing(subject_of(whole))


@pytest.mark.parametrize(
    ("work", "remedy"),
    [
        (Workload(), "fit no model whose costs are known"),
        (Workload(None, 16, 4096), "fit no model whose costs are known"),
        (Workload(FLASH, 16), "say --context, or capture"),
        (Workload(FLASH), "say --concurrency and --context, or capture"),
        (W, "roofline --by kernel names them"),
    ],
)
def test_the_remedy_for_unknown_costs_asks_for_what_is_missing_and_could_help(work, remedy):
    """Another model, a size not said, all said -> shapes by a companion, that size, the kernels."""
    rows = [("a", 0, 90_000, {col.ORIGIN: "moe", col.OP: "made::up"})]
    (lack,) = (f for f in missing(subject_of(rows, w=work)) if f.rule == "unknown_cost")
    assert remedy in lack.action


def test_kernels_that_no_rule_knows():
    """2 % of the time in bucket unknown -> said; 0.5 % -> not."""
    known = {col.BUCKET: "glue"}
    (found,) = unknown_share(subject_of([("a", 0, 98_000, known), ("odd", 100_000, 2_000, {})]))
    assert found.title.startswith("2.0 % of the GPU time (2.0 us a step)")
    assert not unknown_share(subject_of([("a", 0, 99_500, known), ("odd", 100_000, 500, {})]))


# --- ranking ---------------------------------------------------------------------------------------------------


def made(rule, rows, dur, after, confidence=1.0):
    rows, dur, after = np.array(rows), np.array(dur, dtype=float), np.array(after, dtype=float)
    one = claim(rows, dur, after, after, after)
    return Finding(
        rule, ATTACK, rule, (Evidence("time", float(dur.sum()), "ns"),), recoverable=one.per_step(1), claim=one,
        confidence=confidence,
    )  # fmt: skip


def test_time_is_given_away_once():
    """Two findings on one launch of 100 -> the better takes 90, the other halves the 10 that are left."""
    first, second = made("a", [0], [100], [10]), made("b", [0], [100], [50])
    done = rank("x", [second, first], np.array([100.0]), 1, 100, 100)
    assert [r.finding.rule for r in done.ranked] == ["a", "b"]
    assert [r.remaining.mid for r in done.ranked] == pytest.approx([90, 5])
    assert done.ranked[1].after == (1,)


def test_confidence_decides_and_what_remains_below_the_threshold_is_covered():
    """80 at 0.9 against 100 at 0.5 -> the surer first; the other, of which 1 % is left, is covered by it."""
    sure, vague = made("sure", [0, 1], [100, 0], [20, 0], 0.9), made("vague", [0], [100], [0], 0.5)
    done = rank("x", [vague, sure], np.array([100.0, 9900.0]), 1, 10_000, 10_000, material=0.005)
    assert [r.finding.rule for r in done.ranked] == ["sure"]
    (covered,) = done.covered
    assert (covered.finding.rule, covered.after) == ("vague", (1,))
    assert covered.remaining.mid == pytest.approx(20)


def test_small_findings_are_counted_not_listed():
    """0.5 % of the step -> below the threshold, with its time."""
    done = rank("x", [made("a", [0], [50], [0])], np.array([50.0, 9950.0]), 1, 10_000, 10_000)
    assert (done.ranked, done.below, done.below_ns) == ((), 1, 50)


def test_a_rank_of_an_unknown_share_is_not_called_at_its_floor():
    """A modelled cost at 90 % of the floor's speed -> left alone on one GPU, nothing said of one of several ranks."""
    work = Workload(FLASH, 32, 4096, 1 << 20)
    made = {col.ROLE: "moe_gemm_fp4", col.BUCKET: "fp4_moe", col.ORIGIN: "moe"}

    def rows(ns):
        return [(f"moe_{w}", i * 10**7, ns, made) for i, w in enumerate(("w13", "w2"))]

    floor = subject_of(rows(1), w=work).floors.floor
    near = [(n, at, round(float(f) / 0.9), m) for (n, at, _, m), f in zip(rows(1), floor, strict=True)]
    assert [f.kind for f in floor_headroom(subject_of(near, w=work))] == [LEAVE]
    assert floor_headroom(subject_of(near, w=replace(work, undivided=True))) == []


def test_a_claim_is_between_nothing_and_the_launch():
    """Slower afterwards, faster than nothing, out of order -> nothing saved, all saved, put in order."""
    one = claim(
        np.arange(3),
        np.array([10.0, 10, 10]),
        np.array([20.0, 5, 1]),
        np.array([15.0, -1, 2]),
        np.array([12.0, -5, 4]),
    )
    assert one.high.tolist() == [0, 10, 6]
    assert one.mid.tolist() == [0, 10, 6]
    assert one.low.tolist() == [0, 5, 6]


ROW = st.tuples(
    st.sampled_from(["ew", "_sparse_mla_simt", "gemm", "cast"]), st.integers(1, 200_000), st.integers(1, 300),
    st.sampled_from(["glue", "fp32_simt_gemm", "attention", "unknown"]), st.sampled_from(["indexer", "moe", "unknown"]),
)  # fmt: skip


@settings(max_examples=30)
@given(st.lists(ROW, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing_and_no_time_is_saved_twice(rows, random):
    """Any launches, their rows shuffled -> the same findings, which together save no more than there is."""
    at, made_rows = 0, []
    for name, dur, ctas, bucket, origin in rows:
        more = copy_of(dur * 100, "c10::BFloat16", "float") if name == "cast" else {}
        made_rows.append(gpu(name, at, dur, ctas, **{**more, col.BUCKET: bucket, col.ORIGIN: origin}))
        at += dur + 500
    part = counted_of(made_rows, [i % 2 for i in range(len(rows))] if len(rows) > 1 else None)
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = Counted(0, part.activities.iloc[order], part.step[order], part.run)
    one, other = (find(subject("x", p, W, H200, META), material=0.0) for p in (part, shuffled))
    assert [(title(r.finding), r.remaining) for r in one.ranked] == [
        (title(r.finding), r.remaining) for r in other.ranked
    ]
    assert one == other
    total = sum(r.remaining.mid for r in one.ranked if r.remaining is not None)
    assert total <= float(part.activities[col.DUR_NS].sum()) / part.steps * (1 + 1e-9)
    for left in (r.remaining for r in (*one.ranked, *one.covered)):
        assert left is None or 0 <= left.low <= left.mid <= left.high


def test_without_steps_nothing_is_found_and_the_reason_said():
    """No counted step -> no finding, one note."""
    done = find(subject("x", counted_of([]), Workload(), H200, META))
    assert (done.ranked, done.steps) == ((), 0)
    assert "no steps" in done.notes[0]
    assert finding_grids(done) == []


def test_rules_ask_different_questions():
    """The table of rules -> eleven questions, none twice."""
    assert len({r.asks for r in RULES}) == len({r.apply for r in RULES}) == len(RULES)


def test_a_saving_per_step_counts_what_is_left():
    """Half of a launch already taken -> half of its saving, over two steps."""
    one = Claim(np.array([0]), np.array([10.0]), np.array([20.0]), np.array([40.0]))
    assert one.per_step(2, np.array([0.5])) == Recoverable(2.5, 5, 10)
