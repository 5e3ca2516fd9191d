"""Grids for a terminal (rich) and for Markdown."""

from __future__ import annotations

import re
import shutil
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hta_dsv4.present.grid import Grid

_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def console(width: int | None = None) -> Console:
    """A console on stdout: the terminal's width on a terminal, wide enough for any line when piped."""
    if width is None:
        width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 10_000
    return Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def printable(text: str) -> str:
    """Text with control characters shown as escapes, so that a hostile name cannot drive the terminal."""
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), text)


def shorten(text: str, width: int) -> str:
    """Text cut in the middle to ``width`` characters: kernel names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def print_grid(grid: Grid, out: Console, *, full: bool = False) -> None:
    """Print a grid.

    Args:
        grid: what to print.
        out: where to.
        full: never shorten names, wrap them instead.
    """
    numbers = [
        max([len(h), *(len(r[i]) for r in (*grid.rows, *grid.footer))])
        for i, h in enumerate(grid.headers)
        if i >= grid.left
    ]
    room = max(16, (out.width - sum(numbers) - 2 * len(grid.headers) - 2) // max(grid.left, 1))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(grid.headers))
    for i, header in enumerate(grid.headers):
        left = i < grid.left
        table.add_column(
            printable(header),
            justify="left" if left else "right",
            no_wrap=not (left and full),
            overflow="fold",
        )

    def cell(i: int, text: str) -> Text:
        text = printable(text)
        return Text(text if full or i >= grid.left else shorten(text, room))

    for row in grid.rows:
        table.add_row(*(cell(i, c) for i, c in enumerate(row)))
    if grid.footer:
        table.add_section()
        for row in grid.footer:
            table.add_row(*(cell(i, c) for i, c in enumerate(row)), style="dim")
    out.print(Text(printable(grid.title), style="bold"))
    out.print(table, crop=False)
    for note in grid.notes:
        out.print(Text("note: " + printable(note)), soft_wrap=True)


def markdown(grid: Grid) -> str:
    """A grid as a GitHub Markdown table; names are escaped so that they show as written."""

    def cell(text: str) -> str:
        return _MARKDOWN_SPECIAL.sub(r"\\\1", printable(text))

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell(c) for c in cells) + " |"

    rule = "|" + "|".join(" --- " if i < grid.left else " ---: " for i in range(len(grid.headers))) + "|"
    lines = [f"**{cell(grid.title)}**", "", line(grid.headers), rule]
    lines += [line(r) for r in (*grid.rows, *grid.footer)]
    if grid.notes:
        lines += ["", *(f"- {cell(n)}" for n in grid.notes)]
    return "\n".join(lines) + "\n"
