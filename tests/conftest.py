"""Where the case traces are, and a way to run the command line without a process for each call."""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

# Before numpy: its threads wait for each other by spinning, and test processes share the CPUs already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from hta_dsv4.cli.main import main

os.environ["HTA_DSV4_CACHE"] = "off"  # what one test read no other finds on disk; nothing goes into a home

# Shared machines pause tests at random, so no deadline; CI draws the same examples each time, people fresh ones.
settings.register_profile("people", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "people")

CASES = Path(__file__).parent / "cases"

os.environ.pop("COLUMNS", None)  # parallel test runners set it to 80, and tables follow it


# Files that take longest. They begin first, or one process would still be at one of them when the other has finished.
LONGEST = (
    "test_sparse_mla_aot", "test_report", "test_findings_campaign", "test_capture_command", "test_workload",
    "test_examples", "test_moe_fp4", "test_notebooks", "test_cluster", "test_browser", "test_indexer", "test_mhc",
    "test_diff", "test_step_sweep", "test_interrupt", "test_cli_exit", "test_terminal", "test_dying_rank",
    "test_tensor_parallel", "test_hopper_aot",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in :data:`LONGEST` first; the others as they are."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Modules and tests stay: the garbage collector need not walk them with every table (an eighth of all time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@dataclass
class Done:
    """How a command ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def cli(*args: str, stdin: str = "") -> Done:
    """Run ``hta-dsv4 args`` in this process, piped; an exception that escapes it fails the test."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err), patch.object(sys, "stdin", io.StringIO(stdin)):
        try:
            main(list(args))
        except SystemExit as done:
            code = int(done.code or 0)
    return Done(code, out.getvalue(), err.getvalue())
