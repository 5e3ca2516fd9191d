"""No command writes over a file that it reads."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from hta_dsv4.cli.guard import READS, WRITES, refuse_overwriting
from hta_dsv4.cli.main import app
from hta_dsv4.errors import HtaDsv4Error
from tests.builders import KinetoTrace
from tests.conftest import cli

COMMANDS = {c.callback.__name__: c.callback for c in app.registered_commands if c.callback is not None}
SERVERS = {("capture", "trace_dir")}
"""Folders that a server writes to: nothing in them is read before it has."""


def parameters(name):
    """Parameters of a command and what is said of each: its types and its metavar."""
    return {
        p: str(v.annotation)
        + "".join(str(getattr(m, "metavar", "")) for m in getattr(v.annotation, "__metadata__", ()))
        for p, v in inspect.signature(COMMANDS[name], eval_str=True).parameters.items()
    }


PAIRS = [
    (name, written, read)
    for name in COMMANDS
    for written in WRITES
    for read in READS
    if {written, read} <= parameters(name).keys()
]


@pytest.fixture
def trace(tmp_path):
    """A small trace."""
    kineto = KinetoTrace()
    for i in range(4):
        kineto.kernel("k", 10 * i, 5)
    return kineto.write(tmp_path / "a.json")


def test_every_parameter_with_a_file_is_known():
    """A command's parameter that names a file, a folder or a trace -> known as read or as written."""
    files = {
        (name, p)
        for name in COMMANDS
        for p, said in parameters(name).items()
        if any(word in said for word in ("Path", "TRACE", "FILE", "PATH"))
    }
    assert {(n, p) for n, p in files if p not in READS and p not in WRITES} == SERVERS
    assert {name for name, _, _ in PAIRS} >= {"report", "annotate", "findings", "gate", "sweep", "shares"}


@pytest.mark.parametrize(("name", "written", "read"), PAIRS)
def test_every_pair_of_input_and_output(trace, tmp_path, name, written, read):
    """Each output naming what each input names, a link to it, or a file of the folder named -> refused, unread."""
    link = tmp_path / "link"
    link.symlink_to(trace)
    as_path = read in ("rules", "budget")
    for given, out in ((trace, trace), (trace, link), *([] if as_path else [(trace.parent, trace)])):
        word = given if as_path else str(given)
        for value in (word, [word]):
            with pytest.raises(HtaDsv4Error, match="this is a file being read; name another with -"):
                COMMANDS[name](**{read: value, written: out})


@pytest.mark.parametrize("name", ["manifest.toml", "a.manifest.toml"])
def test_manifests_are_read(trace, name):
    """An output that is the manifest beside a trace -> refused; one that is not there, or beside -> not."""
    beside = trace.with_name(name)
    refuse_overwriting({"traces": [f"x={trace}"], "out": beside})
    beside.write_text("[[trace]]\n")
    with pytest.raises(HtaDsv4Error, match="being read"):
        refuse_overwriting({"traces": [f"x={trace}"], "out": beside})


def test_what_is_not_read_may_be_written_over(trace):
    """A page from before in the folder of ranks, a pipe, a missing trace -> not refused."""
    page = trace.with_name("report.md")
    page.write_text("old")
    refuse_overwriting({"traces": [str(trace.parent)], "out": page})
    refuse_overwriting({"traces": ["nothing"], "out": page})
    refuse_overwriting({"traces": ["/dev/null"], "out": Path("/dev/null")})


def test_files_in_folders_of_ranks_are_read(trace, tmp_path):
    """Gate --folders repeats over folders of ranks -> a rank's file is an input too."""
    below = tmp_path / "repeats" / "one"
    below.mkdir(parents=True)
    moved = trace.rename(below / "rank0.json")
    with pytest.raises(HtaDsv4Error, match="--summary"):
        refuse_overwriting({"baseline": [str(tmp_path / "repeats")], "summary": moved})


def test_from_the_command_line(trace, tmp_path):
    """A companion, rules or the trace itself as output -> exit 2, one line, the file as it was."""
    other = tmp_path / "b.json"
    other.write_bytes(trace.read_bytes())
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "k"\nbucket = "glue"\nrole = "k"\nwords = ["k"]\n')
    for words, victim in (
        (("report", str(trace), "--companion", str(other), "--format", "md", "-o"), other),
        (("annotate", str(trace), "--rules", str(rules), "-o"), rules),
        (("findings", str(trace), "--append"), trace),
    ):
        before = victim.read_bytes()
        done = cli(*words, str(victim))
        assert (done.returncode, victim.read_bytes()) == (2, before)
        line = f"hta-dsv4: {victim}: this is a file being read; name another with {words[-1]}\n"
        assert done.stderr == line
