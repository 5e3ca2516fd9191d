"""Kernels that are long in some steps: found, told from noise, and told where captures hold different parts of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.phases import kernel_times, phase_notes, phases
from hta_dsv4.trace import activities as col
from tests.speed import counted_of


def times(emit: list[int], rest: int = 30_000_000, **more: list[int]) -> pd.DataFrame:
    """A step of ``rest`` ns and a kernel ``emit`` with these times, ns."""
    made = {"emit": emit, "rest": [rest] * len(emit), **more}
    return pd.DataFrame({k: np.array(v, dtype=np.int64) for k, v in made.items()})


def test_two_of_eight_steps_are_longer() -> None:
    """170 us in six steps, 1,560 in two -> one phase with both times, and no period said from two occurrences."""
    (found,) = phases(times([170_000, 175_000, 1_560_000, 172_000, 171_000, 174_000, 1_562_000, 176_000]))
    assert (found.kernel, found.count, found.often) == ("emit", 2, "2 of 8 steps")
    assert found.extra_ns == pytest.approx(1_388_000, abs=2_000)
    assert found.step_ns == pytest.approx(30_173_000, abs=2_000)


def test_three_equal_distances_are_a_period() -> None:
    """Long in steps 1, 5, 9 of 12 -> every 4th step; in 1, 5, 8 -> 3 of 12 steps."""
    regular, odd = ([1_500_000 if i in at else 170_000 for i in range(12)] for at in ((1, 5, 9), (1, 5, 8)))
    assert phases(times(regular))[0].often == "every 4th step"
    assert phases(times(odd))[0].often == "3 of 12 steps"


@pytest.mark.parametrize(
    "emit",
    [
        [1_000_000, 1_400_000, 1_100_000, 1_300_000],  # noise: not twice
        [170_000, 500_000, 900_000, 1_500_000],  # no two groups
        [1_000, 15_000, 1_000, 1_000],  # nothing of the step
        [1_500_000],  # one step
        [1_500_000] * 4,
    ],
)
def test_what_is_no_phase(emit: list[int]) -> None:
    """Noise, a ramp, a trifle, a single step, no difference -> nothing."""
    assert phases(times(emit)) == ()


def test_a_kernel_that_is_in_some_steps_only() -> None:
    """0 us in three steps and 900 in one -> long in one of four."""
    (found,) = phases(times([0, 0, 900_000, 0]))
    assert (found.short_ns, found.often) == (0.0, "1 of 4 steps")


def test_captures_with_other_parts_of_long_steps_are_told() -> None:
    """1 of 2 long against 0 of 3 -> said, with half the difference; a capture all long counts by the other's times."""
    a, b = ("a", times([1_512_000, 171_000])), ("b", times([173_000, 175_000, 175_000]))
    (said,) = phase_notes([a, b])
    assert "1 of 2 steps of a; 0 of 3 steps of b. Up to 670 us" in said
    assert "2 of 2 steps of c" in phase_notes([a, ("c", times([1_500_000, 1_520_000]))])[0]
    assert phase_notes([b, ("d", times([170_000, 171_000]))]) == ()
    assert phase_notes([a, ("e", times([171_000, 1_500_000]))]) == ()


def test_shipped_captures() -> None:
    """split_k holds one long step of two, split_k_c16 none -> the compressor is named, 671 us a step."""
    shipped = hta_dsv4.traces()
    pairs = [(n, kernel_times(hta_dsv4.load(shipped[n]).counted)) for n in ("split_k", "split_k_c16")]
    (said,) = phase_notes(pairs)
    assert said.startswith("_compress_norm_rope_insert_kernel takes about 1,512 us in some steps and 171 us")
    assert "Up to 671 us a step" in said


def test_waiting_for_other_ranks_is_no_phase() -> None:
    """An all-reduce of 2 ms in one step and 0.1 in the other -> nothing; of another kernel -> a phase."""
    for bucket, count in (("communication", 0), ("kv_cache", 1)):
        rows = [("rest", 0, 9_000_000, {}), ("k", 9_000_000, 100_000, {col.BUCKET: bucket})]
        rows += [("rest", 20_000_000, 9_000_000, {}), ("k", 29_000_000, 2_000_000, {col.BUCKET: bucket})]
        assert len(phases(kernel_times(counted_of(rows, [0, 0, 1, 1])))) == count


@given(st.lists(st.integers(0, 2_000_000), max_size=12))
def test_two_groups_are_whole_and_apart(emit: list[int]) -> None:
    """Any times -> what is called long is at least twice all that is not, and neither group is empty."""
    for found in phases(times(emit)):
        values = np.array(emit if found.kernel == "emit" else [30_000_000] * len(emit))
        long = np.array(found.long)
        assert 0 < long.sum() < len(values)
        assert values[long].min() >= 2 * values[~long].max()


def test_the_finding_says_how_much_longer_and_how_often() -> None:
    """Shipped mhc_fused, 2 of 3 steps long -> one finding of 1.3 ms, 2.6 %; nothing promised, its mean said."""
    found = hta_dsv4.load(hta_dsv4.traces()["mhc_fused"]).findings()
    (one,) = [r.finding for r in found.ranked if r.finding.rule == "phases"]
    assert one.title.startswith(
        "2 of 3 steps are 1.3 ms longer (2.6 % of the step): _compress_norm_rope_insert_kernel"
    )
    assert one.recoverable is None
    assert "886.0 us a step on average" in one.unknown_because
