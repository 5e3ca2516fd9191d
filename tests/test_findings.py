"""Findings on kernels, on made launches with numbers worked out by hand, and how findings are ranked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis.costs.geometry import FLASH
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.findings import RULES, Evidence, Finding, find, subject
from hta_dsv4.analysis.findings.casts import casts
from hta_dsv4.analysis.findings.finding import ATTACK, LEAVE, Claim, Recoverable, claim
from hta_dsv4.analysis.findings.floor_headroom import floor_headroom
from hta_dsv4.analysis.findings.fp32_products import fp32_products
from hta_dsv4.analysis.findings.glue_chains import glue_chains
from hta_dsv4.analysis.findings.ranking import rank
from hta_dsv4.analysis.findings.redundant_reads import redundant_reads
from hta_dsv4.analysis.findings.underfilled import best_split, split_count, underfilled
from hta_dsv4.present.findings_grid import finding_grids, findings_grid, title
from hta_dsv4.trace import activities as col
from tests.findings_made import (
    BMM,
    FULL,
    H200,
    INDEXER,
    META,
    PRO6000,
    SMALL,
    W,
    copy_of,
    gpu,
    saved,
    subject_of,
)
from tests.speed import counted_of

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


@pytest.mark.parametrize(
    ("ctas", "most", "capacity", "count", "part"),
    [
        (128, 2, 132, 1, 1.0), (96, 2, 132, 1, 1.0), (128, 2, 396, 2, 0.5),  # one CTA an SM: 256 take two waves
        (32, 5, 132, 4, 0.25), (64, 3, 528, 3, 1 / 3), (2, 16, math.nan, 16, 1 / 16), (132, 1, 132, 1, 1.0),
    ],
)  # fmt: skip
def test_a_split_that_makes_a_second_wave_wins_nothing(ctas, most, capacity, count, part):
    """CTAs, splits worth combining, CTAs held at once -> the splits that shorten it most, and what they leave."""
    assert best_split(ctas, most, capacity) == (count, pytest.approx(part))


def test_a_kernel_of_one_cta_an_sm_that_fills_nearly_all_is_not_split():
    """128 CTAs on 132 SMs: with shared memory for one an SM nothing to split, with room for more it is."""
    kernel = gpu("k", 0, 100_000, 128)
    alone = (*kernel[:3], {**kernel[3], col.SHARED_MEM: 200_000})
    assert not underfilled(subject_of([alone, SMALL]))
    assert underfilled(subject_of([kernel, SMALL]))[0].title.endswith("split into 2, 256 CTAs")


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


def test_casts_without_durations_have_no_bandwidth():
    """A cast that a broken capture lets last 0 ns -> nothing said, of infinite bandwidth least of all."""
    cast = copy_of(1_000_000, "c10::BFloat16", "float", **INDEXER)
    assert not casts(subject_of([("cast", 0, 0, cast), SMALL]))


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


def test_small_findings_promise_no_time_twice_and_the_largest_are_named():
    """70, 50 of the same launch and 20 of another, all small -> 70 + 50 x 0.3 + 20, the largest three in the note."""
    small = [
        made("a", [0], [100_000], [30_000]),
        made("b", [0], [100_000], [50_000]),
        made("c", [1], [20_000], [0]),
    ]
    took = np.array([100_000.0, 20_000.0])
    done = rank("x", small, took, 1, 10_000_000, 10_000_000)
    assert [(r.finding.rule, r.after) for r in done.smaller] == [("a", ()), ("c", ()), ("b", ())]
    assert done.below_ns == pytest.approx(70_000 + 50_000 * 0.3 + 20_000)
    (note,) = (n for n in findings_grid(done).notes if "not listed" in n)
    assert note.startswith("3 findings of less than 1 % of the step each not listed, 105.0 us together")
    assert note.endswith("the largest: a 70.0 us (a), c 20.0 us (c), b 15.0 us (b); --json has all")


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
