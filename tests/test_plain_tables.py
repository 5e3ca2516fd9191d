"""A table written without rich is what rich draws, and a long one takes no time."""

from __future__ import annotations

import io
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from hta_dsv4.present import text
from hta_dsv4.present.grid import Grid

CELL = st.text(alphabet="ab 1,.-%<>[]:é‐—中文\u0301🙂\\", max_size=12)


@st.composite
def grids(draw):
    left, numbers = draw(st.integers(1, 3)), draw(st.integers(0, 6))
    row = st.tuples(*[CELL] * (left + numbers))
    headers = draw(row | st.just(("",) * (left + numbers)))
    body, footer = draw(st.lists(row, max_size=5)), draw(st.lists(row, max_size=2))
    return Grid("t", headers, tuple(body), tuple(footer), left=left)


@given(grids(), st.sampled_from([20, 80, 200]), st.booleans())
@settings(max_examples=400, deadline=None)
def test_plain_lines_are_what_rich_draws(grid, width, full):
    """Any table, any width -> byte for byte the text of the layout that is left out."""
    seen, was = [], text._laid_out

    def lines(*args):
        plain = list(_LINES(*args))
        out = Console(file=io.StringIO(), width=width)
        seen.append(("\n".join(plain) + "\n", was(*args, out)))
        return plain

    _LINES, text._lines = text._lines, lines
    try:
        text.print_grid(grid, Console(file=io.StringIO(), width=width), full=full)
    finally:
        text._lines = _LINES
    assert all(plain == drawn for plain, drawn in seen)


def test_the_usual_table_is_written_plainly(monkeypatch):
    """A table in a file -> rich lays nothing out."""
    monkeypatch.setattr(text, "_laid_out", None)
    out = io.StringIO()
    text.print_grid(
        Grid("t", ("k", "us"), (("a", "1.5"), ("bcd", "22.5")), (("sum", "24.0"),)),
        Console(file=out, width=80),
    )
    assert out.getvalue().splitlines() == [
        "t",
        "k       us",
        "─" * 10,
        "a      1.5",
        "bcd   22.5",
        "",
        "sum   24.0",
    ]


def test_fifty_thousand_rows_are_printed_in_seconds():
    """50,000 long names -> printed in a second or two, where rich's layout took 80 seconds."""
    rows = tuple((f"kernel_{i}_" + "x" * 60, f"{i:,}.000", "1.0", "2.0") for i in range(50_000))
    began = time.process_time()
    text.print_grid(
        Grid("t", ("kernel", "a", "b", "c"), rows), Console(file=io.StringIO(), width=200), full=True
    )
    assert time.process_time() - began < 10


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_many_rows_at_a_terminal_are_written_plainly(monkeypatch):
    """1,500 rows at a terminal -> all there, below a title no styles; 3 rows have a bold header."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for many, styled in ((3, True), (1500, False)):
        out = Terminal()
        rows = tuple((f"k{i}", "1") for i in range(many))
        terminal = Console(file=out, width=80)
        text.print_grid(Grid("t", ("name", "us"), rows), terminal)
        table = out.getvalue().splitlines()[1:]
        assert sum(line.startswith("k") for line in table) == many
        assert any("\x1b[" in line for line in table) is styled
