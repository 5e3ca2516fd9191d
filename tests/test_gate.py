"""Budgets judged: how often a gate is wrong, what it sees, and what its bounds rest on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hta_dsv4.analysis.budget_file import read_budgets
from hta_dsv4.analysis.budgets import Budget, Budgets
from hta_dsv4.analysis.comparability import Conditions, comparability
from hta_dsv4.analysis.counted import step_times
from hta_dsv4.analysis.dependence import common_correlation, mean_of_dependent
from hta_dsv4.analysis.excess import CAPTURES, EXACT, FEW_STEPS, NONE, STEPS, Contrast, excesses
from hta_dsv4.analysis.gate import FAIL, INCONCLUSIVE, PASS, gate
from hta_dsv4.analysis.gate_causes import with_causes
from hta_dsv4.analysis.step_series import Capture, reduce_capture
from hta_dsv4.classify.rules_file import load_rules
from hta_dsv4.errors import HtaDsv4Error
from tests.speed import counted_of
from tests.variants import part_of, variant

TRIALS = 400
LEVEL = 0.95


def series(rng: np.random.Generator, steps: int, quantities: int, correlation: float) -> np.ndarray:
    """Steps of quantities around 0 with variance 1 that depend on the step before."""
    out = np.empty((steps, quantities))
    x = rng.standard_normal(quantities)
    for i in range(steps):
        x = correlation * x + np.sqrt(1 - correlation**2) * rng.standard_normal(quantities)
        out[i] = x
    return out


def failing(
    captures: tuple[int, int],
    steps: int,
    correlation: float,
    between: float,
    more: float = 0.0,
    *,
    ranks: int = 1,
    trials: int = TRIALS,
) -> float:
    """How often a gate of 12 checks fails: 6 that allow no increase, 6 whose limit is the true mean.

    With several ranks each has its own noise, and the last of them alone takes ``more``.
    """
    rng, failed = np.random.default_rng(7), 0
    for _ in range(trials):

        def captured(n: int) -> list[np.ndarray]:
            shift = [between * (rng.standard_normal() + rng.standard_normal(6)) for _ in range(n)]
            return [1000 + s + 5 * series(rng, steps, 6, correlation) for s in shift]

        contrasts = []
        for rank in range(ranks):
            sides = [captured(n) for n in captures]
            if rank == ranks - 1:
                sides[1] = [x * (1 + more) for x in sides[1]]
            for q in range(6):
                base, new = (tuple(x[:, q] for x in side) for side in sides)
                contrasts += [Contrast(new, base, 1.0), Contrast(new, base, constant=1000.0)]
        failed += any(e.noise is not None and e.excess > e.noise for e in excesses(contrasts, LEVEL))
    return failed / trials


@pytest.mark.parametrize(
    ("captures", "steps", "correlation", "between"),
    [
        ((1, 1), 2, 0.0, 0.0),
        ((1, 1), 5, 0.0, 0.0),
        ((1, 1), 6, 0.0, 0.0),
        ((1, 1), 20, 0.0, 0.0),
        ((1, 1), 20, 0.5, 0.0),
        ((1, 1), 60, 0.5, 0.0),
        ((1, 1), 10, 0.8, 0.0),
        ((1, 1), 20, 0.8, 0.0),
        ((1, 1), 60, 0.9, 0.0),
        ((5, 1), 10, 0.8, 10.0),
        ((3, 3), 10, 0.8, 10.0),
        ((5, 5), 3, 0.8, 10.0),
    ],
)
def test_unchanged_code_fails_no_more_often_than_stated(captures, steps, correlation, between):
    """The same distribution on both sides, 12 checks at their limits -> at most 5 % of gates fail (+3 sigma)."""
    allowed = (1 - LEVEL) + 3 * np.sqrt(LEVEL * (1 - LEVEL) / TRIALS)
    assert failing(captures, steps, correlation, between) <= allowed


@pytest.mark.parametrize(
    ("captures", "steps", "between", "more"), [((1, 1), 20, 0.0, 0.02), ((5, 5), 10, 3.0, 0.03)]
)
def test_a_regression_beyond_noise_is_found(captures, steps, between, more):
    """2 % slower at 0.5 % noise per step; 3 % at 0.4 % between captures -> found in nine of ten gates."""
    assert failing(captures, steps, 0.3, between, more) >= 0.9


@pytest.mark.parametrize(("correlation", "more"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.02), (0.5, 0.03)])
def test_eight_ranks_are_judged_at_the_stated_rate_and_one_slow_one_is_found(correlation, more):
    """12 checks on 8 ranks: unchanged -> at most 5 % fail (+3 sigma); one rank 2 or 3 % slower -> nine of ten do."""
    rate = failing((1, 1), 20, correlation, 0.0, more, ranks=8, trials=100)
    assert rate >= 0.9 if more else rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_correlation_is_estimated_without_bias(correlation):
    """200 series of 20 steps -> the correlation they were made with, on average; steps independent of each other."""
    rng = np.random.default_rng(3)
    found = common_correlation(series(rng, 20, 1, correlation)[:, 0] for _ in range(200))
    assert found == pytest.approx(correlation, abs=0.08)
    worth = mean_of_dependent(series(rng, 400, 1, correlation)[:, 0], 0.0).independent
    assert worth == pytest.approx(400 * (1 - correlation) / (1 + correlation), rel=0.4)


def test_variance_of_a_mean_of_dependent_steps():
    """400 steps, each like the one before -> the variance of the mean that 300 series show."""
    rng = np.random.default_rng(5)
    made = [series(rng, 400, 1, 0.7)[:, 0] for _ in range(300)]
    seen = float(np.var([x.mean() for x in made]))
    assert np.median([mean_of_dependent(x, 0.0).variance for x in made]) == pytest.approx(seen, rel=0.25)


def test_one_capture_knows_nothing_of_noise_between_captures():
    """Captures that differ by more than their steps, one a side -> fails often: why docs ask for repeats."""
    assert failing((1, 1), 20, 0.0, 10.0) > 0.5


@pytest.mark.parametrize(
    ("candidate", "base", "evidence"),
    [
        ([[5, 5, 5]], [[4, 4, 4]], EXACT),
        ([[5, 6, 5]], [[4, 4, 4]], FEW_STEPS),
        ([[5, 6, 5, 6, 5, 6]], [[4, 5, 4, 5, 4, 5]], STEPS),
        ([[5]], [[4]], NONE),
        ([[5], [6]], [[4]], CAPTURES),
    ],
)
def test_what_the_bound_rests_on(candidate, base, evidence):
    """More steps, more captures -> better evidence; none from a single step."""
    sides = [tuple(np.array(x) for x in side) for side in (candidate, base)]
    (found,) = excesses([Contrast(*sides, weight=1.0)], LEVEL)
    assert found.evidence == evidence
    assert (found.noise is None) == (evidence == NONE)


def test_known_noise_widens_every_bound():
    """An exact excess of 3 below a known noise of 4 -> no evidence."""
    one = Contrast((np.array([8, 8]),), (np.array([5, 5]),), 1.0, known_noise=4.0)
    assert [(e.excess, e.noise) for e in excesses([one], LEVEL)] == [(3.0, 4.0)]


def capture(steps: list[list[tuple[str, int]]], label: str = "x", **conditions: object) -> Capture:
    """A capture of steps written as kernels and ns."""
    part = part_of(steps)
    return reduce_capture(part, step_times(part), Conditions(label, **conditions))  # type: ignore[arg-type]


def steps_of(attention: int, glue: int, n: int = 10, jitter: int = 3) -> list[list[tuple[str, int]]]:
    """Steps of one attention and two glue kernels, times alternating by ``jitter`` ns."""
    copies = [("glue.copy_cast.copy", glue)] * 2
    return [[("attention.attention_core.attn", attention + jitter * (i % 2)), *copies] for i in range(n)]


def judged(budgets: list[Budget], base: list[Capture], new: list[Capture], **more: object) -> dict[str, str]:
    """Verdict of each check, by budget and limit."""
    same = comparability([c.conditions for c in base], [c.conditions for c in new])
    sides = ([[c] for c in base], [[c] for c in new])
    found = gate(Budgets("b.toml", tuple(budgets), **more), *sides, same)  # type: ignore[arg-type]
    return {f"{c.budget.said} {c.key}": c.verdict for c in found.checks}


def test_reduction_adds_up_to_the_step():
    """Buckets, roles and kernels of a reduced capture -> each add up to the sum of every step, to the ns."""
    one = capture(steps_of(1000, 50))
    for kind in ("bucket", "role", "kernel"):
        assert np.array_equal(sum(one.ns[kind].values()), one.times["sum"])
        assert sum(one.launches[kind].values()).tolist() == [3] * 10


def test_waiting_for_the_launch_ahead_is_no_rows_time():
    """A reduce that starts 90 ns early -> its row has 10 ns, own adds up, the sum does not; said in a note."""
    rows = [("split", 0, 100, {"bucket": "attention"}), ("reduce", 10, 100, {"bucket": "moe_other"})]
    part = counted_of(rows)
    one = reduce_capture(part, step_times(part), Conditions("x", {}))
    assert one.ns["bucket"]["moe_other"].tolist() == [10]
    assert sum(v.sum() for v in one.ns["kernel"].values()) == one.times["own"].sum() == 110
    assert one.times["sum"].sum() == 200
    budget = Budget("bucket", "moe_other", {"max_us": 0.05})
    found = gate(Budgets("b.toml", (budget,)), [], [[one]], comparability([], [one.conditions]))
    assert any("up to 45 % of the summed durations is early time" in n for n in found.notes)
    assert found.checks[0].value == 10


def test_each_row_above_its_share_has_a_budget():
    """[each.bucket] with one bucket named -> the others by size, the named one as its own budget says."""
    base, new = [capture(steps_of(1000, 50))], [capture(steps_of(1000, 60))]
    budgets = [
        Budget("bucket", "attention", {"max_increase_percent": 5.0}),
        Budget("bucket", "", {"max_increase_percent": 1.0}, least_share_percent=1.0),
    ]
    assert judged(budgets, base, new) == {
        "bucket attention max_increase_percent": PASS, "bucket glue max_increase_percent": FAIL,
    }  # fmt: skip
    budgets[1] = Budget("bucket", "", {"max_increase_percent": 1.0}, least_share_percent=50.0)
    assert judged(budgets, base, new) == {"bucket attention max_increase_percent": PASS}


def test_a_new_row_exceeds_any_percentage():
    """A kernel that the baseline lacks, budget in percent -> fails, as no percentage of 0 allows it."""
    base = [capture([s[1:] for s in steps_of(1000, 50)])]
    budget = Budget("bucket", "attention", {"max_increase_percent": 50.0})
    assert judged([budget], base, [capture(steps_of(1000, 50))]) == {
        f"{budget.said} max_increase_percent": FAIL
    }


def test_strict_wants_the_noise_below_the_limit_too():
    """Kept by less than noise -> passes; with strict it does not."""
    one = [capture(steps_of(1000, 50, jitter=40))]
    budget = Budget("bucket", "attention", {"max_us": 1.021})
    assert judged([budget], [], one) == {"bucket attention max_us": PASS}
    assert judged([budget], [], one, strict=True) == {"bucket attention max_us": INCONCLUSIVE}


def test_too_few_captures_make_times_inconclusive_and_leave_counts():
    """min_captures = 2 and one capture -> times inconclusive, launch counts judged."""
    budget = Budget("bucket", "attention", {"max_us": 0.5, "max_launches": 0})
    found = judged([budget], [], [capture(steps_of(1000, 50))], min_captures=2)
    assert found == {"bucket attention max_us": INCONCLUSIVE, "bucket attention max_launches": FAIL}


def test_unknown_origins_are_not_taken_for_none():
    """An origin's budget where the candidate's origins are unknown -> inconclusive, not kept."""
    budget = Budget("origin", "indexer", {"max_us": 1.0}, optional=True)
    blind = capture(steps_of(1000, 50), knows_origin=False)
    assert judged([budget], [], [blind]) == {"origin indexer max_us": INCONCLUSIVE}


def test_share_of_the_step():
    """Glue is 100 of 1,100 ns -> within 10 %, not within 8 %, both beyond the noise."""
    one = [capture(steps_of(1000, 50))]
    for limit, verdict in ((10.0, PASS), (8.0, FAIL)):
        budget = Budget("bucket", "glue", {"max_share_percent": limit})
        assert judged([budget], [], one) == {"bucket glue max_share_percent": verdict}


def test_causes_are_the_kernels_that_grew():
    """Glue slower, attention faster -> the step's failure names glue alone, by its exact change."""
    old, new = steps_of(1000, 50), steps_of(900, 150)
    budget = Budget("step", "sum", {"max_increase_percent": 1.0})
    sides = [[[capture(old)]], [[capture(new)]]]
    found = gate(Budgets("b.toml", (budget,)), *sides, comparability([], []))
    (check,) = with_causes(found, {None: variant("a", old)}, {None: variant("b", new)}).checks
    assert check.verdict == FAIL
    assert [(c.kernel, c.delta_ns, c.effect) for c in check.causes] == [
        ("glue.copy_cast.copy", 200, "slower")
    ]


