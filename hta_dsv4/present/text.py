"""Grids for a terminal (rich) and for Markdown."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hta_dsv4.present.grid import Grid
from hta_dsv4.present.kernel_names import shorten

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_NARROWEST, _WIDEST = 30, 80
_SHORTEST = 16  # of a name, where that keeps all numbers of a row side by side
_FOLLOWS = ("%", "n/", "own ", "delta", "median")  # headers that say little without the column before them
_GAP = 3  # a box of this style puts two spaces and a divider between columns
__all__ = ["PIPED", "console", "markdown", "print_grid", "printable", "shorten"]

PIPED = 200
"""Columns that output for no terminal is laid out for."""
# control characters; line and paragraph separators; marks that reverse the order in which text is shown
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_TRAILING = re.compile(r" +$", re.MULTILINE)
_MANY = 1000
"""Rows beyond which a terminal gets plain lines, too: rich lays out some 600 rows in a second."""


def console(width: int | None = None) -> Console:
    """A console on stdout.

    Args:
        width: columns to fit names into; by default ``COLUMNS``, else the terminal's, else :data:`PIPED` when piped.
            Numbers are never cut: a table that is too wide goes on in further blocks below, each with the names.
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
        full: never shorten names, nor break a table that is too wide.
    """
    out.print(Text(printable(grid.title), style="bold"), soft_wrap=True)
    for line in grid.lead:
        out.print(Text("  " + printable(line)), soft_wrap=True)
    if grid.rows or grid.footer:
        _print_table(grid, out, full)
    if grid.legend:
        # one line in a file, so that grep finds it; at a terminal it goes on at a word
        out.print(Text(printable(grid.legend), style="dim"), soft_wrap=not out.is_terminal)
    for note in grid.notes:
        out.print(Text("note: " + printable(note)), soft_wrap=True)


def _print_table(grid: Grid, out: Console, full: bool) -> None:
    every = [tuple(map(printable, r)) for r in (grid.headers, *grid.rows, *grid.footer)]
    widths = [max(_cells(r[i]) for r in every) for i in range(len(grid.headers))]
    columns = list(range(len(widths)))
    room = out.width - sum(widths[grid.left :]) - _GAP * (len(widths) - 1)
    fits = not full  # every block has the names, so grep finds all numbers of a row in a file, too
    if not (full or grid.prose):
        names = [min(w, _WIDEST) for w in widths[: grid.left]]  # the eye has to find the number behind it
        cut = _fit(names, room)
        if fits and out.is_terminal and sum(cut) > room and room >= _SHORTEST * len(names):
            cut = _fit(names, room, _SHORTEST)
        every = [(*map(shorten, r[: grid.left], cut), *r[grid.left :]) for r in every]
        widths = [max(cell_len(r[i]) for r in every) for i in columns]
    elif fits and grid.left and (out.is_terminal or grid.widest or len(widths) > grid.left):
        # In a file a sentence with nothing behind it may be as long as it is, unless its grid says how wide it gets.
        room -= max(out.width - grid.widest, 0) if grid.widest else 0
        longest = max(range(grid.left), key=widths.__getitem__)  # sentences go on in the next line
        rest = sum(widths[: grid.left]) - widths[longest]
        widths[longest] = min(widths[longest], max(_NARROWEST, room - rest))
    left, right = columns[: grid.left], columns[grid.left :]
    blocks = _blocks(grid.headers, widths, grid.left, out.width) if fits and right else [right]
    for i, block in enumerate(blocks):
        if i:
            out.print()
        _draw(grid, every, widths, left + block, out)


def _draw(
    grid: Grid, every: list[tuple[str, ...]], widths: list[int], columns: list[int], out: Console
) -> None:
    """Print some of a table's columns, as wide as they were found to be."""
    whole = all(widths[i] >= max(_cells(r[i]) for r in every) > 0 for i in columns)
    if whole and out.encoding.startswith("utf") and (not out.is_terminal or len(every) > _MANY):
        out.file.write("\n".join(_lines(grid, every, widths, columns)) + "\n")
    else:
        out.file.write(_laid_out(grid, every, widths, columns, out))


