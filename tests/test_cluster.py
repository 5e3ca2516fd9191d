"""``--cluster``: many processes give the numbers of one, to the nanosecond, whoever dies; with real schedulers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from hta_dsv4 import shipped
from hta_dsv4.cluster import choice, client, connect
from hta_dsv4.cluster.choice import cluster_for, pays
from hta_dsv4.cluster.client import Cluster
from hta_dsv4.cluster.work import source_digest
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.comparing import compare, why
from hta_dsv4.runs.gating import conditions_of
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run
from tests.conftest import CASES, cli
from tests.gate_traces import made

pytest.importorskip("distributed")
PATIENCE = 120  # seconds that a busy machine may take to start processes


@pytest.fixture(scope="module")
def local() -> Iterator[Cluster]:
    """Two worker processes on this machine."""
    with Cluster("local", workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five ranks, each slower than the one before; no rank 4, a file that is no trace."""
    path = tmp_path_factory.mktemp("ranks")
    for rank in (0, 1, 2, 3, 5):
        made(
            path / f"r{rank}.json.gz", rank=rank, world_size=6, seed=rank, attention=100 + rank, manifest=None
        )
    (path / "notes.txt").write_text("five of six ranks\n")
    return path


def started(folder: Path, *command: str, **env: str) -> subprocess.Popen[bytes]:
    """A process of Dask's own command line."""
    log = (folder / f"{command[0]}.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:]],
        stdout=log, stderr=log, env={**os.environ, **env}, cwd=folder,
    )  # fmt: skip


@contextlib.contextmanager
def separate(folder: Path, **env: str) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and a worker started from a shell, as on other machines; its address, and the two."""
    where = folder / "scheduler.json"
    common = ("--scheduler-file", str(where))
    scheduler = started(folder, "scheduler", *common, "--port", "0", "--no-dashboard", "--host", "127.0.0.1")
    processes = [scheduler]
    try:
        until = time.monotonic() + PATIENCE
        while not (where.exists() and where.read_text().strip().endswith("}")):
            assert scheduler.poll() is None, (folder / "scheduler.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        worker = ("worker", *common, "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--no-nanny")
        processes.append(started(folder, *worker, **env))
        yield json.loads(where.read_text())["address"], processes
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def same(one: Run, many: Run, by: str) -> None:
    """Shares, ranks and notes of two runs are equal to the ns."""
    a, b = one.shares(by), many.shares(by)
    assert (a.label, a.by, a.notes, one.ranks) == (b.label, b.by, b.notes, many.ranks)
    for x, y in zip(a.ranks, b.ranks, strict=True):
        assert (x.rank, x.steps, x.extent, x.outside, x.outside_ns) == (
            y.rank, y.steps, y.extent, y.outside, y.outside_ns,
        )  # fmt: skip
        pd.testing.assert_frame_equal(x.table, y.table, check_exact=True)


def test_a_folder_of_ranks_gives_the_same_tables(local, folder):
    """Five ranks by two workers -> shares, info, the median rank's activities and notes as in one process."""
    one, many = load(folder), local.load(folder, by=["kernel", "bucket,origin"], info=True)
    for by in ("bucket", "kernel", "bucket,origin"):
        same(one, many, by)
    for said in ("rank 4 of 6 is missing", "no traces: notes.txt"):
        assert any(said in n for n in many.shares("bucket").notes)
    assert one.info() == many.info()
    pd.testing.assert_frame_equal(one.counted.activities, many.counted.activities)
    assert conditions_of(one) == conditions_of(many)
    assert one.ranks_table("kernel").table.equals(many.ranks_table("kernel").table)


def test_comparisons_are_the_same(local, folder):
    """Ranks against a real trace and one of another kind -> comparison and explanation as in one process."""
    known = shipped.traces()
    paths = {"ranks": folder, "eager": known["cuda_graph_eager"], "graph": known["cuda_graph"]}
    one = [load(p, label=n) for n, p in paths.items()]
    many = [local.load(p, label=n, by=["role"]) for n, p in paths.items()]
    a, b = compare(one, "role"), compare(many, "role")
    pd.testing.assert_frame_equal(a.table, b.table, check_exact=True)
    assert a.notes == b.notes
    left, right = why(one, "role"), why(many, "role")
    for x, y in zip((*left.pairs, left.whole), (*right.pairs, right.whole), strict=True):
        pd.testing.assert_frame_equal(x.rows, y.rows, check_exact=True)
        pd.testing.assert_frame_equal(x.kernels, y.kernels, check_exact=True)
        assert (x.row_changes, x.sum_change, x.wall_change, x.notes) == (
            y.row_changes, y.sum_change, y.wall_change, y.notes,
        )  # fmt: skip


