"""What many ranks cost: a folder of generated ranks reduced by one process and by workers, and how both grow.

Each measurement is a fresh process that loads the folder, makes the share table by bucket and reports its wall time,
the CPU time of the process that asks and of its workers (what a busy machine leaves comparable), the memory of the one
that asks, and a digest of every rank's integers, which must be the same in all rows of one size.

    python -m benchmarks.cluster                       # 10, 100 and 1,000 ranks of 2 steps of 120 kernels
    python -m benchmarks.cluster --ranks 100 --kernels 6000
    python -m benchmarks.cluster --address tcp://host:8786 --folder /shared/tmp
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.generate import Plan, generate
from benchmarks.words import folder, last_line, whole

ONE = "one process"
HEADERS = (
    "ranks",
    "MB on disk",
    "read by",
    "start s",
    "s",
    "CPU s, asking",
    "CPU s, workers",
    "CPU ms a rank",
)


def measure(folder: str, where: str) -> dict[str, Any]:
    """Load a folder of ranks in this process or with workers; times, peak MB, and a digest of the tables."""
    from hta_dsv4.cluster.client import Cluster
    from hta_dsv4.runs.loading import load

    started, workers = time.perf_counter(), 0.0
    if where == ONE:
        ready, cpu = started, time.process_time()
        shares = load(folder).shares("bucket")
        seconds, cpu = time.perf_counter() - ready, time.process_time() - cpu
    else:
        name, _, count = where.partition(":")
        local = name == "local"
        with Cluster(name if local else where, workers=int(count) if local else None) as cluster:
            before = sum(cluster.workers(time.process_time))
            ready, cpu = time.perf_counter(), time.process_time()
            shares = cluster.load(folder).shares("bucket")
            seconds, cpu = time.perf_counter() - ready, time.process_time() - cpu
            workers = sum(cluster.workers(time.process_time)) - before
    found = hashlib.sha256()
    for rank in shares.ranks:
        found.update(repr((rank.rank, rank.steps, rank.extent)).encode() + rank.table.to_csv().encode())
    return {
        "start": ready - started,
        "seconds": seconds,
        "cpu": cpu,
        "workers": workers,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "digest": found.hexdigest(),
    }


def fresh(folder: Path, where: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cluster", "--measure", where, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{where}: {last_line(done.stderr)}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=whole(1), nargs="+", default=[10, 100, 1000])
    parser.add_argument("--kernels", type=whole(1), default=120, help="per step; 2 steps")
    parser.add_argument("--address", help="a scheduler, beside one process and local workers")
    parser.add_argument("--folder", type=folder, help="where traces are written; seen by all workers")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(str(asked.folder), asked.measure)))
        return
    rows = [ONE, f"local:{max(os.cpu_count() or 1, 2)}", *([asked.address] if asked.address else [])]
    print(f"| {' | '.join(HEADERS)} | peak MB, asking |\n|{'---|' * (len(HEADERS) + 1)}")
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        traces, made = Path(place), 0
        for ranks in sorted(asked.ranks):
            for rank in range(made, ranks):
                plan = Plan(steps=2, kernels_per_step=asked.kernels, rank=rank, world_size=ranks, seed=rank)
                generate(traces / f"rank{rank}.json.gz", plan)
            made = ranks
            size = sum(p.stat().st_size for p in traces.iterdir()) / 1e6
            digests = set()
            for where in rows:
                found = fresh(traces, where)
                digests.add(found["digest"])
                total = found["cpu"] + found["workers"]
                print(
                    f"| {ranks:,} | {size:.1f} | {where} | {found['start']:.1f} | {found['seconds']:.1f} "
                    f"| {found['cpu']:.1f} | {found['workers']:.1f} | {1e3 * total / ranks:.0f} "
                    f"| {found['peak_mb']:,.0f} |",
                    flush=True,
                )
            if len(digests) != 1:
                raise SystemExit(f"{ranks} ranks: the tables differ")
    print("\nthe tables of all rows of one size are the same, to the nanosecond")


if __name__ == "__main__":
    main()
