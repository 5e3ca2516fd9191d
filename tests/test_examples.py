"""Every example runs as it stands, and is short enough to read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SAYS = {
    "01": "ms/step", "02": "of GPU time per step", "03": "", "04": "counterpart", "05": "my-topk",
    "06": "indexer grows", "07": "report.html", "08": "TraceAnalysis", "09": "origin:moe/2",
    "10": "a request more costs 10.39 ms",
}  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs_and_says_what_it_is_about(path, tmp_path):
    """An example without arguments -> its point on stdout; without a GPU, capturing says so in one line."""
    arguments = [str(tmp_path)] if path.stem[:2] in ("03", "07") else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment,
        timeout=120,
    )  # fmt: skip
    if path.stem.startswith("03") and done.returncode:
        assert done.stderr.startswith("no capture on this machine: ")
        assert len(done.stderr.splitlines()) == 1
        return
    assert done.returncode == 0, done.stderr
    assert SAYS[path.stem[:2]] in done.stdout


def test_examples_are_short_and_numbered_without_gaps():
    """The folder -> 01, 02, ... without gaps, each under 60 lines and with a docstring that says how to run it."""
    assert [p.stem[:2] for p in EXAMPLES] == [f"{i:02d}" for i in range(1, len(EXAMPLES) + 1)]
    for path in EXAMPLES:
        text = path.read_text()
        assert len(text.splitlines()) < 60, path
        assert f"python examples/{path.name}" in text
