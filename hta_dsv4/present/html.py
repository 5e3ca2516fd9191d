"""Grids as HTML tables, for the report and for notebooks. Every text from a trace is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from hta_dsv4.present.grid import Grid
from hta_dsv4.present.text import printable, shorten

_WORDS = re.compile(r"(?<=[A-Za-z0-9][_<:/(])(?=\w)|(?<=[A-Za-z],)(?=\w)|(?<=::)(?=\w)")
"""Where a name may go on in the next line: never within a number."""
NAME_WIDTH = 90
"""Characters of a name shown in a cell; the whole one is its tooltip."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        shown: its text.
        full: the whole text where ``shown`` is cut, else ``""``.
    """

    shown: str
    full: str = ""

    @property
    def parts(self) -> list[str]:
        """The text, divided where a line may end: a kernel's name has no spaces."""
        return _WORDS.split(self.shown)


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    headers: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    lead: Sequence[str]
    left: int


@cache
def environment() -> jinja2.Environment:
    """The templates of this package: autoescaping, and an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("hta_dsv4.present", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def grid_html(grid: Grid, full: bool = False) -> str:
    """A grid as a ``<div>`` with its title, table and notes.

    Args:
        grid: the grid.
        full: never shorten names.

    Returns:
        HTML; safe whatever the names are.
    """

    def cell(text: str, number: bool = False) -> Cell:
        text = printable(text)
        if number:
            text = text.replace(" -> ", " → ")  # a line may end within the former
        short = text if full or grid.prose else shorten(text, NAME_WIDTH)
        return Cell(short, text if short != text else "")

    def row(cells: Sequence[str]) -> list[Cell]:
        return [cell(text, i >= grid.left) for i, text in enumerate(cells)]

    table = _Table(
        printable(grid.title),
        [cell(h) for h in grid.headers],
        [row(r) for r in grid.rows],
        [row(r) for r in grid.footer],
        [printable(n) for n in grid.notes],
        [printable(n) for n in grid.lead],
        grid.left,
    )
    return environment().get_template("grid.html.j2").render(grid=table)
