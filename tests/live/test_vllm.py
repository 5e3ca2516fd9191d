"""Capture and sweep against a real vLLM server on the CPU: ``make test-live`` installs it and sets HTA_DSV4_LIVE.

Such traces hold no kernels: they test the protocol, files, steps and ranks, not what the GPU did.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hta_dsv4.runs.loading import load
from hta_dsv4.trace.manifest import manifest_for
from tests.conftest import Done, cli
from tests.live.engine import PYTHON, Server, vllm_server

pytestmark = pytest.mark.skipif(
    not (os.environ.get("HTA_DSV4_LIVE") and PYTHON.exists()), reason="make test-live installs and runs this"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for this file; it starts in most of a minute."""
    with vllm_server(tmp_path_factory.mktemp("vllm")) as ready:
        yield ready


# On a busy machine the engine runs ahead of the two processes that speak HTTP, so outputs are as long as can be.
LONG = ("--output-tokens", "8000")


def capture(server: Server, out: Path, *more: str) -> Done:
    """Run the command; nothing may be left running after it."""
    done = cli(
        "capture", "--server", server.url, "--trace-dir", str(server.traces), "--prompt-tokens", "64",
        "--out", str(out), *more,
    )  # fmt: skip
    at_rest(server)
    return done


def at_rest(server: Server) -> None:
    """No request running, within some seconds, and a session can be started: none is open."""
    give_up = time.monotonic() + 30
    while server.running():
        assert time.monotonic() < give_up
        time.sleep(0.2)
    assert server.post("/start_profile") == 200
    assert server.post("/stop_profile") == 200


def test_capture_at_32(server: Server, tmp_path: Path) -> None:
    """C = 32, 10 steps -> exactly 10 decode steps of 32 in the trace, no prefill; manifest with the step time."""
    done = capture(server, tmp_path, "-c", "32", "--steps", "10", "--label", "cpu", *LONG)
    assert done.returncode == 0, done.stderr
    assert "all 10 captured steps are decode steps of 32 requests" in done.stderr
    assert "CPU-only trace" in done.stderr
    trace = tmp_path / "cpu_c32.trace.json.gz"
    (steps,) = load(trace).steps
    assert steps.method == "engine annotation"
    assert steps.table["batch"].tolist() == [32] * 10
    assert set(steps.table["phase"]) == {"decode"}
    manifest = manifest_for(trace)
    assert manifest is not None
    assert manifest.workload["model"] == "tiny"
    assert manifest.timing.unprofiled_step_ms > 0


def test_session_of_somebody_else(server: Server, tmp_path: Path) -> None:
    """A session is open already -> refused, and it is still open afterwards."""
    assert server.post("/start_profile") == 200
    done = cli(
        "capture", "--server", server.url, "--trace-dir", str(server.traces), "-c", "2", "--prompt-tokens", "16",
        "--out", str(tmp_path), *LONG,
    )  # fmt: skip
    assert done.returncode == 2
    assert "session is open already" in done.stderr
    assert server.post("/start_profile") == 409
    assert server.post("/stop_profile") == 200
    assert list(tmp_path.iterdir()) == []


def test_more_requests_than_the_server_runs(server: Server, tmp_path: Path) -> None:
    """C = 40 where the server runs 32 -> one line with its flag, nothing recorded."""
    done = capture(server, tmp_path, "-c", "40", "--output-tokens", "100")
    assert done.returncode == 2
    assert "--max-num-seqs" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_outputs_too_short(server: Server, tmp_path: Path) -> None:
    """Outputs that end inside the window -> one line, the session stopped."""
    done = capture(
        server, tmp_path, "-c", "4", "--output-tokens", "300", "--baseline", "10", "--steps", "280"
    )
    assert done.returncode == 2
    assert "give a larger --output-tokens" in done.stderr


def test_prompt_longer_than_the_model(server: Server, tmp_path: Path) -> None:
    """A prompt beyond the model's length -> refused before any request."""
    done = capture(server, tmp_path, "-c", "4", "--output-tokens", "9000")
    assert done.returncode == 2
    assert "whose length is 8192 tokens" in done.stderr


def test_ctrl_c(server: Server, tmp_path: Path) -> None:
    """Ctrl-C among 700 steps -> exit 130, the trace so far kept, the server at rest."""
    run = subprocess.Popen(
        [sys.executable, "-m", "hta_dsv4", "capture", "--server", server.url, "--trace-dir", str(server.traces),
         "-c", "8", "--prompt-tokens", "16", "--baseline", "10", "--steps", "700", "--out", str(tmp_path), *LONG],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert run.stderr is not None
    said = ""
    while "recording 700 steps" not in said:
        line = run.stderr.readline()
        assert line, said
        said += line
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    said += run.communicate(timeout=120)[1]
    assert run.returncode == 130, said
    assert "wrote " in said
    manifest = manifest_for(tmp_path / "vllm_c8.trace.json.gz")
    assert manifest is not None
    assert 0 < manifest.steps < 700
    at_rest(server)


def test_sweep(server: Server, tmp_path: Path) -> None:
    """Three values of C, two repeats -> a record with tokens by usage and a fitted line."""
    record = tmp_path / "sweep.json"
    done = cli(
        "sweep", "--server", server.url, "-c", "1,4,16", "--repeats", "2", "--prompt-tokens", "32",
        "--output-tokens", "64", "--label", "cpu", "--out", str(record),
    )  # fmt: skip
    at_rest(server)
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
    assert json.loads(record.read_text())