@pytest.mark.parametrize("name", sorted(p.name for p in CASES.iterdir() if p.suffix != ".md"))
def test_every_case_ends_the_same(local, name):
    """Each odd or broken trace -> the same table, or the same error line, as in one process."""
    path = CASES / name
    if path.suffix == ".json" and path.stem == "EXPECT":
        pytest.skip("no trace")
    outcomes = []
    for read in (load, local.load):
        try:
            shares = read(path).shares("bucket")
            outcomes.append((shares.notes, [(r.rank, r.table.to_csv()) for r in shares.ranks]))
        except HtaDsv4Error as error:
            outcomes.append(str(error).replace(str(path.resolve()), str(path)))
    assert outcomes[0] == outcomes[1]


def test_commands_write_the_same_bytes_over_a_separate_scheduler(tmp_path, folder):
    """Scheduler and worker of their own, --cluster tcp://... -> byte for byte what one process writes."""
    inputs = {"shares": [str(folder)], "diff": [str(folder), "cuda_graph"]}
    with separate(tmp_path) as (address, _):
        for command, traces in inputs.items():
            many = cli(command, *traces, "--json", "--cluster", address)
            one = cli(command, *traces, "--json", "--cluster", "off")
            assert (many.returncode, many.stderr) == (0, "")
            assert many.stdout == one.stdout


def test_a_worker_killed_midway_costs_a_retry(tmp_path, local):
    """Kill -9 of a worker that is reading -> the same tables as in one process, and another worker in its place."""
    for rank in range(10):
        made(tmp_path / f"r{rank}.json.gz", rank=rank, seed=rank, steps=150, copies=5, manifest=None)
    client = local._client
    pids = client.run(os.getpid)
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        busy = [address for address, tasks in client.processing().items() if tasks]
        if not killed and done < total and busy:
            killed.append(pids[busy[0]])
            os.kill(killed[0], signal.SIGKILL)

    many = local.load(tmp_path, by=["kernel"], progress=kill_one)
    assert killed, "no worker was ever busy while traces were left"
    same(load(tmp_path), many, "kernel")
    client.wait_for_workers(2, timeout=PATIENCE)
    assert killed[0] not in local.workers(os.getpid)


def test_nobody_waits_for_workers_or_a_scheduler_that_are_gone(tmp_path, folder, monkeypatch):
    """The only worker dies, then the scheduler -> a line each, not a wait without end."""
    monkeypatch.setattr(client, "ALONE_S", 1)
    monkeypatch.setattr(client, "POLL_S", 0.5)
    with separate(tmp_path) as (address, (scheduler, worker)), Cluster(address) as cluster:
        worker.kill()
        with pytest.raises(HtaDsv4Error, match="no worker is left"):
            cluster.load(folder)
        scheduler.kill()
        scheduler.wait()
        with pytest.raises(HtaDsv4Error, match=r"the scheduler is gone|no worker is left"):
            cluster.load(folder)


def test_a_file_that_workers_do_not_see_is_one_line(local, folder, tmp_path, monkeypatch):
    """Gone, or another file under that name, where the worker is -> one line with the host and the remedy."""
    path = made(tmp_path / "a.json.gz", manifest=None)
    monkeypatch.setattr(client, "_size", lambda file: 7)
    with pytest.raises(HtaDsv4Error, match=r"bytes on .*, but 7 here; keep traces on a file system"):
        local.load(path)

    def here_alone(file: Path) -> int:
        size = file.stat().st_size
        file.unlink()
        return size

    monkeypatch.setattr(client, "_size", here_alone)
    with pytest.raises(HtaDsv4Error, match=r"a worker on .* does not see it"):
        local.load(path)


