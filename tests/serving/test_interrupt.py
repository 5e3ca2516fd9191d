"""Ctrl-C while a server is captured: the profiler is stopped, the requests are ended, what is whole is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hta_dsv4.trace.manifest import manifest_for
from tests.heed import heed
from tests.serving.fake_server import FakeServer, serve

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


def start(server: FakeServer, folder: Path, steps: int) -> subprocess.Popen[str]:
    """The command as a process of its own, as a terminal would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "hta_dsv4", "capture", "--server", server.url, "--trace-dir", str(folder), "-c", "4",
         "--prompt-tokens", "8", "--baseline", "5", "--steps", str(steps), "--out", str(folder.parent), "--label", "x"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a test run started in the background ignores SIGINT, and its children inherit that
        preexec_fn=heed,
    )  # fmt: skip


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds, within a minute."""
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def folder_in(tmp_path: Path) -> Path:
    made = tmp_path / "server"
    made.mkdir()
    return made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_interrupted_while_recording(tmp_path: Path, engine: str, number: signal.Signals) -> None:
    """A signal among 1000 steps -> exit 130, session stopped, no stream left, the whole trace kept and named."""
    folder = folder_in(tmp_path)
    with serve(folder, engine=engine) as server:
        with start(server, folder, 1000) as run:
            wait_for(lambda: server.engine.session is not None and len(server.engine.session.steps) > 20)
            run.send_signal(number)
            _, said = run.communicate(timeout=60)
        wait_for(lambda: server.streams == 0)
        assert server.calls[-1] == "POST /stop_profile"
        assert server.calls.count("POST /stop_profile") == 1
        assert not server.engine.session_open
    assert run.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
    trace = tmp_path / "x_c4.trace.json.gz"
    assert f"wrote {trace}" in said
    manifest = manifest_for(trace)
    assert manifest is not None
    assert 20 < manifest.steps < 1000
    assert any("interrupted" in n for n in manifest.notes)


def test_interrupted_before_recording(tmp_path: Path) -> None:
    """Ctrl-C while the requests are still being waited for -> exit 130, nothing started, no stream left, no file."""
    folder = folder_in(tmp_path)
    with serve(folder, max_running=2) as server:  # four never decode together
        with start(server, folder, 5) as run:
            wait_for(lambda: server.streams == 4)
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
        wait_for(lambda: server.streams == 0)
        assert server.calls == ["GET /start_profile"]
    assert run.returncode == 130, said
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["server"]


def test_interrupted_while_starting(tmp_path: Path) -> None:
    """Ctrl-C while the start is not answered yet -> its answer is waited for, and the session is stopped."""
    folder = folder_in(tmp_path)
    with serve(folder, start_s=1.0) as server:
        with start(server, folder, 5) as run:
            wait_for(lambda: "POST /start_profile" in server.calls)
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
        wait_for(lambda: server.streams == 0)
        assert server.calls[-1] == "POST /stop_profile"
        assert not server.engine.session_open
    assert run.returncode == 130, said
    assert "Traceback" not in said


def test_interrupted_twice(tmp_path: Path) -> None:
    """A second Ctrl-C while the server writes -> leaves at once, and says how to stop the profiler by hand."""
    folder = folder_in(tmp_path)
    with serve(folder, export_s=15.0) as server:
        with start(server, folder, 1000) as run:
            wait_for(lambda: server.engine.session is not None and len(server.engine.session.steps) > 5)
            run.send_signal(signal.SIGINT)
            wait_for(lambda: "POST /stop_profile" in server.calls)
            began = time.monotonic()
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
            took = time.monotonic() - began
        server.engine.behaviour.faults = frozenset({"no file"})
    assert run.returncode == 130, said
    assert took < 12
    assert f"curl -X POST {server.url}/stop_profile" in said
    assert "Traceback" not in said


def test_capture_in_a_notebook(tmp_path: Path) -> None:
    """Called where an event loop runs already, as in a notebook -> works, and its stop button stops the profiler."""
    folder = folder_in(tmp_path)
    code = f"""
import asyncio, signal, sys
from pathlib import Path
from hta_dsv4.serving.client import ServerUrl
from hta_dsv4.serving.session import ServerCapture, capture_server
signal.signal(signal.SIGINT, signal.default_int_handler)

async def cell(steps):
    options = ServerCapture(ServerUrl.parse(sys.argv[1]), Path({str(folder)!r}), concurrency=4, prompt_tokens=8,
                            steps=steps, baseline=5, out=Path({str(tmp_path)!r}), label=f"n{{steps}}")
    done = capture_server(options, lambda line: print(line, flush=True))
    print(steps, done.problem, done.interrupted, done.found.ranks[0].check.steps, flush=True)

asyncio.run(cell(3))
asyncio.run(cell(1500))
"""
    with serve(folder) as server:
        with subprocess.Popen(
            [sys.executable, "-c", code, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            wait_for(lambda: len(server.profile_bodies) == 2 and server.engine.session is not None)
            time.sleep(0.3)
            run.send_signal(signal.SIGINT)
            said, error = run.communicate(timeout=60)
        assert not server.engine.session_open
    assert "3 None False 3" in said, said + error
    assert "1500 " in said, said + error
    last = said.splitlines()[-1].split()
    assert last[-2] == "True"
    assert 0 < int(last[-1]) < 1500


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_sweep_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, a polite kill, a closed terminal in the third -> exit 130, no stream left, those made are kept."""
    out = tmp_path / "record.json"
    with serve(folder_in(tmp_path)) as server:
        with subprocess.Popen(
            [sys.executable, "-m", "hta_dsv4", "sweep", "--server", server.url, "-c", "2", "--repeats", "500",
             "--prompt-tokens", "8", "--output-tokens", "40", "--json", "--out", str(out)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=heed,
        ) as run:  # fmt: skip
            wait_for(lambda: server.completions >= 8)
            run.send_signal(number)
            told, said = run.communicate(timeout=60)
        wait_for(lambda: server.streams == 0)
    assert run.returncode == 130, said
    assert "Traceback" not in said
    assert json.loads(told) == json.loads(out.read_text())
    (variant,) = json.loads(told)["variants"]
    assert 1 <= len(variant["repeats"]) < 500
    assert any("stopped after" in note and "interrupted" in note for note in variant["recorded_notes"])
