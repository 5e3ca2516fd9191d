"""``--cluster`` and Ctrl-C: one line, exit 130, no worker and no file left; with processes of our own and of others."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")
psutil = pytest.importorskip("psutil")

from hta_dsv4.cluster.client import Cluster  # noqa: E402
from tests.heed import heed  # noqa: E402
from tests.test_cluster import separate  # noqa: E402

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
SAID = "hta-dsv4: interrupted\n"
PATIENCE_S = 120
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


@contextlib.contextmanager
def started(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group and session of its own, as a terminal starts it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "hta_dsv4", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder)},
        # a test run started in the background ignores SIGINT, and its children inherit that
        preexec_fn=heed,
    ) as run:  # fmt: skip
        try:
            yield run
        finally:
            for process in in_session(run.pid):
                process.kill()


def in_session(pid: int) -> list[psutil.Process]:
    """Processes of a session that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def ended(run: subprocess.Popen[str], numbers: list[signal.Signals], tmp_path: Path, longest: float) -> None:
    """Signals to the whole group -> one line, exit 130, soon, and nothing is left."""
    began = time.monotonic()
    for number in numbers:
        os.killpg(run.pid, number)
        time.sleep(0.1)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, out, err) == (130, "", SAID)
    assert time.monotonic() - began < longest
    until(lambda: not in_session(run.pid))
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A trace that is never read to its end."""
    path = tmp_path / "trace.json"
    os.mkfifo(path)
    return path


def reading(pipe: Path) -> int:
    """Wait until a worker reads the trace; the writing end, whose closing ends it."""
    found = os.open(pipe, os.O_WRONLY)
    os.write(found, b'{"traceEvents": [')
    return found


@pytest.mark.parametrize(
    ("command", "numbers"),
    [("shares", [INT]), ("diff", [TERM]), ("shares", [INT, INT, HUP])],
)
def test_while_workers_read(tmp_path, pipe, command, numbers):
    """Ctrl-C, once and several times, and polite kills while a local worker reads -> one line, all gone."""
    with started(
        tmp_path, command, str(pipe), *["split_k"][: command == "diff"], "--cluster", "local:2"
    ) as run:
        end = reading(pipe)
        assert list((tmp_path / "temporary").iterdir()) != []
        ended(run, numbers, tmp_path, 20)
        os.close(end)


@pytest.mark.parametrize("numbers", [[INT], [TERM, INT]])
def test_while_workers_start(tmp_path, pipe, numbers):
    """Signals when the first worker process is there, not yet a worker -> one line, all gone."""
    with started(tmp_path, "shares", str(pipe), "--cluster", "local:2") as run:
        until(lambda: any("spawn_main" in " ".join(p.cmdline()) for p in in_session(run.pid)))
        ended(run, numbers, tmp_path, 20)


def test_while_another_machine_reads(tmp_path, pipe):
    """Ctrl-C while a worker of a scheduler elsewhere reads -> one line, and that worker works on for others."""
    with separate(tmp_path) as (address, (_, worker)):
        with started(tmp_path, "diff", str(pipe), "split_k", "--cluster", address) as run:
            end = reading(pipe)
            ended(run, [INT], tmp_path, 15)
            pipe.unlink()  # or the worker opens it once more, and waits
            os.close(end)
        with Cluster(address) as cluster:
            assert cluster.workers(os.getpid) == [worker.pid]


def test_while_a_scheduler_is_stuck(tmp_path, pipe):
    """Ctrl-C twice while the scheduler elsewhere answers nothing -> not waited for."""
    with separate(tmp_path) as (address, (scheduler, _)), started(
        tmp_path, "shares", str(pipe), "--cluster", address
    ) as run:  # fmt: skip
        end = reading(pipe)
        scheduler.send_signal(signal.SIGSTOP)
        try:
            ended(run, [INT, INT], tmp_path, 15)
        finally:
            scheduler.send_signal(signal.SIGCONT)
        pipe.unlink()  # or the worker opens it once more, and waits
        os.close(end)


def test_beside_another_scheduler():
    """The usual port of Dask's HTTP server is taken -> no warning of it."""
    with socket.socket() as taken, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with contextlib.suppress(OSError):  # by another process: as good
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        with Cluster("local", workers=1) as cluster:
            assert len(cluster.workers(os.getpid)) == 1
    assert [w for w in said if "8787" in str(w.message)] == []