def test_another_version_on_a_worker_is_refused(local, folder, monkeypatch):
    """A worker whose source differs -> refused before it computes anything."""
    monkeypatch.setattr(client, "source_digest", lambda: "0" * 16)
    with pytest.raises(HtaDsv4Error, match=r"runs another hta_dsv4 .*install the same version"):
        local.load(folder)


def test_a_worker_without_the_package_is_said(tmp_path, folder):
    """A worker whose Python has no hta_dsv4 -> one line that says what to install where."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['hta_dsv4'] = None\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with separate(tmp_path, PYTHONPATH=path) as (address, _):
        done = cli("shares", str(folder), "--cluster", address)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "install hta-dsv4" in done.stderr


def test_a_broken_rank_ends_as_in_one_process(local, folder, tmp_path):
    """One rank of a folder is cut -> the error line of one process, through the command too."""
    made(tmp_path / "r0.json.gz", rank=0, manifest=None)
    (tmp_path / "r1.json").write_bytes((CASES / "01-truncated-mid-string.json").read_bytes())
    said = []
    for read in (load, local.load):
        with pytest.raises(HtaDsv4Error) as caught:
            read(tmp_path)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_needs_all_activities_says_so(local, folder):
    """fill, collectives and HTA's objects of a reduced run -> one line, not numbers of a part."""
    run = local.load(folder)
    for ask in (
        run.fill,
        run.info,
        run.collectives,
        lambda: run.hta,
        lambda: run.activities,
        lambda: run.shares("kernel"),
    ):
        with pytest.raises(
            HtaDsv4Error, match=r"needs the activities of every rank|were not made by the workers"
        ):
            ask()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--cluster", "tcp://127.0.0.1:9"), "no Dask scheduler answers"),
        (("--cluster", "somewhere"), "write auto, off, local"),
        (("--cluster", "x://y"), "write auto, off, local"),
        (("--cluster", "tcp://"), "write auto, off, local"),
        (("--cluster", "tcp://host:x"), "write auto, off, local"),
        (("--cluster", "tcp://host:99999"), "write auto, off, local"),
        (("--cluster", "tcp://[::1"), "write auto, off, local"),
        (("--cluster", "tls://127.0.0.1:9"), "no certificates for it"),
        (("--cluster", "local:0"), "write auto, off, local"),
        (("--cluster", "local", "--companion", "split_k"), "not together"),
    ],
)
def test_mistakes_are_one_line(folder, args, says, monkeypatch):
    """No scheduler, no such place, a companion beside a cluster -> exit code 2 and one line."""
    monkeypatch.setattr(connect, "CONNECT_S", 1)
    done = cli("shares", str(folder), *args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr


def test_without_the_extra(folder, monkeypatch):
    """Dask not installed -> auto reads in this process, --cluster local says what to install."""
    for module in (choice, connect):
        monkeypatch.setattr(module, "installed", lambda: False)
    monkeypatch.setattr(choice, "pays", lambda files: True)
    assert cli("shares", str(folder)).returncode == 0
    done = cli("shares", str(folder), "--cluster", "local")
    assert (done.returncode, "hta-dsv4[cluster]" in done.stderr) == (2, True)


def test_when_local_processes_pay(tmp_path, monkeypatch):
    """The rule of auto: four files, 200 MB packed or ten times that plain, two cores."""
    monkeypatch.setattr(choice, "cores", lambda: 2)
    files = []
    for i in range(4):
        path = tmp_path / f"{i}.json.gz"
        with path.open("wb") as f:
            f.truncate(50 << 20)
        files.append(path)
    assert pays(files)
    assert not pays(files[:3])
    plain = [p.rename(p.with_suffix("")) for p in files]
    assert not pays(plain)
    monkeypatch.setattr(choice, "cores", lambda: 1)
    assert not pays(files)
    with cluster_for("auto", plain) as none:
        assert none is None


def test_the_digest_is_of_the_source():
    """Asked twice -> the same 16 hexadecimal digits."""
    source_digest.cache_clear()
    first = source_digest()
    source_digest.cache_clear()
    assert (len(first), source_digest()) == (16, first)
