"""Fuzz the reader for as long as wanted: ``python -m tests.fuzz --minutes 15``; ``--seed N`` makes one input again.

Finds are written to ``--out`` (the file that was read, and what was wrong); each becomes a test of its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.fuzz.mutate import make
from tests.fuzz.oracle import SECONDS, Find, check, keep_everything


def one(seed: int, path: Path) -> tuple[tuple[str, ...], Counter[str]]:
    """Make and check the input of a seed: how it was made, and what happened."""
    rng = Random(seed)
    item = make(rng)
    try:
        return item.how, check(item, path, rng)
    except Find as find:
        raise Find(f"{find} [{item.base}: {', '.join(item.how)}]") from find


def main() -> int:
    """Run; the exit code is the number of finds (at most 100)."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--minutes", type=float, default=15)
    options.add_argument("--first", type=int, default=time.time_ns() // 10**9 * 10**6, help="the first seed")
    options.add_argument("--seed", type=int, help="only this one, with its traceback")
    options.add_argument("--out", type=Path, default=Path("build/fuzz"))
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep_everything(Path(folder) / "cache")
        path = Path(folder) / "x.json"
        if chosen.seed is not None:
            how, seen = one(chosen.seed, path)
            print(how, dict(seen))
            return 0
        return run(chosen.minutes, chosen.first, path, chosen.out)


def run(minutes: float, first: int, path: Path, out: Path) -> int:
    """Try seeds from ``first`` on until the time is over; returns the number of finds."""
    began, seed, finds = time.monotonic(), first, 0
    seen: Counter[str] = Counter()
    mutations: Counter[str] = Counter()
    reported = began
    while (now := time.monotonic()) - began < minutes * 60:
        faulthandler.dump_traceback_later(20 * SECONDS, exit=True)  # a hang in C, which no alarm ends
        try:
            how, happened = one(seed, path)
            mutations.update(how)
            seen += happened
        except Find as find:
            finds += 1
            print(f"FIND seed {seed}: {find}", flush=True)
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{seed}.input").write_bytes(path.read_bytes())
            (out / f"{seed}.txt").write_text(f"{find}\n")
        seed += 1
        seen["inputs"] += 1
        if now - reported > 60:
            reported = now
            _report(now - began, seen, finds)
    faulthandler.cancel_dump_traceback_later()
    _report(time.monotonic() - began, seen, finds)
    print("mutations:", ", ".join(f"{name} {n}" for name, n in mutations.most_common()))
    return min(finds, 100)


def _report(seconds: float, seen: Counter[str], finds: int) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = ", ".join(f"{n} {what}" for what, n in seen.most_common())
    print(f"{seconds / 60:.1f} min: {counts}; {finds} finds; peak {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
