"""The decomposition: exact, order-free, and right on numbers worked by hand."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis import names
from hta_dsv4.analysis.counted import counted, step_times
from hta_dsv4.analysis.diff import BY, EFFECTS, chain, decompose
from hta_dsv4.analysis.intervals import extent
from hta_dsv4.analysis.profile import Profile, apportion, profile
from hta_dsv4.analysis.shares import rank_shares
from hta_dsv4.analysis.stats import BEYOND_SPREAD, REAL, STRUCTURAL, UNCHANGED, WITHIN_NOISE, WITHIN_SPREAD
from hta_dsv4.analysis.stats import UNKNOWN as UNSURE
from hta_dsv4.analysis.why import Captured, explain
from hta_dsv4.errors import HtaDsv4Error
from tests.campaign import PUBLISHED, STEPS, TOTAL_NS, campaign
from tests.frames import kernel, make_trace
from tests.variants import given as given_steps
from tests.variants import labelled, table_of, variant

KERNELS = [
    "attention.attention_core.attn",
    "attention.attention_combine.comb",
    "glue.copy.cp",
    "glue.copy.cp_2",
    "gemm",
    "x",
]
steps = st.lists(
    st.lists(st.tuples(st.sampled_from(KERNELS), st.integers(0, 10_000_000)), min_size=1, max_size=8),
    min_size=1, max_size=5,
)  # fmt: skip


def test_count_and_duration_effects_are_the_midpoints():
    """4 launches of 10 us become 6 of 7 us -> count 2 x 8.5 = +17, duration -3 x 5 = -15, together +2."""
    found = decompose(variant("a", [[("k", 10_000)] * 4] * 2), variant("b", [[("k", 7_000)] * 6] * 3))
    (row,) = found.table("kernel").to_dict("records")
    assert (row["count_ns"], row["duration_ns"], row["delta_ns"]) == (17_000, -15_000, 2_000)
    assert (row["appeared_ns"], row["disappeared_ns"]) == (0, 0)


def test_the_pair_with_different_step_counts_is_explained_per_step():
    """4 steps against 3, a renumbered Triton kernel -> fused_mul -30, attn +2, quant +9, -19 us in all."""
    a = variant("a", [[("triton_poi_fused_mul_3", 100_000), ("attn_c", 60_000)]] * 4)
    b = variant("b", [[("triton_poi_fused_mul_7", 70_000), ("attn_c", 62_000), ("quant_e", 9_000)]] * 3)
    found = decompose(a, b)
    rows = {r["kernel"]: r for r in found.table("kernel").to_dict("records")}
    assert rows["triton_poi_fused_mul_7"]["duration_ns"] == -30_000
    assert rows["attn_c"]["duration_ns"] == 2_000
    assert rows["quant_e"]["appeared_ns"] == 9_000
    assert found.change.sum_ns == -19_000
    (renamed,) = [m for m in found.matches if m.base != m.other and m.matched]
    assert (renamed.method, renamed.base) == (names.SUFFIX, ("triton_poi_fused_mul_3",))
    assert 0.9 <= renamed.confidence < 1
    assert [m.name for m in found.extra] == ["quant_e"]
    assert found.unmatched == ()


@settings(max_examples=25, deadline=None)
@given(steps, steps)
def test_every_level_adds_up_to_the_step_to_the_nanosecond(one, two):
    """Any two traces -> at every level rows and effects sum to the step's change, near the exact rational."""
    base, other = variant("a", one), variant("b", two)
    found = decompose(base, other)
    assert found.residual_ns == 0
    for by in [*BY, ("bucket", "role"), ("role", "kernel")]:
        table = found.table(by)
        assert table["delta_ns"].sum() == found.change.own_ns
        assert (table[list(EFFECTS)].sum(axis=1) == table["delta_ns"]).all()
        assert (table["other_ns"] - table["base_ns"] == table["delta_ns"]).all()
        assert table["base_time_ns"].sum() == sum(ns for s in one for _, ns in s)
    for row in found.table("bucket").to_dict("records"):
        assert abs(row["base_ns"] - Fraction(row["base_time_ns"], len(one))) < 2
    wall = found.change
    assert wall.wall_ns == wall.own_ns - wall.streams_ns + wall.idle_ns + wall.wall_rounding_ns
    assert abs(wall.wall_rounding_ns) <= 4
    total = extent(table_of(one)[0])
    run_ns = len(one) * base.per_step.wall_ns + base.per_step.gaps * base.per_step.between_ns
    assert base.per_step.gaps == len(one) - 1
    assert abs(run_ns - total.wall_ns) <= len(one)
    assert abs(base.per_step.busy_ns - Fraction(total.busy_ns, len(one))) <= 1


