"""Grids for a terminal (rich) and for Markdown."""

from __future__ import annotations

import os
import re
import shutil
import sys

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hta_dsv4.present.grid import Grid
from hta_dsv4.present.kernel_names import shorten

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_NARROWEST, _WIDEST = 30, 80
_GAP = 3  # a box of this style puts two spaces and a divider between columns
__all__ = ["PIPED", "console", "markdown", "print_grid", "printable", "shorten"]

PIPED = 200
"""Columns that output for no terminal is laid out for."""
# control characters; line and paragraph separators; marks that reverse the order in which text is shown
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def console(width: int | None = None) -> Console:
    """A console on stdout.

    Args:
        width: columns to fit names into; by default ``COLUMNS``, else the terminal's, else :data:`PIPED` when piped.
            Numbers are never cut, so a table of many may be wider.
    """
    if width is None:
        # get_terminal_size reads COLUMNS first and falls back where stdout is no terminal
        width = shutil.get_terminal_size((PIPED, 24)).columns if _asks_width() else PIPED
    return Console(width=max(width, 1), highlight=False, soft_wrap=False, emoji=False, markup=False)


def _asks_width() -> bool:
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()


def printable(text: str) -> str:
    """Text with control characters shown as escapes, so that a hostile name cannot drive the terminal."""
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), text)


def print_grid(grid: Grid, out: Console, *, full: bool = False) -> None:
    """Print a grid.

    Args:
        grid: what to print.
        out: where to; its width is what names are shortened to fit.
        full: never shorten names.
    """
    out.print(Text(printable(grid.title), style="bold"), soft_wrap=True)
    for line in grid.lead:
        out.print(Text("  " + printable(line)), soft_wrap=True)
    if grid.rows or grid.footer:
        _print_table(grid, out, full)
    for note in grid.notes:
        out.print(Text("note: " + printable(note)), soft_wrap=True)


def _print_table(grid: Grid, out: Console, full: bool) -> None:
    every = [tuple(map(printable, r)) for r in (grid.headers, *grid.rows, *grid.footer)]
    widths = [max(cell_len(r[i]) for r in every) for i in range(len(grid.headers))]
    between = _GAP * (len(widths) - 1)
    if not (full or grid.prose):
        names = [min(w, _WIDEST) for w in widths[: grid.left]]  # the eye has to find the number behind it
        room = _fit(names, out.width - sum(widths[grid.left :]) - between)
        every = [(*map(shorten, r[: grid.left], room), *r[grid.left :]) for r in every]
        widths = [max(cell_len(r[i]) for r in every) for i in range(len(grid.headers))]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(grid.headers))
    for i, header in enumerate(every[0]):
        table.add_column(
            header, justify="left" if i < grid.left else "right", no_wrap=True, min_width=widths[i]
        )

    for row in every[1 : 1 + len(grid.rows)]:
        table.add_row(*map(Text, row))
    if grid.footer:
        table.add_section()
        for row in every[1 + len(grid.rows) :]:
            table.add_row(*map(Text, row), style="dim")
    # rich would cut columns to the console's width; a console as wide as the table leaves them whole
    needed = sum(widths) + between
    wide = Console(file=out.file, width=max(out.width, needed), highlight=False, emoji=False, markup=False)
    wide.print(table, crop=False)


def _fit(widths: list[int], room: int) -> list[int]:
    """Widths of the name columns, no wider than their content and together within ``room`` where that can be."""
    out = list(widths)
    while sum(out) > room and max(out) > _NARROWEST:
        most = max(out)
        out[out.index(most)] = max(_NARROWEST, most - max(1, (sum(out) - room) // len(out)))
    return out


def markdown(grid: Grid) -> str:
    """A grid as a GitHub Markdown table; names are escaped so that they show as written."""

    def cell(text: str) -> str:
        return _MARKDOWN_SPECIAL.sub(r"\\\1", printable(text))

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell(c) for c in cells) + " |"

    rule = "|" + "|".join(" --- " if i < grid.left else " ---: " for i in range(len(grid.headers))) + "|"
    lines = [f"**{cell(grid.title)}**", *(item for text in grid.lead for item in ("", cell(text)))]
    if grid.rows or grid.footer:
        lines += ["", line(grid.headers), rule, *(line(r) for r in (*grid.rows, *grid.footer))]
    if grid.notes:
        lines += ["", *(f"- {cell(n)}" for n in grid.notes)]
    return "\n".join(lines) + "\n"
