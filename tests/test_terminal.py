"""The command line at a terminal: tables that fit it, no colour where none is wanted, help and completion."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from rich.cells import cell_len
from rich.console import Console

from hta_dsv4 import shipped
from hta_dsv4.cli import main as cli_module
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.text import print_grid

PROBE = str(shipped.traces()["h200_probe"])
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-79]|4[0-79]|9\d|10\d|[34]8;[0-9;]+)m")
HEADERS = ("kernel", "a us/step", "%", "n/step", "b us/step", "%", "n/step", "delta us")
NUMBERS = [f"{1000 * i + 1:,}.{i:03d}" for i in range(14)]
WIDE = Grid(
    "t",
    HEADERS,
    (("_a_kernel_of_some_name_" * 4, *NUMBERS[:7]), ("short", *NUMBERS[7:])),
    (("sum", *NUMBERS[:7]),),
)


def at_a_terminal(grid, width, full=False):
    out = io.StringIO()
    print_grid(grid, Console(file=out, width=width, force_terminal=True, color_system=None), full=full)
    return [_ESCAPE.sub("", line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def terminal():
    """Run a command in a terminal of 100 columns; what it shows."""

    def go(*words, **env):
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        left = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
        child = subprocess.Popen(
            [sys.executable, "-m", "hta_dsv4", *words],
            stdin=side, stdout=side, stderr=subprocess.DEVNULL, env={**left, "TERM": "xterm-256color", **env},
        )  # fmt: skip
        os.close(side)
        shown = b""
        try:
            while part := os.read(main, 1 << 16):
                shown += part
        except OSError:  # how Linux says that the other side has closed
            pass
        os.close(main)
        assert child.wait() == 0
        return shown.decode().replace("\r\n", "\n")

    return go


@pytest.mark.parametrize("width", [70, 100])
def test_a_table_too_wide_goes_on_below_with_its_names(width):
    """Seven number columns at a terminal -> no line too long, every number whole and once, names in each block."""
    lines = at_a_terminal(WIDE, width)
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    body = "\n".join(line for line in lines if not line.startswith("sum"))
    assert [body.count(n) for n in NUMBERS] == [1] * 14
    blocks = text.split("\n\n")
    assert len(blocks) > 1
    assert all("short" in b and "kernel" in b and "sum" in b for b in blocks)


def test_a_percentage_stays_beside_its_number():
    """A table broken up -> a new block begins with a variant's time, not amid its columns, while those fit."""
    heads = [line for line in at_a_terminal(WIDE, 80) if line.startswith("kernel")]
    assert [h.split()[1] for h in heads] == ["a", "b", "delta"]


def test_one_column_wider_than_the_terminal_is_whole():
    """A number column beyond the width -> its own block, uncut."""
    grid = Grid("t", ("k", "x us", "%"), (("n", "1" * 50, "2" * 50),))
    text = "\n".join(at_a_terminal(grid, 20))
    assert "1" * 50 in text
    assert "2" * 50 in text


def test_with_full_a_row_is_one_line():
    """The same table with --full, at a terminal or in a file -> one block."""
    out = io.StringIO()
    print_grid(WIDE, Console(file=out, width=100), full=True)
    for lines in (out.getvalue().splitlines(), at_a_terminal(WIDE, 100, full=True)):
        assert any(all(n in line for n in NUMBERS[7:]) for line in lines)


def test_in_a_file_every_block_has_the_names():
    """The same table in a file of 100 columns -> no line is longer, and the row's name finds all its numbers."""
    out = io.StringIO()
    print_grid(WIDE, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 100
    mine = " ".join(line for line in lines if line.startswith("short"))
    assert all(mine.count(n) == 1 for n in NUMBERS[7:])


def test_sentences_go_on_in_the_next_line():
    """A table of prose at a terminal -> it fits, with every word."""
    said = "a sentence that goes on for longer than the line is wide, with no end in sight, until it ends"
    lines = at_a_terminal(Grid("t", ("", "finding", "us"), (("1", said, "7.000"),), left=2, prose=True), 60)
    assert max(map(cell_len, lines)) <= 60
    assert [w for w in " ".join(lines).split() if w in said.split()] == said.split()


def test_tables_of_a_real_trace_fit_a_terminal_and_have_no_colour(terminal):
    """A table by kernel, a cross table and a roofline at 100 columns, NO_COLOR set -> tables fit, no colours."""
    for words in (["fill", PROBE], ["shares", PROBE, "--by", "kernel,origin"]):
        shown = terminal(*words, NO_COLOR="1")
        assert not _COLOUR.search(shown)
        tables = [line for line in _ESCAPE.sub("", shown).split("\n") if not line.startswith("note")]
        assert len(tables) > 10
        assert max(map(cell_len, tables)) <= 100


@pytest.mark.parametrize(
    "words", [["shares", PROBE], ["--help"], ["shares", "--help"], ["shares", "/nowhere"]]
)
def test_nothing_piped_has_an_escape(words):
    """Output and errors into a pipe, even from a terminal that knows colours -> no escape sequence."""
    done = subprocess.run(
        [sys.executable, "-m", "hta_dsv4", *words],
        capture_output=True,
        check=False,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    assert done.stdout or done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", [c.callback.__name__ for c in cli_module.app.registered_commands])
def test_the_help_of_every_command_has_an_example(command, capsys):
    """COMMAND --help -> a line to copy that begins with the command."""
    with pytest.raises(SystemExit) as left:
        cli_module.main([command, "--help"])
    assert left.value.code == 0
    assert f"Example: hta-dsv4 {command} " in capsys.readouterr().out


def test_the_shell_completes_commands_and_options():
    """What the shell asks for on TAB -> commands and options by their beginning."""
    asked = [("hta-dsv4 sh", 1, ["shares"]), ("hta-dsv4 shares --par", 2, ["--parquet"])]
    for words, at, found in asked:
        env = {
            **os.environ,
            "_HTA_DSV4_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(at),
        }
        done = subprocess.run(
            [sys.executable, "-m", "hta_dsv4"], capture_output=True, text=True, check=False, env=env
        )
        assert (done.returncode, done.stdout.split()) == (0, found)
    script = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m hta_dsv4 --show-completion; true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_HTA_DSV4_COMPLETE" in script.stdout