@settings(max_examples=15, deadline=None)
@given(steps, steps, st.randoms(use_true_random=False))
def test_swapping_the_variants_negates_and_shuffling_changes_nothing(one, two, rng: random.Random):
    """Base and other swapped -> every effect negated; kernels of a step in another order -> the same table."""
    forth, back = (
        decompose(variant("a", one), variant("b", two)),
        decompose(variant("b", two), variant("a", one)),
    )
    a, b = (x.table("role").set_index("role").sort_index() for x in (forth, back))
    assert (a["count_ns"] == -b["count_ns"]).all()
    assert (a["duration_ns"] == -b["duration_ns"]).all()
    assert (a["appeared_ns"] == -b["disappeared_ns"]).all()
    mixed = [rng.sample(list(s), len(s)) for s in one]
    again = decompose(variant("a", mixed), variant("b", two))
    assert again.table("kernel").equals(forth.table("kernel"))


@settings(max_examples=12, deadline=None)
@given(steps)
def test_a_variant_against_itself_gives_zero_and_no_finding(one):
    """The same trace twice -> no change anywhere, no verdict but unchanged, no rewrite."""
    a, b = (Captured(variant(label, one)) for label in ("a", "b"))
    why = explain([a, b], ["bucket"]).pairs[0]
    assert (why.decomposition.cells[["delta_ns", *EFFECTS]] == 0).all(axis=None)
    assert {c.within_run for c in (*why.row_changes, *why.kernel_changes, why.sum_change)} == {UNCHANGED}
    assert (why.decomposition.unmatched, why.decomposition.extra) == ((), ())
    assert why.alignment.rewrites == ()


@settings(max_examples=12, deadline=None)
@given(steps, steps, steps)
def test_deltas_along_a_chain_add_up_to_the_whole(one, two, three):
    """Three variants -> per bucket and role the two changes sum to the change of the ends."""
    pairs, whole = chain([variant("a", one), variant("b", two), variant("c", three)])
    for by in ("bucket", "role"):
        parts = [p.table(by).set_index(by)["delta_ns"] for p in pairs]
        total = parts[0].add(parts[1], fill_value=0)
        ends = whole.table(by).set_index(by)["delta_ns"].reindex(total.index, fill_value=0)
        assert (total == ends).all()


def test_wall_is_explained_by_sum_overlap_and_idle():
    """Two kernels that overlapped by 4 us now run apart with 3 us between -> wall +7: overlap -4, idle +3."""
    profiles = []
    for label, second in (("a", 6_000), ("b", 13_000)):
        trace = make_trace([kernel("a", 0, 10_000), kernel("b", second, 10_000, stream=8)])
        part = counted(labelled(trace), given_steps([0], [0, 0]), 0)
        profiles.append(profile(label, part, step_times(part)))
    change = decompose(*profiles).change
    assert (change.sum_ns, change.overlap_ns, change.idle_ns, change.wall_ns) == (0, -4_000, 3_000, 7_000)
    assert (change.own_ns, change.early_ns, change.streams_ns) == (0, 0, -4_000)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), st.integers(1, 50))
