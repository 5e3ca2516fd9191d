"""The benchmark commands of ``benchmarks/README.md`` run and tell exact from lost time."""

from __future__ import annotations

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