def _laid_out(
    grid: Grid, every: list[tuple[str, ...]], widths: list[int], columns: list[int], out: Console
) -> str:
    """A table as rich draws it: cells go on in further lines, header and totals are styled."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(grid.headers))
    for i in columns:
        table.add_column(
            every[0][i],
            justify="left" if i < grid.left else "right",
            no_wrap=widths[i] >= max(cell_len(r[i]) for r in every),
            width=widths[i],
            overflow="fold",
        )
    for n, row in enumerate(every[1:]):
        if n == len(grid.rows):
            table.add_section()
        table.add_row(*(Text(row[i]) for i in columns), style="dim" if n >= len(grid.rows) else None)
    # rich would cut columns to the console's width; a console as wide as the table leaves them whole
    needed = sum(widths[i] for i in columns) + _GAP * (len(columns) - 1)
    wide = Console(file=out.file, width=max(out.width, needed), highlight=False, emoji=False, markup=False)
    with wide.capture() as drawn:
        wide.print(table, crop=False)
    text = drawn.get()
    # rich pads a last column of names with spaces, which a window narrower than the file shows as empty lines
    return text if out.is_terminal else _TRAILING.sub("", text)


def _cells(text: str) -> int:
    """Columns that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _lines(grid: Grid, every: list[tuple[str, ...]], widths: list[int], columns: list[int]) -> Iterator[str]:
    """What rich draws of a table whose cells are whole, without styles and spaces at the ends of lines."""
    between = " " * _GAP

    def line(row: tuple[str, ...]) -> str:
        cells = []
        for i in columns:
            text = row[i] if i < grid.left else row[i].rstrip()
            pad = " " * (widths[i] - _cells(text))
            cells.append(text + pad if i < grid.left else pad + text)
        return between.join(cells).rstrip(" ")

    if any(grid.headers):
        yield line(every[0])
        yield "─" * (sum(widths[i] for i in columns) + _GAP * (len(columns) - 1))
    for n, row in enumerate(every[1:]):
        if n == len(grid.rows) and n:
            yield ""
        yield line(row)


def _blocks(headers: tuple[str, ...], widths: list[int], left: int, width: int) -> list[list[int]]:
    """Number columns in the fewest runs that fit beside the name columns; what belongs together stays so if it fits."""
    groups: list[list[int]] = []
    for i in range(left, len(widths)):
        if groups and headers[i].startswith(_FOLLOWS):
            groups[-1].append(i)
        else:
            groups.append([i])
    room = width - sum(widths[:left]) - _GAP * max(left - 1, 0)

    def fit(columns: list[int]) -> bool:
        return sum(widths[i] + (_GAP if left or i != columns[0] else 0) for i in columns) <= room

    blocks: list[list[int]] = []
    for group in groups:
        if blocks and fit(blocks[-1] + group):
            blocks[-1] += group
            continue
        blocks.append([])
        for column in group:
            if blocks[-1] and not fit([*blocks[-1], column]):
                blocks.append([])
            blocks[-1].append(column)
    return blocks


def _fit(widths: list[int], room: int, narrowest: int = _NARROWEST) -> list[int]:
    """Widths of the name columns, no wider than their content and together within ``room`` where that can be."""
    out = list(widths)
    while sum(out) > room and max(out) > narrowest:
        most = max(out)
        out[out.index(most)] = max(narrowest, most - max(1, (sum(out) - room) // len(out)))
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
    if grid.legend:
        lines += ["", cell(grid.legend)]
    if grid.notes:
        lines += ["", *(f"- {cell(n)}" for n in grid.notes)]
    return "\n".join(lines) + "\n"
