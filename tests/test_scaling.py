"""Fits over a parameter: known coefficients come back, and only what should not grow is flagged."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hta_dsv4.analysis.scaling import Point, expectation, scaling
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.scaling_grid import scaling_grid, told_apart

CONTEXTS = (8_192, 65_536, 262_144, 1_048_576)


def points(
    rows: dict[str, object], xs: tuple[float, ...] = CONTEXTS, steps: int = 8, noise: float = 0.0
) -> list[Point]:
    """Captures at each x; rows give ns per step as functions of x."""
    rng = np.random.default_rng(0)
    return [
        Point(
            f"x{x}",
            x,
            {
                n: np.rint(f(x) * (1 + noise * rng.normal(size=steps))).astype(np.int64)
                for n, f in rows.items()
            },
        )
        for x in xs
    ]


def test_known_coefficients_come_back():
    """2 ms + 30 ns per unit, and 5 us x^0.5 -> slope, intercept, power and factor as put in, R2 1."""
    found = scaling(
        points({"line": lambda x: 2e6 + 30 * x, "root": lambda x: 5_000 * math.sqrt(x)}),
        "max_context",
        "origin",
    )
    rows = {r.name: r for r in found.rows}
    assert rows["line"].slope_ns == pytest.approx(30, rel=1e-6)
    assert rows["line"].intercept_ns == pytest.approx(2e6, rel=1e-4)
    assert rows["line"].linear_r2 == pytest.approx(1)
    assert rows["root"].power == pytest.approx(0.5, abs=1e-4)
    assert rows["root"].factor_ns == pytest.approx(5_000, rel=1e-3)
    assert rows["root"].power_interval[0] < 0.5 < rows["root"].power_interval[1]
    assert found.total.mean_ns[0] == pytest.approx(sum(r.mean_ns[0] for r in found.rows))


def test_the_indexer_and_nothing_else_grows_with_max_context():
    """Indexer O(max context), the rest constant within 2 % noise -> the indexer alone is flagged, power near 1."""
    found = scaling(
        points({"indexer": lambda x: 1e5 + 20 * x, "attention": lambda x: 3e6, "moe": lambda x: 9e6}, noise=0.02),
        "max_context", "origin",
    )  # fmt: skip
    (only,) = found.flagged
    assert (only.name, only.expected.power) == ("indexer", 0.0)
    assert 0.85 < only.power < 1.05
    assert "capacity" in only.expected.why
    assert only.growing_share > 0.6


def test_the_indexer_may_grow_with_the_real_context_but_the_moe_may_not():
    """Both proportional to the real context -> the moe is flagged, the indexer is not."""
    found = scaling(points({"indexer": lambda x: 20 * x, "moe": lambda x: 20 * x}), "context", "origin")
    assert [r.name for r in found.flagged] == ["moe"]


def test_growth_that_does_not_matter_is_not_flagged():
    """A row that grows tenfold to 0.1 % of the step -> its power is shown, no flag."""
    found = scaling(points({"tiny": lambda x: x / 100, "moe": lambda x: 1e7}), "max_context", "origin")
    assert found.flagged == ()
    assert {r.name: r.power for r in found.rows}["tiny"] == pytest.approx(1, abs=0.01)


def test_two_values_take_their_interval_from_the_steps():
    """Two contexts, 8 steps of 1 % noise -> the interval of the power is from the steps, R2 unknown, a note."""
    made = points({"indexer": lambda x: 20 * x, "moe": lambda x: 1e6}, CONTEXTS[:2], noise=0.01)
    found = scaling(made, "max_context", "origin")
    indexer = next(r for r in found.rows if r.name == "indexer")
    assert indexer.power_interval[0] < 1 < indexer.power_interval[1]
    assert indexer.power_interval[1] - indexer.power_interval[0] < 0.05
    assert (indexer.power_r2, indexer.slope_interval) == (None, None)
    assert "steps within" in indexer.interval_from
    assert any("nothing tests their form" in n for n in found.notes)


def test_two_values_of_few_steps_have_no_interval():
    """Two contexts, 3 steps each -> power without interval, and why."""
    found = scaling(points({"indexer": lambda x: 20 * x}, CONTEXTS[:2], steps=3), "max_context", "origin")
    (row,) = found.rows
    assert (row.power_interval, row.power) == (None, pytest.approx(1))
    assert "unknown" in row.interval_from


def test_a_row_that_comes_out_of_nothing_has_no_power_and_is_flagged():
    """No time at the smallest context, half the step at the largest -> no power law, flagged."""
    found = scaling(
        points({"indexer": lambda x: 0 if x == 8_192 else 30 * x, "moe": lambda x: 1e6}),
        "max_context",
        "origin",
    )
    (row,) = found.flagged
    assert (row.name, row.power, row.power_interval) == ("indexer", None, None)


def test_repeated_captures_are_points_of_their_own():
    """Two captures at each value -> one mean per value, no note about missing repeats."""
    made = points({"moe": lambda x: 1e6}, noise=0.01)
    found = scaling([*made, *made], "concurrency", "origin")
    assert found.rows[0].x == tuple(float(c) for c in CONTEXTS)
    assert not any("one capture per value" in n for n in found.notes)


def test_unknown_parameters_expect_nothing():
    """A parameter without expectations -> fits, no flag, a note."""
    found = scaling(points({"moe": lambda x: 20 * x}), "page_size", "origin")
    assert expectation("page_size", "moe") is None
    assert found.flagged == ()
    assert any("nothing is expected of page_size" in n for n in found.notes)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (points({"moe": lambda x: 1}, (8.0,)), "at least two different values"),
        (points({"moe": lambda x: 1}, (0.0, 8.0)), "above 0"),
        (points({"moe": lambda x: 1}, (1e308, 8.0)), "up to 1e100"),
        (points({"moe": lambda x: 1}, (float("nan"), 8.0)), "above 0"),
        (points({"moe": lambda x: 1}, steps=0), "no steps"),
        ([], "at least two different values"),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_line(made, says):
    """One value, a value of 0, no steps, nothing -> an error naming the remedy."""
    with pytest.raises(HtaDsv4Error, match=says):
        scaling(made, "max_context", "origin")


def test_growth_shows_in_a_line_where_a_power_law_fits_badly():
    """Three contexts, 22 ms and 217 ns a token -> power not determined, slope is: flagged."""
    found = scaling(
        points({"glue": lambda x: 2.2e7 + 217 * x, "moe": lambda x: 4e7}, steps=2), "max_context", "bucket"
    )
    three = scaling(
        points({"glue": lambda x: 2.2e7 + 217 * x, "moe": lambda x: 4e7}, (8_192, 65_536, 1_048_576), 2), "max_context",
        "bucket",
    )  # fmt: skip
    for made in (found, three):
        assert [r.name for r in made.flagged] == ["glue"]
    (glue,) = three.flagged
    assert glue.determined is False
    assert glue.slope_interval[0] > 0
    cells = next(r for r in scaling_grid(three).rows if r[0] == "glue")
    assert "not determined" in cells
    assert "217 us" in cells


def test_a_power_that_may_be_nothing_is_not_a_finding():
    """Three values that go up and down by a tenth of the step -> not determined, said so, and no flag."""
    times = {1: 1.0e7, 2: 1.6e7, 4: 1.2e7}
    found = scaling(
        points({"odd": lambda x: times[x], "moe": lambda x: 4e7}, (1, 2, 4), 2), "layers", "bucket"
    )
    odd = next(r for r in found.rows if r.name == "odd")
    assert odd.determined is False
    assert not found.flagged
    assert any(n.startswith("odd: more than 2 % of the step apart") for n in found.notes)
    constant = next(r for r in found.rows if r.name == "moe")
    assert constant.determined


def with_plain(made: list[Point], ms: dict[float, float]) -> list[Point]:
    return [replace(p, unprofiled_ns=ms[p.x] * 1e6) for p in made]


def test_what_a_request_costs_is_said():
    """36 ms and 10.4 ms C, 9.4 of it the indexer -> said, with its ceiling; the unprofiled line too."""
    made = points(
        {"indexer": lambda x: 3e6 + 9.4e6 * x, "moe": lambda x: 3.3e7 + 1e6 * x}, (1, 16, 32, 64), 2
    )
    found = scaling(made, "concurrency", "origin")
    assert found.requests.per_request_ns == pytest.approx(10.4e6)
    assert found.requests.parts[0] == ("indexer", pytest.approx(9.4e6))
    assert found.requests.ceiling.tokens_per_s == pytest.approx(1e9 / 10.4e6)
    said = " ".join(scaling_grid(found).notes)
    assert "GPU time: 36.0 ms a step and 10.4 ms per request, of it 9.40 ms indexer, 1.00 ms moe" in said
    assert "ceiling 96.2 tok/s" in said
    assert "steps without the profiler are not known" in said
    line = scaling(with_plain(made, {1: 50, 16: 200, 32: 360, 64: 680}), "concurrency", "origin")
    assert "steps without the profiler: 40.0 ms and 10.0 ms per request: ceiling 100 tok/s" in " ".join(
        scaling_grid(line).notes
    )
    late = scaling(with_plain(made, {1: 500, 16: 505, 32: 500, 64: 700}), "concurrency", "origin")
    assert not late.requests.straight
    assert "the GPU time's ceiling is the one to be believed" in " ".join(scaling_grid(late).notes)


def test_only_concurrency_has_a_cost_of_requests():
    """The static maximum, or half a request -> none."""
    rows = {"moe": lambda x: 1e6 * x}
    assert scaling(points(rows), "max_context", "origin").requests is None
    assert scaling(points(rows, (0.5, 1, 2)), "concurrency", "origin").requests is None


def test_values_of_the_parameter_that_differ_are_printed_differently():
    """1, 1.0000000001, 1.0000000002 and 1e300 -> as many digits as it takes, an exponent for the huge one."""
    assert told_apart([1.0, 1.0000000001, 1.0000000002]) == ["1", "1.0000000001", "1.0000000002"]
    assert told_apart([1024.0, 0.5, 1e300]) == ["1,024", "0.5", "1e+300"]
    assert told_apart([2.0, 2.0]) == ["2", "2"]
