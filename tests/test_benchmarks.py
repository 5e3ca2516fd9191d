"""The benchmark commands of ``benchmarks/README.md`` run and tell exact from lost time."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_reading_tells_exact_from_lost() -> None:
    """A small generated trace -> our kernel time is exact, HTA's is not, and each reader has a row."""
    rows = run("benchmarks.reading", "--size", "600", "--rounds", "1", "--only", "hta-steps", "full", "isal")
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in rows.splitlines()}
    assert cells["with launches, ops, annotations"][-1] == "exact"
    assert cells["HTA, last step kept"][-1].startswith("-")
    assert cells["unpack and touch, isal"][-1] == "-"
    assert float(cells["HTA, last step kept"][5]) == 1.0


def test_rounding_takes_relative_paths() -> None:
    """The shipped trace by its relative path -> rounding loses time, and rounding off loses none."""
    rows = run("benchmarks.hta_rounding", "traces/h200_probe.trace.json.gz").splitlines()
    shares = {line.split(" | ")[0].strip("| "): line.split(" | ")[3] for line in rows if " % " in line}
    assert shares["this project"] == shares["HTA, last step kept, rounding off"] == "+0.00 %"
    assert shares["HTA, last step kept"] == "-3.24 %"
    assert shares["HTA, default load"] == "-22.05 %"  # the last of five steps is dropped as well


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("generate /no/folder/x.gz", "/no/folder/x.gz: cannot be written"),
        ("generate tests", "tests: cannot be written"),
        ("generate x.json --kernels-per-step 0", "'0': give a whole number from 1 on"),
        ("generate x.json --overlap nan", "'nan': give a number from 0 to below 1"),
        ("hta_rounding /no/trace", "/no/trace: no such file"),
        ("hta_rounding README.md", "README.md: not a trace"),
        ("reading --trace tests", "tests: no such file"),
        ("reading --rounds 0", "'0': give a whole number from 1 on"),
        ("scale --gb 0.1 nan", "'nan': give a number above 0"),
        ("scale --kernels -1", "'-1': give a whole number from 1 on"),
        ("scale --folder /no/folder", "/no/folder: no folder"),
        ("cluster --ranks 2 0", "'0': give a whole number from 1 on"),
        ("cluster --folder README.md", "README.md: no folder"),
        ("whatif_campaign --base mma", "unrecognized arguments: --base mma"),
    ],
)
def test_what_an_option_cannot_be(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file, folder or number that cannot be -> said in one line before anything is measured."""
    name, *more = words.split()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *more])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    last = (capsys.readouterr().err or str(ended.value)).splitlines()[-1]
    assert said in last
    assert ended.value.code not in (0, None)


def test_a_reader_that_fails_is_one_line() -> None:
    """A file that is no trace -> which reader failed and why, without its traceback."""
    command = [sys.executable, "-m", "benchmarks.reading", "--trace", "README.md", "--only", "full"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "full failed on README.md" in ended.stderr
    assert "not a trace" in ended.stderr


LINKS_CHECK = """
import os, sys

sys.path.insert(0, os.getcwd())
import torch, torch.distributed as dist
import benchmarks.links as links

dist.init_process_group("gloo")
links.check(links.NCCL, (4096,), "cpu")
true = dist.all_reduce
dist.all_reduce = lambda x, *more: true(x, *more) and None or x.mul_(1.01)
try:
    links.check((links.ALL_REDUCE,), (4096,), "cpu")
except SystemExit as error:
    print(error)
dist.destroy_process_group()
"""


def test_links_tell_a_right_result_from_a_wrong_one(tmp_path: Path) -> None:
    """Three processes on the CPU -> right collectives pass the check, sums 1 % too large do not."""
    script = tmp_path / "check.py"
    script.write_text(LINKS_CHECK)
    said = run("torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script))
    assert said.count("all_reduce of 4096 bytes is off by") == 3


def test_links_need_two_gpus() -> None:
    """A single process, or no GPU -> one line that says how to start it, exit 2."""
    command = [sys.executable, "-m", "benchmarks.links"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "torchrun --nproc-per-node 2" in ended.stderr
