"""One name in several sizes: what is more launches, and what is the same launches grown."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis.counted import step_times
from hta_dsv4.analysis.diff import EFFECTS, decompose
from hta_dsv4.analysis.profile import Profile, profile
from hta_dsv4.analysis.sizes import MANY, count_effect
from hta_dsv4.trace import activities as col
from tests.variants import part_of

F = Fraction
sizes = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(1, 9).map(F), st.integers(0, 1000).map(F)), min_size=1
)
launches = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["k", "copy"]), st.integers(0, 10_000), st.integers(1, 4)),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=3,
)


def sized(label: str, steps: list[list[tuple[str, int, int]]]) -> Profile:
    """A profile of steps of (kernel, ns, CTAs)."""
    part = part_of([[(name, ns) for name, ns, _ in step] for step in steps])
    grids = pd.array([ctas for step in steps for _, _, ctas in step], dtype="Int32")
    part = replace(part, activities=part.activities.assign(**{col.GRID_X: grids}))
    return profile(label, part, step_times(part))


def test_more_launches_of_one_size_are_the_midpoint():
    """4 launches of 10 ns, 6 of 7 at the same size -> 2 x 8.5."""
    assert count_effect({"a": (F(4), F(40))}, {"a": (F(6), F(42))}) == 17


def test_one_launch_more_costs_what_launches_of_its_size_cost():
    """300 short launches and one long, then two long -> the price of a long one, not the mean of all."""
    base = {"short": (F(300), F(300)), "long": (F(1), F(1000))}
    assert count_effect(base, {**base, "long": (F(2), F(2000))}) == 1000


def test_the_same_launches_at_another_size_are_no_change_of_count():
    """21 launches become 42 eight times as large -> all duration; more than MANY times as many came."""
    rest = {"small": (F(324), F(500))}
    base, other = {**rest, "a": (F(21), F(4_267))}, {**rest, "b": (F(42), F(67_596))}
    assert count_effect(base, other) == 0
    many = {**rest, "b": (F(21 * MANY + 1), F(85))}
    assert count_effect(base, many) == F(85) * (1 - F(21, 21 * MANY + 1))


def test_launches_that_move_between_sizes_do_not_count():
    """10 and 5 launches become 5 and 10 -> 0; 5 and 12 -> the 2 that came, at the size that grew."""
    base = {"a": (F(10), F(10)), "b": (F(5), F(500))}
    assert count_effect(base, {"a": (F(5), F(5)), "b": (F(10), F(1000))}) == 0
    assert count_effect(base, {"a": (F(5), F(5)), "b": (F(12), F(1200))}) == 200


def test_resized_launches_may_make_up_for_those_that_went():
    """One launch goes at a size both have, one becomes two at another -> as many in all, so none came or went."""
    base = {"b": (F(2), F(1)), "c": (F(1), F(0))}
    assert count_effect(base, {"b": (F(1), F(0)), "d": (F(2), F(0))}) == 0


@given(sizes, sizes)
def test_swapping_negates_and_equal_numbers_do_not_count(base, other):
    """Any sizes -> antisymmetric; 0 for as many launches; else of the sign of their change, or 0."""
    found = count_effect(base, other)
    assert found == -count_effect(other, base)
    more = sum(n for n, _ in other.values()) - sum(n for n, _ in base.values())
    assert found * more >= 0
    assert found == 0 or more != 0


@settings(max_examples=12, deadline=None)
@given(launches, launches)
def test_effects_of_sized_launches_add_up(one, two):
    """Any steps of any grids -> nothing left over at any level, and negated when swapped."""
    found, back = decompose(sized("a", one), sized("b", two)), decompose(sized("b", two), sized("a", one))
    assert found.residual_ns == back.residual_ns == 0
    table, mirror = (d.table("kernel").set_index("kernel").sort_index() for d in (found, back))
    assert (table[list(EFFECTS)].sum(axis=1) == table["delta_ns"]).all()
    assert np.array_equal(table["count_ns"], -mirror["count_ns"])
    assert np.array_equal(table["duration_ns"], -mirror["duration_ns"])
