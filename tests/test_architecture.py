"""Launch counts against the architecture: the divisor, and who shares which multiplicity."""

from __future__ import annotations

import numpy as np
import pytest

from hta_dsv4.classify.architecture import match, models, read_activities, read_counts
from hta_dsv4.classify.origin_columns import ORIGINS
from hta_dsv4.trace.steps import NONE, find_steps
from tests.campaign import COPY, MULTIPLY, PUBLISHED, SGEMM, campaign
from tests.frames import kernel, make_trace

FLASH, PRO = models()


def test_the_published_totals_are_read_as_eleven_steps():
    """231, 2541 and 2783 launches, no order -> 11 steps, and 21, 11 x 21, 12 x 21 + 1 per step."""
    best = read_counts(
        {k: n for k, (n, _) in PUBLISHED.items()}, {k: ns for k, (_, ns) in PUBLISHED.items()}
    )[0]
    assert (best.model.name, best.steps, best.likely) == ("DeepSeek-V4-Flash", 11, True)
    shared = {m.kernel: (m.per_step, m.factor, m.extra) for m in best.sharing("c4 layers")}
    assert shared == {SGEMM: (21, 1, 0), COPY: (231, 11, 0), MULTIPLY: (253, 12, 1)}
    text = " ".join(best.sentences())
    assert "231 = 11 x 21" in text
    assert "2541 = 11 x 11 x 21" in text
    assert "21 c4 layers" in text


def test_a_trace_with_steps_is_checked_at_its_own_number():
    """The campaign's trace, found as 11 steps -> the reading at 11 names the 21-fold kernels."""
    made = campaign()
    reading = read_activities(made.trace.activities, find_steps(made.trace))
    assert reading is not None
    assert (reading.steps, reading.model.name) == (11, "DeepSeek-V4-Flash")
    assert {SGEMM, COPY, MULTIPLY} <= {m.kernel for m in reading.sharing("c4 layers")}


def test_counts_of_another_model_are_not_claimed():
    """48 equal layers -> no reading is likely."""
    readings = read_counts({"norm": 97, "attention": 48, "gemm": 192, "moe": 96, "head": 1})
    assert not any(r.likely and r.score > 0.6 for r in readings)


def test_totals_without_order_are_read_when_no_step_is_found():
    """Five steps' kernels in shuffled order -> no steps, but the counts say five."""
    acts = [
        kernel(f"k{n}", 10 * i, 5) for n, count in ((21, 21), (43, 43), (86, 86)) for i in range(5 * count)
    ]
    order = np.random.default_rng(2).permutation(len(acts))
    acts = [dict(a, start_ns=10 * int(at)) for a, at in zip(acts, order, strict=True)]
    trace = make_trace(acts)
    steps = find_steps(trace)
    assert steps.method == NONE
    reading = read_activities(trace.activities, steps)
    assert reading is not None
    assert (reading.steps, reading.score) == (5, 1.0)


@pytest.mark.parametrize(
    ("per_step", "expected"),
    [
        (21, ("c4 layers", 1, 0)),
        (86, ("mHC sites", 1, 0)),
        (231, ("c4 layers", 11, 0)),
        (253, ("c4 layers", 12, 1)),
        (129, ("layers", 3, 0)),
        (85, ("attention scopes", 1, 1)),
        (7, (None, 0, 0)),
    ],
)
def test_launches_per_step_match_the_count_or_a_multiple(per_step, expected):
    """A number of launches per step -> the count of the model it is, or is a multiple of."""
    count, factor, extra = match(FLASH, per_step)
    assert (count.name if count else None, factor, extra) == expected


@pytest.mark.parametrize("model", [FLASH, PRO], ids=lambda m: m.name)
def test_the_counts_of_a_model_add_up(model):
    """Layers = 2 + c4 + c128; two mHC sites each; compressors and attention scopes follow; origins are known ones."""
    n = {c.name: c.value for c in model.counts}
    assert (
        n["layers"]
        == 2 + n["c4 layers"] + n["c128 layers"]
        == n["score-routed layers"] + n["hash-routed layers"]
    )
    assert n["mHC sites"] == 2 * n["layers"]
    assert n["compressed layers"] == n["c4 layers"] + n["c128 layers"]
    assert n["compressors"] == n["compressed layers"] + n["c4 layers"]
    assert n["attention scopes"] == n["layers"] + n["compressed layers"]
    assert {o for c in model.counts for o in c.origins} <= set(ORIGINS)


def test_one_kernel_alone_fits_no_architecture():
    """20,000 launches of one kernel -> some divisor matches, but that is not said to fit."""
    assert not any(r.likely for r in read_counts({"a": 20_000}))
