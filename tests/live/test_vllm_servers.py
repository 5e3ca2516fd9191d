"""Capture against vLLM servers of other kinds, each started for one test: two ranks, and one without its profiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hta_dsv4.runs.loading import load
from tests.conftest import cli
from tests.live.engine import PYTHON, vllm_server
from tests.live.test_vllm import LONG, capture

pytestmark = pytest.mark.skipif(
    not (os.environ.get("HTA_DSV4_LIVE") and PYTHON.exists()), reason="make test-live installs and runs this"
)


def test_two_ranks(tmp_path: Path) -> None:
    """Tensor parallelism over two cores -> one trace per rank, loaded as one variant."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core for each rank")
    with vllm_server(tmp_path, ranks=2) as two:
        done = capture(two, tmp_path / "out", "-c", "4", "--steps", "5", "--label", "tp2", *LONG)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "out" / "tp2_c4"
    traces = sorted(p.name for p in made.iterdir() if p.name.endswith(".gz"))
    assert traces == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    assert [s.table["batch"].tolist() for s in load(made).steps] == [[4] * 5] * 2


def test_profiler_not_enabled(tmp_path: Path) -> None:
    """A server started without its profiler -> the flag to start it with, before any request."""
    with vllm_server(tmp_path, profiler=False) as bare:
        done = cli("capture", "--server", bare.url, "--trace-dir", str(bare.traces), "--prompt-tokens", "16")
        log = bare.log.read_text(errors="replace")
    assert done.returncode == 2
    assert "--profiler-config" in done.stderr
    assert "POST /v1/completions" not in log
