"""One key against another, in percent of the sum: which part of the model the glue of a step belongs to.

By step, layer or scope first, in microseconds: a step or a layer is compared with the next one, not with the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.places import PLACES, STEP
from hta_dsv4.analysis.shares import Shares
from hta_dsv4.present.grid import ABSENT, Grid, per_step, us
from hta_dsv4.present.shares_grid import shares_grid

UNKNOWN = "unknown"
_MOST_COLUMNS = 24


def can_cross(shares: Shares) -> bool:
    """Whether a cross table of these shares is readable: two keys, and not a column for every kernel."""
    if len(shares.by) != 2 or "kernel" in shares.by:
        return False
    return shares.table[shares.by[1]].nunique() <= _MOST_COLUMNS


def cross_grid(shares: Shares, own: bool = False) -> Grid:
    """Shares by two keys as a cross table.

    Args:
        shares: of one variant, by two keys; with several ranks the median one is shown.
        own: of own times, beside tables that are, not of the sum. Their title says so also of a variant without early
            starts, of which both are the same.

    Returns:
        Rows of the first key and columns of the second, largest first and ``unknown`` last; each cell in percent of
        the sum (or of own time), so that all cells add up to 100. The first sentence below says the largest cell that
        a table by the first key alone hides. Of steps, layers and scopes the rows stand in order, in us.
    """
    first, second = shares.by
    rank = shares.median_rank
    table = rank.table
    place, steps = first in PLACES, first == STEP
    wide = table.pivot_table(
        index=first, columns=second, values=sh.OWN_NS if own else sh.TIME_NS, aggfunc="sum", sort=False
    )
    total = int(table[sh.OWN_NS].sum()) if own else rank.extent.sum_ns
    kind = "own time" if own else "the sum"
    rows = wide.sum(axis=1).sort_values(ascending=False, kind="stable").index.tolist()
    if place:
        rows = table[first].drop_duplicates().tolist()
    columns = wide.sum(axis=0).sort_values(ascending=False, kind="stable").index.tolist()
    columns.sort(key=lambda c: c == UNKNOWN)  # stable: only unknown moves, to the end

    def cell(ns: float, parts: int) -> str:
        if ns != ns or not total:
            return ABSENT
        if place:
            return us(per_step(int(ns), parts))
        percent = 100 * ns / total
        return "<0.1" if 0 < percent < 0.05 else f"{percent:.1f}"

    each = 1 if steps else rank.steps
    body = tuple(
        (str(r), cell(float(wide.loc[r].sum()), each), *(cell(float(wide.loc[r, c]), each) for c in columns))
        for r in rows
    )
    last = ("mean" if steps else "sum", cell(float(total), rank.steps),
            *(cell(float(wide[c].sum()), rank.steps) for c in columns))  # fmt: skip
    unit = f"% of {kind}" if not place else "us" if steps or not rank.steps else "us/step"
    if place and own:
        unit = f"own {unit}"
    notes = (*shares.notes, *shares.early_note) if place else (_headline(shares, own),) if total else ()
    return Grid(
        f"{shares.label}: {first} x {second}, {unit}",
        (first, "sum", *(str(c) for c in columns)),
        body,
        (last,),
        notes,
    )


def share_grids(shares: Shares, top: int = 0) -> list[Grid]:
    """The table, and the cross table where there are two keys; that alone where its rows are steps, layers or scopes.

    Args:
        shares: of one variant.
        top: rows of the table; 0 for all.
    """
    crossed = [cross_grid(shares)] if can_cross(shares) else []
    return crossed if crossed and shares.by[0] in PLACES else [shares_grid(shares, top), *crossed]


@dataclass(frozen=True, slots=True)
class Telling:
    """What a table by one key alone hides most of: the part of a row that belongs to one column.

    Attributes:
        row, column: keys of the cell; column ``""`` where none of the row is known.
        points, of: percent of the sum (or of own time), of the cell and of its row.
        unknown: the same of which the column is not known, in that row.
    """

    row: str
    column: str
    points: float
    of: float
    unknown: float


def telling(shares: Shares, own: bool = False) -> Telling | None:
    """The cell that a table by the first key alone hides: the largest of a row that several columns divide.

    Args:
        shares: of one variant, by two keys.
        own: in percent of own time, not of the sum.

    Returns:
        The cell, or ``None`` where nothing is known of the second key.
    """
    first, second = shares.by
    table = shares.table
    if own:
        table = table.assign(**{sh.SHARE: table[sh.OWN_NS] / max(int(table[sh.OWN_NS].sum()), 1)})
    known = table[table[second] != UNKNOWN]
    if not len(known):
        return None
    by_row = table.groupby(first)[sh.SHARE].sum()
    # the row that says least by itself: the largest that several columns divide, and not one named as its largest cell
    divided = table.groupby(first)[second].nunique()
    rows = by_row[divided > 1].sort_values(ascending=False, kind="stable")
    largest = known.sort_values(sh.SHARE, ascending=False, kind="stable").drop_duplicates(first)
    named_so = set(largest.loc[largest[first] == largest[second], first])
    candidates = [str(r) for r in rows.index if r not in named_so]
    row = candidates[0] if candidates else str(by_row.idxmax())
    cell = known[known[first] == row].sort_values(sh.SHARE, ascending=False, kind="stable")
    of = 100 * float(by_row[row])
    if not len(cell):
        return Telling(row, "", 0.0, of, of)
    best = cell.iloc[0]
    return Telling(
        row, str(best[second]), 100 * float(best[sh.SHARE]), of, of - 100 * float(cell[sh.SHARE].sum())
    )


def _headline(shares: Shares, own: bool) -> str:
    """The largest cell in words: "of the 60.0 % glue, 52.0 points belong to the indexer"."""
    second, cell = shares.by[1], telling(shares, own)
    if cell is None:
        return f"no {second} is known"
    if not cell.column:
        return f"of the {cell.of:.1f} % {cell.row}, none has a known {second}"
    said = f"of the {cell.of:.1f} % {cell.row}, {cell.points:.1f} points belong to {cell.column}"
    if cell.unknown > cell.points:  # then the unknown may change which is largest
        said += f"; of {cell.unknown:.1f} points the {second} is not known"
    return said
