"""One kernel in several small origins is one finding: on made copies whose floor is known."""

from __future__ import annotations

import pytest

from hta_dsv4.analysis.change import parse_set, select
from hta_dsv4.analysis.findings import find
from hta_dsv4.analysis.findings.finding import LEAVE, Finding
from hta_dsv4.analysis.findings.floor_headroom import floor_headroom
from hta_dsv4.trace import activities as col
from tests.findings_made import FULL, copy_of, saved, subject_of

REST = ("rest", 0, 10_000_000, {col.BUCKET: "dense_gemm"})
"""The bulk of the step: 1 % of it is 100 us and a little."""


def copies(origin: str, n: int, at: int, ns: int = 40_000, name: str = "copy"):
    """``n`` copies with a floor of 20 us: at 3/4 of its speed each of 40 us saves 13.3 us, at all of it 20."""
    # other kernels have an op of their own: of one op's kernels only the longest has its bytes
    more = copy_of(FULL + (name != "copy"), **{col.ORIGIN: origin})
    return [(name, (at + i) * 10**6 + 20_000_000, ns, more) for i in range(n)]


def told(*rows) -> list[Finding]:
    return [
        f for f in floor_headroom(subject_of([REST, *(r for part in rows for r in part)])) if f.recoverable
    ]


def test_small_origins_of_one_kernel_are_joined():
    """Five and four copies, 67 and 53 us -> neither is 1 % of 10.4 ms, together they are: one finding over both."""
    (found,) = told(copies("a", 5, 0), copies("b", 4, 10))
    assert found.title.startswith(
        "copy in 2 origins (a 200.0 us, b 160.0 us): 360.0 us (3.5 % of the GPU time)"
    )
    assert saved(found) == pytest.approx((0, 9 * (40_000 - 20_000 / 0.75), 9 * 20_000), abs=20)
    assert (found.launches, found.confidence) == (9, 0.6)
    parts = {e.what: e.value for e in found.evidence}
    assert (parts["a, time"], parts["b, time"]) == (200_000, 160_000)
    assert parts["b, floor"] == pytest.approx(80_000, abs=10)


def test_too_little_together_stays_apart():
    """Three and three copies, 80 us together -> each its own, under its origin's name."""
    assert [f.title.split(":")[0] for f in told(copies("a", 3, 0), copies("b", 3, 10))] == [
        "glue of a",
        "glue of b",
    ]


def test_a_large_origin_stays_as_it_is_and_the_rest_is_joined():
    """Ten copies for a, five for b and four for c -> a alone, b with c; no launch in two findings."""
    large, rest = told(copies("a", 10, 0), copies("b", 5, 20), copies("c", 4, 30))
    assert large.title.startswith("glue of a: 400.0 us")
    assert rest.title.startswith("copy in 2 origins (b 200.0 us, c 160.0 us)")
    assert not set(large.claim.rows) & set(rest.claim.rows)


def test_other_kernels_of_the_origin_stay_with_it():
    """Beside the joined copies a has two other ones -> a finding of those two alone, of its seven launches."""
    joined, left = told(copies("a", 5, 0), copies("b", 4, 10), copies("a", 2, 20, name="other"))
    assert joined.launches == 9
    assert left.title.startswith("glue of a, 2 of its 7 launches: 80.0 us")
    assert not set(joined.claim.rows) & set(left.claim.rows)


def test_a_part_at_its_floor_is_not_joined():
    """In b they take 22 us, 91 % of the floor's speed -> nothing to tune there, a alone."""
    (found,) = told(copies("a", 5, 0), copies("b", 20, 10, ns=22_000))
    assert found.title.startswith("glue of a: 200.0 us")


def test_two_kernels_are_not_one():
    """Five copies by one kernel, four by another -> nothing to join."""
    found = told(copies("a", 5, 0), copies("b", 4, 10, name="other"))
    assert [f.title.split(":")[0] for f in found] == ["glue of a", "glue of b"]


def test_the_check_selects_just_these_launches():
    """A name with what a shell reads in quotes -> its longest part without; a selector per origin and piece."""
    name = 'void f<"$_0">::copy_kernel(float*)'
    rows = [REST, *copies("a", 5, 0, name=name), *copies("b", 4, 10, name=name)]
    s = subject_of(rows)
    (found,) = floor_headroom(s)
    texts = [t for t in found.check.split('"') if t.endswith("=floor")]
    assert len(texts) == 2
    assert not any(c in t for t in texts for c in "$`\\")
    chosen = [select(s.part.activities, parse_set(t).selector).rows for t in texts]
    assert [int(c.sum()) for c in chosen] == [5, 4]


def test_what_is_left_alone_is_not_joined():
    """A large origin at its floor, of the same kernel -> left alone as before, the small ones joined."""
    found = floor_headroom(
        subject_of([REST, *copies("a", 6, 0), *copies("b", 5, 10), *copies("z", 60, 100, ns=22_000)])
    )
    assert [f.title.split(":")[0] for f in found if f.kind == LEAVE] == ["glue of z"]
    (joined,) = (f for f in found if f.kind != LEAVE)
    assert joined.title.startswith("copy in 2 origins")


def test_a_joined_finding_is_ranked_and_listed():
    """The step above -> listed with its range, and nothing of the same launches among the small ones."""
    done = find(subject_of([REST, *copies("a", 5, 0), *copies("b", 4, 10)]))
    (one,) = (r for r in done.ranked if r.finding.rule == "floor_headroom")
    assert one.remaining == one.finding.recoverable
    assert not [r for r in done.smaller if r.finding.rule == "floor_headroom"]