def test_apportioned_integers_are_near_and_add_up(times, parts):
    """Any times over any number of steps -> whole ns within 1 of each quotient, exact in sum."""
    total = sum(times) // parts
    out = apportion(total, times, parts)
    assert sum(out) == total
    assert all(abs(n - Fraction(t, parts)) <= 1 for n, t in zip(out, times, strict=True))


def test_step_times_equal_the_share_table_of_the_campaign():
    """The campaign's trace -> 11 steps of 476.4 ms whose sum, busy and wall are the share table's."""
    made = campaign()
    table, found = labelled(made.trace), given_steps(range(STEPS), made.step_of)
    whole = rank_shares(table, found, 0).extent
    part = counted(table, found, 0)
    times = step_times(part)
    assert (part.steps, whole.sum_ns) == (STEPS, TOTAL_NS)
    assert (times["sum"].sum(), times["busy"].sum(), times["wall"].sum()) == (
        whole.sum_ns,
        whole.busy_ns,
        whole.wall_ns,
    )
    rows = profile("split_k", part, times).atoms.set_index("kernel")
    for name, (launches, ns) in PUBLISHED.items():
        assert (rows.loc[name, "launches"], rows.loc[name, "time_ns"]) == (launches, ns)
        assert abs(rows.loc[name, "step_ns"] - ns / STEPS) < 1


def test_origin_divides_cells_only_where_both_variants_know_it():
    """Origins on one side only -> not divided, with a note; on both -> the moved copy is gone here and new there."""

    def with_origin(label: str, origins: list[str] | None) -> Profile:
        return variant(label, [[("gemm", 5_000), ("cp", 3_000)]] * 2, origins=origins)

    blind = decompose(with_origin("a", ["moe", "indexer"]), with_origin("b", None))
    assert not blind.by_origin
    assert "b: origin unknown" in blind.notes[0]
    assert (blind.cells["delta_ns"] == 0).all()
    moved = decompose(with_origin("a", ["moe", "indexer"]), with_origin("b", ["moe", "attention"]))
    rows = moved.table("origin").set_index("origin")["delta_ns"].to_dict()
    assert rows == {"indexer": -3_000, "attention": 3_000, "moe": 0}


def test_launches_counted_to_another_origin_neither_appear_nor_go():
    """8 launches asked for by a instead of b, none more or fewer -> count effects cancel, nothing appeared or gone."""
    one = variant("a", [[("k", 5_000), ("k", 9_000)] * 4] * 2, origins=["moe", "indexer"] * 4)
    two = variant("b", [[("k", 7_001), ("k", 8_000)] * 4] * 3, origins=["moe", "attention"] * 4)
    found = decompose(one, two)
    assert found.effects == {"count_ns": 0, "duration_ns": 4_004, "appeared_ns": 0, "disappeared_ns": 0}
    rows = found.table("origin").set_index("origin")
    assert (rows["delta_ns"].to_dict()) == {"indexer": -36_000, "attention": 32_000, "moe": 8_004}
    assert rows["count_ns"].to_dict()["moe"] == 0
    assert rows["count_ns"].sum() == 0
    gone = variant("c", [[("k", 7_001), ("other", 8_000)] * 4] * 3, origins=["moe", "attention"] * 4)
    assert decompose(one, gone).effects["disappeared_ns"] == -36_000


def test_merged_names_keep_their_launches():
    """Two autotuned spellings become one -> matched 2:1 by suffix, no appeared or disappeared time."""
    a = variant("a", [[("_tune_me_kernel_1", 5_000), ("_tune_me_kernel_2", 7_000)]])
    b = variant("b", [[("_tune_me_kernel_9", 4_000)] * 2])
    found = decompose(a, b)
    (match,) = found.matches
    assert (len(match.base), len(match.other), match.method) == (2, 1, names.SUFFIX)
    assert found.effects == {"count_ns": 0, "duration_ns": -4_000, "appeared_ns": 0, "disappeared_ns": 0}


