"""Empty words on a command line: as a path they would be the current folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hta_dsv4.cli.main import app
from hta_dsv4.cli.words import refuse_empty
from hta_dsv4.errors import HtaDsv4Error
from tests.conftest import cli

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
WITH_VALUE = [
    (name, option)
    for name, command in COMMANDS.items()
    for p in command.params
    if p.param_type_name == "option" and not p.is_flag
    for option in (*p.opts, *p.secondary_opts)
    if option != "--api-key"
]


@pytest.mark.parametrize(("command", "option"), WITH_VALUE)
def test_no_option_of_any_command_takes_an_empty_word(command, option):
    """Every option with a value, of every command -> one line naming it, exit code 2."""
    spellings = [[option, ""]] + ([[f"{option}="]] if option.startswith("--") else [])
    for words in spellings:
        done = cli(command, "mma", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"hta-dsv4: {option}: an empty word")


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"capture", "cache"}))
def test_no_command_takes_an_empty_argument_for_this_folder(command, tmp_path, monkeypatch):
    """An empty argument, in a folder that is a trace of its own -> exit code 2, one line, nothing read."""
    (tmp_path / "rank0.json").write_bytes((Path(__file__).parent / "cases" / "00-baseline.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    more = {"sweep": ["--from"], "report": ["-o", "x.html"], "annotate": ["-o", "x.pftrace"]}.get(command, [])
    if command == "gate":
        (tmp_path / "b.toml").write_text("[step.sum]\nmax_us = 1\n")
        more = ["--budget", "b.toml"]
    words = [command, *more, "", ""] if command in ("diff", "scaling") else [command, *more, ""]
    done = cli(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_words_that_only_look_empty_pass():
    """An empty key, a value that ends in =, what stands after -- -> parsed as ever."""
    for words in (
        ["sweep", "--api-key", ""],
        ["whatif", "--set", "a="],
        ["explain", "--", "--x", "", "--y="],
    ):
        refuse_empty(words)
    with pytest.raises(HtaDsv4Error, match=r"^--out: an empty word"):
        refuse_empty(["report", "a", "--out", ""])


def test_an_empty_word_ends_a_process_with_2():
    """As a process -> exit code 2 and one line, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "hta_dsv4", "shares", "mma", "--rules", ""],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