def test_the_documented_file_is_one(tmp_path):
    """The budget file in docs/gate.md -> read, with every kind of budget in it."""
    page = (Path(__file__).parent.parent / "docs" / "gate.md").read_text()
    file = tmp_path / "b.toml"
    file.write_text(page.split("```toml")[1].split("```")[0])
    found = read_budgets(file)
    assert {b.kind for b in found.budgets} == {"step", "bucket", "kernel"}
    assert (found.level, found.conditions["concurrency"], found.may_differ) == (
        0.95,
        32,
        ("switches.attention",),
    )


def test_patterns_know_stars_and_nothing_else():
    """Brackets in a kernel's name are themselves; * and ? are wild."""
    budget = Budget("kernel", "void f<int[4], *>(?)", {})
    assert budget.matches("void f<int[4], float>(a)")
    assert not budget.matches("void f<int4, float>(a)")
    assert not budget.matches("void f<int[4], float>()")


def test_lines_of_keys_survive_every_spelling(tmp_path):
    """Dotted keys, quoted tables, comments, values over lines -> errors name the line of the key."""
    file = tmp_path / "b.toml"
    for text, line in (
        ("# x\n\n[kernel.'a[1]*']\n# y\nmax_us = 1\nmax_uz = 2\n", 6),
        ("bucket.glue.max_uz = 2\n", 1),
        ("[comparability]\nmay_differ = [\n  'gpu',\n]\n[bucket.glue]\nmax_uz = 2\n", 6),
        ('[bucket]\nglue = { max_uz = 2 }\n', 2),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(Exception, match=rf"b\.toml:{line}: .*max_uz"):
            read_budgets(file)


def test_pattern_of_many_stars_ends():
    """A kernel pattern of thirty stars that fits nowhere -> told at once, and all else means what it meant."""
    name = "void at::native::vectorized<4>(int)"
    for pattern, fits in (
        ("*a" * 30 + "x", False), ("*" * 60 + "x", False), ("void*<?>*", True), ("void*int", False), ("*int)", True),
        ("?oid*(int)", True), ("*", True), ("*<4>(int)*", True), ("void at*at::native*", False), (name, True),
    ):  # fmt: skip
        assert Budget("kernel", pattern, {}).matches(name) is fits, pattern
    assert not Budget("kernel", "*a" * 30 + "x", {}).matches("a" * 5000)


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 20_000, "[a." * 5000])
def test_budgets_that_no_parser_likes(tmp_path: Path, text: str):
    """A number of 5,000 digits, brackets in brackets -> one line naming the file."""
    path = tmp_path / "b.toml"
    path.write_text(text)
    with pytest.raises(HtaDsv4Error, match="not TOML") as caught:
        read_budgets(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_budgets_without_end():
    """A device that never ends given as budgets, or as rules -> one line naming it."""
    with pytest.raises(HtaDsv4Error, match=r"^/dev/zero: longer than any budget file"):
        read_budgets(Path("/dev/zero"))
    with pytest.raises(HtaDsv4Error, match=r"^/dev/zero: longer than any rules file"):
        load_rules(Path("/dev/zero"))
