"""What is a step allowed to cost? Budgets, as a file of them (:mod:`budget_file`) says.

A file of budgets reads::

    [step.sum]
    max_us = 380_000
    max_increase_percent = 2

    [bucket.attention]
    max_increase_percent = 3

    [kernel."_sparse_mla*"]
    max_us = 2_000
    max_launches = 43

    [unknown]
    max_share_percent = 1

docs/gate.md describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

STEP, BUCKET, ROLE, ORIGIN, KERNEL = "step", "bucket", "role", "origin", "kernel"
ROWS = (BUCKET, ROLE, ORIGIN, KERNEL)
MEASURES = ("sum", "own", "busy", "wall", "idle")

MAX_US, MAX_LAUNCHES, MAX_SHARE = "max_us", "max_launches", "max_share_percent"
MORE_US, MORE_PERCENT, MORE_LAUNCHES = "max_increase_us", "max_increase_percent", "max_increase_launches"
LIMITS = (MAX_US, MAX_LAUNCHES, MAX_SHARE, MORE_US, MORE_PERCENT, MORE_LAUNCHES)
RELATIVE = (MORE_US, MORE_PERCENT, MORE_LAUNCHES)
"""Limits against the baseline; the others stand alone."""
UNITS = {
    MAX_US: "us", MAX_LAUNCHES: "launches", MAX_SHARE: "% of own", MORE_US: "us", MORE_PERCENT: "%",
    MORE_LAUNCHES: "launches",
}  # fmt: skip

LEAST_SHARE_PERCENT = 1.0
"""``[each.*]`` leaves out rows below this share of the step on both sides, unless the file says another."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one quantity may cost.

    Attributes:
        kind: step, bucket, role, origin or kernel.
        name: the measure of a step (sum, own, busy, wall, idle), a name, or a pattern of kernel names (``*``, ``?``);
            ``""`` for every row of that kind that no other budget names.
        limits: which limit -> its value, in the unit its key names.
        optional: whether it may match nothing.
        least_share_percent: of ``[each.*]``: smaller rows are left out.
        why: the file's own words, said when the budget is not kept.
        place: ``file:line``.
    """

    kind: str
    name: str
    limits: Mapping[str, float]
    optional: bool = False
    least_share_percent: float = 0.0
    why: str = ""
    place: str = ""

    @property
    def said(self) -> str:
        """``bucket attention``."""
        return f"{self.kind} {self.name}"

    def matches(self, name: str) -> bool:
        """Whether a kernel's name fits the pattern; other kinds match by equality."""
        return _fits(self.name, name) if self.kind == KERNEL else name == self.name


@dataclass(frozen=True, slots=True)
class Budgets:
    """A budget file, read.

    Attributes:
        path: of the file.
        budgets: in file order, those of ``[each.*]`` last.
        level: confidence of all failures together: with no change at all, a gate fails with at most ``1 - level``.
        noise_percent: how far captures of the same code are known to differ, as part of the quantity; an excess below
            it is never a failure.
        min_captures: captures a side needs; with fewer, times are inconclusive.
        strict: whether a budget is kept only where the noise, too, lies within it.
        max_overhead_percent: where the profiler added more to a step, its wall and idle time say nothing.
        may_differ: facts of a capture that may differ between the sides, patterns.
        must_be_known: facts that must be known of each capture.
        conditions: facts that each capture must have, and which.
    """

    path: str
    budgets: tuple[Budget, ...]
    level: float = 0.95
    noise_percent: float = 0.0
    min_captures: int = 1
    strict: bool = False
    max_overhead_percent: float = 10.0
    may_differ: tuple[str, ...] = ()
    must_be_known: tuple[str, ...] = ()
    conditions: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def relative(self) -> Budget | None:
        """The first budget that needs a baseline."""
        return next((b for b in self.budgets if any(k in RELATIVE for k in b.limits)), None)


def _fits(pattern: str, name: str) -> bool:
    """``*`` and ``?`` alone are special: brackets are part of C++ names.

    Each part between stars is taken where it first fits. One regular expression of the whole would try every place of
    every part: with a dozen stars that takes longer than anybody waits.
    """
    first, *more = [re.escape(part).replace(r"\?", ".") for part in pattern.split("*")]
    if not more:
        return re.fullmatch(first, name, re.DOTALL) is not None
    found = re.compile(first, re.DOTALL).match(name)
    for part in more[:-1]:
        found = found and re.compile(part, re.DOTALL).search(name, found.end())
    if found is None:
        return False
    last = pattern.rpartition("*")[2]
    at = len(name) - len(last)  # each of its characters stands for one
    return at >= found.end() and re.compile(more[-1], re.DOTALL).fullmatch(name, at) is not None
