"""A capture by several ranks of which one ends badly: nobody hangs, nothing half-written is left, one line says why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

HERE = Path(__file__).parent
CAPTURE = ("capture", "--config", "tiny", "--device", "cpu", "--context", "64", "--max-context", "256",
           "--steps", "1", "--warmup", "1", "--baseline", "1")  # fmt: skip
LONGEST_S = 150


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(HERE.parent), str(HERE.parent / "kernels")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def torchrun(out: Path, ranks: int, *words: str) -> tuple[list[int], str]:
    """Exit code and what the ranks wrote, started by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, env=environment(), timeout=LONGEST_S, cwd=out
    )  # fmt: skip
    return [done.returncode], done.stderr


def by_hand(out: Path, *words: str, stopped: int | None = None) -> tuple[list[int], str]:
    """Exit codes and what two ranks wrote, started by something that ends nobody but, last, one that is stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=out,
            env=environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            ),
        )
        for rank in range(2)
    ]  # fmt: skip
    if stopped is not None:
        started[1 - stopped].wait(LONGEST_S)
        started[stopped].kill()
    said = [process.communicate(timeout=LONGEST_S)[1] for process in started]
    return [process.returncode for process in started], "".join(said)


def lines(said: str) -> list[str]:
    """What is ours of it."""
    return [line for line in said.splitlines() if line.startswith("hta-dsv4: ")]


def test_a_rank_that_dies_under_torchrun(tmp_path):
    """Rank 1 killed in its third step -> rank 0 names it in the only line, and the folder is as empty as before."""
    codes, said = torchrun(
        tmp_path, 2, str(HERE / "dying_rank.py"), "die", "1", *CAPTURE, "--out", str(tmp_path)
    )
    assert codes != [0]
    (line,) = lines(said)
    assert line.startswith("hta-dsv4: rank 1 ended before the capture did, so no trace is kept")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_stopped(tmp_path, who):
    """A rank stopped (SIGSTOP) in its third step, also the one that keeps the store -> the other says so and ends."""
    codes, said = by_hand(
        tmp_path, str(HERE / "dying_rank.py"), "stop", str(who), *CAPTURE, "--out", str(tmp_path), stopped=who
    )
    assert codes[who] == -signal.SIGKILL
    assert codes[1 - who] == 2
    (line,) = lines(said)
    assert f"rank {who} did not answer for 6 s, so no trace is kept" in line
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_one_rank_names_it(tmp_path):
    """Rank 0 out of memory, nobody to end the others -> both end with 2, a line names the rank and the fault."""
    codes, said = by_hand(
        tmp_path, str(HERE / "dying_rank.py"), "fail", "0", *CAPTURE, "--out", str(tmp_path)
    )
    assert codes == [2, 2]
    assert "hta-dsv4: rank 0: out of memory (planted)" in lines(said)
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_dies_when_all_is_written(tmp_path):
    """Rank 1 killed between its trace and the manifest, over an older capture -> the older one stands, as it was."""
    folder = tmp_path / "split_k_c2_tp2"
    folder.mkdir()
    for rank in range(2):
        (folder / f"split_k_c2_tp2_rank{rank}.trace.json.gz").write_bytes(b"older")
    codes, said = by_hand(
        tmp_path, str(HERE / "dying_rank.py"), "hang-up", "1", *CAPTURE, "--out", str(tmp_path)
    )
    assert (codes[0], codes[1] < 0) == (2, True)
    assert len(lines(said)) == 1
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]
    assert [p.read_bytes() for p in sorted(folder.iterdir())] == [b"older"] * 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*CAPTURE, "--out", "there"), "3 ranks cannot share tiny evenly"),
        (("capture", "--bogus"), "No such option: --bogus"),
    ],
)
def test_a_mistake_of_all_ranks_is_said_once(tmp_path, words, says):
    """Three ranks with the same wrong words -> one line, as a single process would say it, and no file."""
    codes, said = torchrun(tmp_path, 3, "-m", "hta_dsv4", *words)
    assert codes != [0]
    (line,) = lines(said)
    assert line.startswith(f"hta-dsv4: {says}")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
