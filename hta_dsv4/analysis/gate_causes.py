"""Which kernels made a row grow? The exact decomposition of base and candidate, cut to the rows of a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from hta_dsv4.analysis import diff as d
from hta_dsv4.analysis.budgets import KERNEL, MAX_SHARE, ORIGIN, STEP, Budget
from hta_dsv4.analysis.counted import OWN, SUM
from hta_dsv4.analysis.diff import Decomposition, decompose
from hta_dsv4.analysis.gate import PASS, Cause, Check, Gate
from hta_dsv4.analysis.gate_rows import COUNTS
from hta_dsv4.analysis.profile import Profile

MOST = 3
_LAUNCHES = "delta_launches"
_SUMMED = (d.BASE_LAUNCHES, d.OTHER_LAUNCHES, d.DELTA_NS, *d.EFFECTS)
_WORDS = {
    d.COUNT_NS: ("more launches", "fewer launches"),
    d.DURATION_NS: ("slower", "faster"),
    d.APPEARED_NS: ("new", "new"),
    d.DISAPPEARED_NS: ("gone", "gone"),
}


def with_causes(
    found: Gate, base: Mapping[int | None, Profile], candidate: Mapping[int | None, Profile]
) -> Gate:
    """Name the kernels behind each check that is not passed.

    Args:
        found: a gate.
        base: rank -> its profile in the baseline's first capture; of ``None``, that of the rank that stands for it.
        candidate: the same of the candidate's.

    Returns:
        The same, with causes where a row grew.
    """
    told = [c for c in found.checks if _told(c, found) and c.rank in base and c.rank in candidate]
    parts = {rank: decompose(base[rank], candidate[rank]) for rank in {c.rank for c in told}}
    checks = tuple(replace(c, causes=_causes(c, parts[c.rank])) if c in told else c for c in found.checks)
    return replace(found, checks=checks)


def _told(check: Check, found: Gate) -> bool:
    """Whether causes say something: the row is over its budget, and the two sides are of one kind."""
    return check.verdict != PASS and check.excess > 0 and not found.comparability.reasons


def _causes(check: Check, parts: Decomposition) -> tuple[Cause, ...]:
    if check.key == MAX_SHARE or (check.budget.kind == STEP and check.budget.name not in (SUM, OWN)):
        return ()
    cells = parts.cells[_mine(check.budget, parts)]
    if not len(cells):
        return ()
    rows = cells.groupby(KERNEL, sort=True)[list(_SUMMED)].sum()
    rows[_LAUNCHES] = (
        rows[d.OTHER_LAUNCHES] / parts.other.steps - rows[d.BASE_LAUNCHES] / parts.base.steps
    )  # what a limit of launches counts, whatever the time did
    grown = _LAUNCHES if check.key in COUNTS else d.DELTA_NS
    rows = rows[rows[grown] > 0].sort_values(grown, ascending=False, kind="stable").head(MOST)
    return tuple(_cause(str(name), row) for name, row in rows.iterrows())


def _cause(kernel: str, row: pd.Series[float]) -> Cause:
    effect = max(d.EFFECTS, key=lambda e: abs(int(row[e])))
    return Cause(kernel, int(row[d.DELTA_NS]), _WORDS[effect][int(row[effect]) < 0], float(row[_LAUNCHES]))


def _mine(budget: Budget, parts: Decomposition) -> pd.Series[bool]:
    """The cells that a budget is about."""
    cells = parts.cells
    if budget.kind == STEP:
        return pd.Series(True, cells.index)
    if budget.kind == KERNEL:
        either = [
            any(budget.matches(n) for n in (*base, *other))
            for base, other in zip(cells[d.BASE_KERNELS], cells[d.OTHER_KERNELS], strict=True)
        ]
        return pd.Series(either, cells.index, dtype=bool)
    if budget.kind == ORIGIN and not parts.by_origin:
        return pd.Series(False, cells.index)
    return cells[budget.kind] == budget.name
