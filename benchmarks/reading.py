"""How long and how much memory reading a decode trace takes, ours against HTA's default loader and raw parsers.

Every measurement is a fresh process that imports its library, notes time and memory, reads the file once and
reports; libraries alternate, so a slow minute hits all of them. The trace is generated (see ``generate``), so
each table's kernel time is compared with the exact total as well.

    python -m benchmarks.reading                       # 60,000 kernels, three rounds
    python -m benchmarks.reading --size 228000 --rounds 1
    python -m benchmarks.reading --trace FILE          # a trace of your own, without the exactness column
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.words import last_line, readable, whole

KERNELS_PER_STEP = 6000
FIGURES = ("seconds", "cpu_seconds", "peak_mb", "over_import_mb")
Read = Callable[[str], "tuple[int, float] | None"]


def _total(activities: Any) -> tuple[int, float]:
    """Kernels and their summed time in us, without a copy of the table: its memory would be counted."""
    kernels = activities["kind"].eq("kernel").to_numpy()
    return int(kernels.sum()), int(activities["dur_ns"].to_numpy()[kernels].sum()) / 1000


def _ours(cpu: bool, bridge: bool = False, workers: int = 1) -> Read:
    from hta_dsv4.trace import activities as col
    from hta_dsv4.trace.hta import to_hta
    from hta_dsv4.trace.reader import read_trace

    if bridge:
        import hta.trace_analysis  # noqa: F401  (its import is no part of reading)

    def read(path: str) -> tuple[int, float]:
        trace = read_trace(path, cpu=cpu, cache=False, workers=workers)
        if bridge:
            frame = to_hta(trace).trace.traces[0]
            assert len(frame) == len(trace.activities) + int(trace.events[col.CATEGORY].ne("Trace").sum())
        return _total(trace.activities)

    return read


def _cached() -> Read:
    from hta_dsv4.trace import cache, stored  # noqa: F401  (the import of Parquet is no part of reading)
    from hta_dsv4.trace.reader import read_trace

    def read(path: str) -> tuple[int, float]:
        trace = read_trace(path)
        return _total(trace.activities)

    return read


def _warm(path: Path, folder: Path) -> None:
    """Read once, so that the trace is in the cache; in a process of its own, whose memory is not measured."""
    code = (
        "import sys; from hta_dsv4.trace import cache; from hta_dsv4.trace.reader import read_trace;"
        "cache.MIN_JSON_BYTES = cache.MIN_FILE_BYTES = 0; read_trace(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(path.resolve())]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=_with_cache(folder))
    if done.returncode:
        raise SystemExit(f"{path} is not read: {last_line(done.stderr)}")


def _with_cache(folder: Path) -> dict[str, str]:
    return {**os.environ, "HTA_DSV4_CACHE": str(folder)}


def _hta(*, all_steps: bool) -> Read:
    from hta.common.trace import Trace

    logging.getLogger("hta").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def read(path: str) -> tuple[int, float]:
        trace = Trace({0: path})
        trace.load_traces(include_last_profiler_step=all_steps)
        frame = trace.traces[0]
        kernels = frame[frame["cat"].eq(trace.symbol_table.get_sym_id_map()["kernel"])]
        return len(kernels), float(kernels["dur"].sum())

    return read


def _orjson() -> Read:
    import orjson

    def read(path: str) -> tuple[int, float]:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            events = orjson.loads(file.read())["traceEvents"]
        durations = [e["dur"] for e in events if e.get("cat") == "kernel"]
        return len(durations), sum(durations)

    return read


def _touch(module: str) -> Read:
    opener: Any = gzip.open
    if module == "isal":
        from isal import igzip

        opener = igzip.open

    def read(path: str) -> None:
        lines = 0
        with opener(path) if path.endswith(".gz") else open(path, "rb") as file:
            while piece := file.read(1 << 20):
                lines += piece.count(b"\n")

    return read


PACKAGES = ("traceinsight", "pandas", "msgspec", "orjson", "isal")
"""Distributions whose versions the figures depend on."""
MODULES = {"traceinsight": "hta"}
"""Their modules, where the name is another."""

#: name -> (what it is, a function that imports what it needs and returns the reader). The first is the yardstick.
READERS: dict[str, tuple[str, Callable[[], Read]]] = {
    "hta": ("HTA, default load", lambda: _hta(all_steps=False)),
    "hta-steps": ("HTA, last step kept", lambda: _hta(all_steps=True)),
    "kernels": ("kernel table (`cpu=False`)", lambda: _ours(cpu=False)),
    "full": ("with launches, ops, annotations", lambda: _ours(cpu=True)),
    "two": ("the same, two processes", lambda: _ours(cpu=True, workers=2)),
    "cached": ("the same, from the cache", _cached),
    "bridge": ("the same, and as HTA's Trace", lambda: _ours(cpu=True, bridge=True)),
    "orjson": ("orjson, whole file", _orjson),
    "zlib": ("unpack and touch, zlib", lambda: _touch("zlib")),
    "isal": ("unpack and touch, isal", lambda: _touch("isal")),
}


def _memory(key: str, process: str = "self") -> float:
    """Resident memory in MB: VmRSS is now, VmHWM the peak of this process alone (ru_maxrss keeps the parent's)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{process}/status has no {key}: this benchmark needs Linux")


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class _Children:
    """Watches the memory of child processes in a thread: the sum of each one's own peak."""

    def __enter__(self) -> _Children:
        self._peaks: dict[str, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def peak_mb(self) -> float:
        return sum(self._peaks.values())

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            for task in Path("/proc/self/task").iterdir():
                with suppress(OSError, RuntimeError):  # it ended while we looked
                    for child in (task / "children").read_text().split():
                        self._peaks[child] = _memory("VmHWM", child)


def measure(name: str, path: str) -> dict[str, Any]:
    """Read once, in this process.

    Args:
        name: a key of :data:`READERS`.
        path: the trace.

    Returns:
        ``seconds`` and ``cpu_seconds`` (all threads and child processes; both without imports of this process),
        ``peak_mb`` (child processes' own peaks added), ``over_import_mb`` (peak over memory after imports),
        ``kernels`` and ``kernel_us`` where the reader gives them.
    """
    read = READERS[name][1]()
    idle = _memory("VmRSS")
    with _Children() as children:
        start, start_cpu = time.perf_counter(), _cpu_seconds()
        found = read(path)
        seconds, cpu = time.perf_counter() - start, _cpu_seconds() - start_cpu
    peak = _memory("VmHWM") + children.peak_mb
    kernels, kernel_us = found or (None, None)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_mb": peak,
        "over_import_mb": peak - idle,
        "kernels": kernels,
        "kernel_us": kernel_us,
    }


def run(name: str, path: Path, cache: Path) -> dict[str, Any]:
    """Measure one reader in a process of its own.

    Args:
        name: a key of :data:`READERS`.
        path: the trace.
        cache: a folder for the row that reads from the cache.

    Returns:
        As :func:`measure`.
    """
    if name == "cached" and not cache.exists():
        _warm(path, cache)
    command = [sys.executable, "-m", "benchmarks.reading", "--one", name, "--trace", str(path.resolve())]
    done = subprocess.run(command, capture_output=True, text=True, env=_with_cache(cache))
    if done.returncode:
        raise SystemExit(f"{name} failed on {path}: {last_line(done.stderr)}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(path: Path, names: list[str], rounds: int, exact_us: float | None) -> str:
    """Measure every reader ``rounds`` times, alternating, and give the medians as a Markdown table.

    Args:
        path: the trace.
        names: keys of :data:`READERS`.
        rounds: processes per reader.
        exact_us: the kernel time the file holds, where known.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name in names:
                results[name].append(run(name, path, Path(folder) / "cache"))
    lines = [
        "| reader | s | CPU s | peak MB | over imports MB | times faster than HTA | by CPU time "
        "| share of HTA's memory | kernel time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in FIGURES}
        for name, runs in results.items()
    }
    base = middle[names[0]]
    for name, m in middle.items():
        found = results[name][0]["kernel_us"]
        exact = "-"
        if found is not None and exact_us is not None:
            exact = "exact" if abs(found - exact_us) < 5e-4 else f"{100 * (found / exact_us - 1):+.2f} %"
        lines.append(
            f"| {READERS[name][0]} | {m['seconds']:.2f} | {m['cpu_seconds']:.2f} "
            f"| {m['peak_mb']:.0f} | {m['over_import_mb']:.0f} "
            f"| {base['seconds'] / m['seconds']:.1f} | {base['cpu_seconds'] / m['cpu_seconds']:.1f} "
            f"| {m['peak_mb'] / base['peak_mb']:.2f} | {exact} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare trace readers; prints a Markdown table.")
    parser.add_argument("--size", type=whole(1), default=60_000, help="kernels in the generated trace")
    parser.add_argument("--rounds", type=whole(1), default=3, help="processes per reader")
    parser.add_argument("--plain", action="store_true", help="do not gzip the generated trace")
    parser.add_argument("--trace", type=readable, help="measure on this file instead of a generated one")
    parser.add_argument(
        "--only", nargs="+", choices=list(READERS), help="these readers; the first is the yardstick"
    )
    parser.add_argument("--one", choices=list(READERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, str(options.trace))))
        return
    lacking = [m for m in ("orjson", "isal") if find_spec(m) is None]
    names = [name for name in options.only or READERS if name not in lacking]
    for module in lacking:
        print(f"without the {module} row, which is not installed: pip install {module}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path, exact_us = options.trace, None
        if path is None:
            from benchmarks.generate import Plan, generate

            steps = max(1, round(options.size / KERNELS_PER_STEP))
            path = Path(folder) / ("decode.json" if options.plain else "decode.json.gz")
            expected = generate(path, Plan(kernels_per_step=options.size // steps, steps=steps))
            exact_us = expected.kernel_sum_ns / 1000
            print(
                f"{expected.kernels:,} kernels in {expected.steps} steps, {expected.events:,} events, ",
                end="",
            )
        print(f"{path.stat().st_size / 1e6:.1f} MB on disk; Python {platform.python_version()}, ", end="")
        print(", ".join(f"{p} {version(p)}" for p in PACKAGES if find_spec(MODULES.get(p, p))), end="")
        print(f"; median of {options.rounds}\n")
        print(compare(path, names, options.rounds, exact_us))


if __name__ == "__main__":
    main()