@pytest.mark.parametrize(
    ("a", "b", "method"),
    [
        ("triton_poi_fused_mul_3", "triton_poi_fused_mul_17", names.SUFFIX),
        ("_attn_kernel_0d1d2de3", "_attn_kernel", names.SUFFIX),
        ("_attn_kernel.kd", "_attn_kernel", names.SUFFIX),
        ("fused_moe_kernel_3f2a9c7be1", "fused_moe_kernel_77ac01e2d0", names.SUFFIX),
        ("cutlass_80_simt_sgemm_64x128_8x5_tn_align1", "cutlass_80_simt_sgemm_128x64_8x4_tn_align2", names.TILING),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_tst_128x8_64x12_2x1_v_bz_TNT", names.TILING),
        ("void ns::mla_combine_kernel<bf16, 8>(P)", "void ns::mla_combine_kernel<half, 8>(Q)", names.FUNCTION),
        ("void at::native::elementwise_kernel<4, Mul>()", "void at::native::elementwise_kernel<4, Add>()", ""),
        ("sm90_fp8_gemm_impl", "sm90_fp4_gemm_impl", ""),
        ("attn_simt", "attn_mma", ""),
    ],
)  # fmt: skip
def test_names_are_matched_as_far_as_they_say_the_same(a, b, method):
    """One kernel in two spellings -> matched, with the method; two kernels -> apart, carriers never by function."""
    found = names.match_names([(a, "role")], [(b, "role")])
    assert found[0].method == method
    assert len(found) == (1 if method else 2)


def test_names_of_different_roles_are_not_matched():
    """The same stem in two roles -> two kernels; the exact name -> one whatever the role."""
    assert len(names.match_names([("scan_kernel_1", "sampling")], [("scan_kernel_2", "moe")])) == 2
    assert len(names.match_names([("scan_kernel_1", "sampling")], [("scan_kernel_1", "moe")])) == 1


def test_a_trace_without_steps_cannot_be_explained_and_says_so():
    """No marker -> one clear error naming the variant; one variant -> the same."""
    part = counted(labelled(make_trace([kernel("k", 0, 5)])), given_steps([], [-1]), 0)
    with pytest.raises(HtaDsv4Error, match="mma: no steps"):
        profile("mma", part, step_times(part))
    with pytest.raises(HtaDsv4Error, match="two variants"):
        chain([variant("a", [[("k", 5)]])])


def noisy(label: str, scale: float, n: int = 24, seed: int = 0) -> Profile:
    rng = random.Random(seed)
    return variant(
        label,
        [
            [("k", int(scale * rng.gauss(100_000, 2_000))), ("rest", int(rng.gauss(50_000, 500)))]
            for _ in range(n)
        ],
    )


def test_verdicts_tell_a_change_from_noise():
    """Kernel k 10 % faster in 2 % noise, the rest as it was -> k real, rest within noise, across-run unknown."""
    why = explain([Captured(noisy("a", 1.0)), Captured(noisy("b", 0.9, seed=1))], ["kernel"]).pairs[0]
    verdict = dict(zip(why.rows["kernel"], why.row_changes, strict=True))
    assert verdict["k"].within_run == REAL
    assert verdict["k"].interval[1] < 0
    assert verdict["rest"].within_run == WITHIN_NOISE
    assert {c.across_run for c in why.row_changes} == {UNSURE}
    assert any("one capture per variant" in n for n in why.notes)


def test_a_change_smaller_than_repeated_captures_differ_is_not_real():
    """Captures of the base 15 % apart, change 10 % -> real within the run, within noise across runs."""
    base = Captured(noisy("a", 1.0), (noisy("again", 1.15, seed=2).part,))
    why = explain([base, Captured(noisy("b", 0.9, seed=1))], ["kernel"]).pairs[0]
    change = dict(zip(why.rows["kernel"], why.row_changes, strict=True))["k"]
    assert (change.within_run, change.across_run, change.verdict) == (REAL, WITHIN_NOISE, WITHIN_NOISE)
    assert not any("one capture per variant" in n for n in why.notes)


