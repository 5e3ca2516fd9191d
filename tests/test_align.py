"""Aligned launch sequences: fusions, splits and their savings, with scopes and without."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis import align as al
from hta_dsv4.analysis.names import match_names
from hta_dsv4.analysis.sequences import step_sequence
from hta_dsv4.trace.subsequence import common_subsequence
from tests.variants import Step, part_of


def aligned(
    base: list[Step], other: list[Step], scopes: tuple[list[str], list[str]] | None = None
) -> al.Alignment:
    """The alignment of two variants given as steps."""
    a, b = (
        step_sequence(part_of(s, scopes=scopes[i] if scopes else None)) for i, s in enumerate((base, other))
    )
    kernels = [dict(zip(x.names, x.roles, strict=True)).items() for x in (a, b)]
    return al.align(a, b, match_names(*kernels))


def brute_force(a: list[int], b: list[int]) -> int:
    """Length of the longest common subsequence, by the textbook table."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row[:]
        for j, y in enumerate(b):
            row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
    return row[-1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=24), st.lists(st.integers(0, 4), max_size=24))
def test_the_common_subsequence_is_one_and_is_longest(a, b):
    """Any two sequences -> increasing pairs of equal tokens, as many as the textbook table says."""
    pairs = common_subsequence(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in pairwise(pairs))
    assert len(pairs) == brute_force(a, b)


def test_none_equals_nothing():
    """Tokens that are None on both sides -> never paired."""
    assert common_subsequence([None, 1, None], [None, 1, None]) == [(1, 1)]


LAYER = [
    ("norm", 5_000),
    ("mul", 3_000),
    ("add", 3_000),
    ("cast", 3_000),
    ("scale", 3_000),
    ("clamp", 3_000),
    ("gemm", 50_000),
]
FUSED = [("norm", 5_000), ("triton_fused_mul_add_cast_scale_clamp", 4_000), ("gemm", 50_000)]


def test_five_kernels_that_became_one_are_a_fusion():
    """43 layers of mul, add, cast, scale, clamp -> one fused kernel: 4 launches and 11 us saved, 43 times a step."""
    (found,) = aligned([LAYER * 43] * 3, [FUSED * 43] * 3).rewrites
    assert (found.kind, len(found.base), len(found.other), found.times) == (al.FUSED, 5, 1, 43)
    assert (found.saved_launches, found.saved_ns) == (4 * 43, 11_000 * 43)
    assert found.confidence == 0.9


ATTN, PARTIAL, COMBINE = (
    "attention.attention_core.tiled",
    "attention.attention_core.split",
    "attention.attention_combine.merge",
)


@pytest.mark.parametrize("first", [PARTIAL, ATTN])
def test_one_kernel_that_became_split_and_combine_is_a_split(first):
    """Attention -> split + combine, under a new name or the old one -> a split, its own cost in ns."""
    base = [[("gemm", 9_000), (ATTN, 60_000), ("add", 2_000)] * 20] * 2
    other = [[("gemm", 9_000), (first, 20_000), (COMBINE, 3_000), ("add", 2_000)] * 20] * 2
    (found,) = aligned(base, other).rewrites
    assert (found.kind, found.base, found.other) == (al.SPLIT, (ATTN,), (first, COMBINE))
    assert (found.times, found.saved_launches, found.saved_ns) == (20, -20, 37_000 * 20)


def test_layers_are_aligned_with_layers_where_scopes_say_so():
    """Layer 1 loses its mul, layer 2 keeps it, all kernels alike -> with scopes the loss is placed in layer 1."""
    scopes = [f"decode > layer.{i}/ffn" for i in (0, 1, 2) for _ in range(2)]
    base = [[("mul", 1_000), ("mul", 1_000)] * 3]
    other = [[("mul", 1_000)] * 5]
    with_scopes = aligned(base, other, (scopes, [scopes[i] for i in (0, 1, 2, 4, 5)]))
    (found,) = with_scopes.rewrites
    assert with_scopes.by_layer
    assert (found.kind, found.layers, found.times) == (al.REMOVED, ("1",), 1)
    assert not aligned(base, other).by_layer


launches = st.tuples(st.sampled_from(["a", "b", "c_1", "c_2", ATTN, COMBINE]), st.integers(1, 9_999))
steps = st.lists(st.lists(launches, min_size=1, max_size=10), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(steps, steps)
def test_rewrites_and_kept_kernels_add_up_to_the_difference(base, other):
    """Any two variants -> times and launches of the rewrites and of what was kept sum to the steps' difference."""
    found = aligned(base, other)
    gone = sum(r.base_ns - r.other_ns for r in found.rewrites)
    assert found.kept_ns - gone == int(found.other.dur_ns.sum() - found.base.dur_ns.sum())
    saved = sum(r.saved_launches for r in found.rewrites)
    assert saved == len(found.base.names) - len(found.other.names)


def test_the_typical_step_is_the_most_frequent_and_its_times_are_means():
    """Steps with 2, 2 and 3 kernels -> the two-kernel sequence, durations averaged over its two steps."""
    found = step_sequence(
        part_of([[("a", 10), ("b", 21)], [("a", 20), ("b", 30)], [("a", 99), ("b", 1), ("b", 1)]])
    )
    assert (found.names, found.alike, found.steps) == (("a", "b"), 2, 3)
    assert found.dur_ns.tolist() in ([15, 25], [15, 26])
    assert int(found.dur_ns.sum()) == 40


def test_a_large_step_is_aligned_in_a_few_seconds():
    """8,000 against 6,000 kernels of 60 names in random order -> under 5 s."""
    rng = random.Random(0)
    base, other = (
        [(f"kernel{chr(97 + rng.randrange(26))}{chr(97 + rng.randrange(3))}", 1_000) for _ in range(n)]
        for n in (8_000, 6_000)
    )
    began = time.perf_counter()
    found = aligned([base], [other])
    assert time.perf_counter() - began < 5
    assert len(found.pairs) > 1_000


def test_sequences_beyond_the_memory_limit_are_refused_with_a_reason(monkeypatch):
    """More cells than allowed -> no pairs, no rewrites, a sentence."""
    monkeypatch.setattr(al, "MAX_CELLS", 10)
    found = aligned([LAYER], [FUSED * 2])
    assert (found.pairs, found.rewrites) == ((), ())
    assert "too many to align" in found.reason
