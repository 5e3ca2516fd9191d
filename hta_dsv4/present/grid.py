"""A table as text, before it is known whether a terminal or Markdown shows it; and how numbers are written in one.

Times are printed in microseconds with three decimals, which is exact: one ns is 0.001 us. Per-step times are rounded
to the nanosecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pandas as pd

from hta_dsv4.analysis.shares import divide_half_even

ABSENT = "-"
_OPTION = re.compile(r": --full\)$")
"""The end of a line that counts what was left out, as a terminal is told it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One table as text.

    Attributes:
        title: a line above.
        headers: one per column; the first ``left`` columns are text, the others numbers.
        rows: cells.
        footer: rows below a rule: the totals.
        notes: sentences below.
        left: how many leading columns are left-aligned and may be shortened to fit.
        lead: sentences between the title and the table.
        widest: columns of a page that sentences of a prose grid go on in the next line at, where the page has more.
        legend: what the rows below the rule are, a line of its own right under the table.
        prose: whether the left columns hold sentences, which are never shortened.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    footer: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    left: int = 1
    lead: tuple[str, ...] = ()
    prose: bool = False
    legend: str = ""
    widest: int = 0

    @property
    def off_the_command_line(self) -> Grid:
        """The grid for a page that has no options: what was left out is counted, and no option named that shows it."""

        def plain(text: str) -> str:
            return _OPTION.sub(")", text)

        def lines(rows: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(map(plain, row)) for row in rows)

        return replace(
            self, rows=lines(self.rows), footer=lines(self.footer), notes=tuple(map(plain, self.notes)),
            lead=tuple(map(plain, self.lead)),
        )  # fmt: skip


def us(ns: int | float | None) -> str:
    """Nanoseconds as microseconds with three decimals and thousands separators; ``-`` for missing."""
    if ns is None or pd.isna(ns):
        return ABSENT
    return f"{ns / 1000:,.3f}" if isinstance(ns, float) else _exact_us(int(ns))


def _exact_us(ns: int) -> str:
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return f"{sign}{ns // 1000:,}.{ns % 1000:03d}"


def signed_us(ns: float | None) -> str:
    """As :func:`us`, with ``+`` before what is more than 0."""
    if ns is None or pd.isna(ns):
        return ABSENT
    return ("+" if ns > 0 else "") + _exact_us(int(ns))


def percent(part: float | None) -> str:
    """A part of 1 in percent, one decimal; ``-`` for missing."""
    return ABSENT if part is None or pd.isna(part) else f"{100 * part:.1f}"


def count(value: float | None) -> str:
    """A number, or a mean number with two decimals; ``-`` for missing."""
    if value is None or pd.isna(value):
        return ABSENT
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def shown_of(n: int, total: int) -> int:
    """How many of ``total`` rows ``--top n`` shows: all for 0."""
    return total if n <= 0 or n >= total else n


def steps_said(steps: int) -> str:
    """``no steps``, ``1 step``, ``5 steps``."""
    return f"{steps or 'no'} step{'' if steps == 1 else 's'}"


def per_step(ns: int, steps: int) -> int:
    """A total as time per step; the total itself where there are no steps."""
    return divide_half_even(ns, steps) if steps else ns