def test_few_steps_give_no_interval_and_say_what_launches_show():
    """3 steps of 30 launches, 20 % slower -> beyond spread with the count of steps, launches differ; z structural."""
    rng = random.Random(3)

    def few(scale: float) -> Profile:
        return variant(
            "v",
            [[("k", int(scale * rng.gauss(10_000, 100))) for _ in range(30)] + [("z", 5)] * (scale > 1)] * 3,
        )

    why = explain([Captured(few(1.0)), Captured(few(1.2))], ["kernel"]).pairs[0]
    change = dict(zip(why.rows["kernel"], why.row_changes, strict=True))
    assert (change["k"].verdict, change["k"].interval) == (BEYOND_SPREAD, None)
    assert "too few steps for an interval: 3" in change["k"].reason
    assert "single launches differ by more than their own variation" in change["k"].reason
    assert (change["z"].verdict, change["z"].interval) == (STRUCTURAL, None)


def judged(one: list[list[tuple[str, int]]], two: list[list[tuple[str, int]]], by: str) -> dict[str, str]:
    why = explain([Captured(variant("a", one)), Captured(variant("b", two))], [by]).pairs[0]
    return dict(zip(why.rows[by], (c.verdict for c in why.row_changes), strict=True))


def test_what_the_launches_themselves_change_is_structural():
    """A kernel gone, one new, one launched twice instead of once, in every step -> structural; the rest is not."""
    one = [[("gone", 900 + i), ("same", 500 + 3 * i), ("more", 300 + i)] for i in range(2)]
    two = [[("new", 700 + i), ("same", 501 + i), ("more", 300 + i), ("more", 310)] for i in range(2)]
    assert judged(one, two, "kernel") == {
        "gone": STRUCTURAL, "new": STRUCTURAL, "more": STRUCTURAL, "same": WITHIN_SPREAD,
    }  # fmt: skip


def test_what_happens_in_some_steps_only_is_not_structural():
    """A kernel in one of two steps, and a count that varies from step to step -> within the spread, not structural."""
    one = [[("k", 100), ("k", 100)], [("k", 100)]]
    two = [[("k", 100), ("k", 100), ("rare", 50)], [("k", 100), ("k", 100)]]
    assert judged(one, two, "kernel") == {"k": WITHIN_SPREAD, "rare": WITHIN_SPREAD}


def test_a_replacement_of_equal_cost_is_judged_by_its_net():
    """1,000 us replaced by 1,002 in steps that scatter by 5 -> each kernel structural, their bucket within spread."""
    one = [[("attention.core.old", 1_000_000 + 5_000 * i)] for i in range(2)]
    two = [[("attention.core.new", 1_002_000 + 5_000 * i)] for i in range(2)]
    assert judged(one, two, "kernel") == {"attention.core.old": STRUCTURAL, "attention.core.new": STRUCTURAL}
    assert judged(one, two, "bucket") == {"attention": WITHIN_SPREAD}
    cheaper = [[("attention.core.new", 400_000 + 5_000 * i)] for i in range(2)]
    assert judged(one, cheaper, "bucket") == {"attention": STRUCTURAL}


def test_many_kernels_are_explained_in_linear_time():
    """30,000 kernels a side, a third of them renamed -> explained within seconds, with nothing left over."""
    sides = [
        [(f"kernel{i:05x}{tail * (i % 3 == 0)}", 1_000 + i % 7) for i in range(30_000)] for tail in ("a", "b")
    ]
    variants = [variant(label, [steps] * 2) for label, steps in zip("xy", sides, strict=True)]
    began = time.process_time()
    found = explain([Captured(v) for v in variants], ("bucket",)).pairs[0]
    assert time.process_time() - began < 20  # measured: 4
    assert found.decomposition.residual_ns == 0
    assert len(found.kernels) >= 30_000
