"""How does reading grow with the trace? The readers of ``reading`` on generated traces of 0.1 to 2 GB and more.

Traces are as ``generate`` writes them: 6,000 kernels a step with op, launch, kernel and flow events and all their
args; gzipped and plain; with and without Python stacks (8 frames a kernel). Each is written, read by every reader in
a process of its own, one at a time, and deleted. Every kernel time is compared with the exact total.

    python -m benchmarks.scale --gb 0.1 0.5 2                 # gzip
    python -m benchmarks.scale --gb 0.1 0.5 2 --plain
    python -m benchmarks.scale --gb 0.5 --frames 8
    python -m benchmarks.scale --kernels 5000000 --only kernels full two
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from isal import igzip

from benchmarks.generate import Expected, Plan, generate
from benchmarks.reading import KERNELS_PER_STEP, READERS, run
from benchmarks.words import above_0, folder, whole

BYTES_PER_KERNEL, BYTES_PER_FRAME = 1588, 272  # of the generated JSON
HTA_GB = 0.6
"""HTA needs about 5 GB of memory for each GB of JSON, and more than a minute: beyond this it is left out."""
NAMES = ("hta-steps", "orjson", "kernels", "full", "two", "cached", "zlib", "isal")
HEAD = (
    "| JSON | on disk | reader | s | CPU s | peak MB | times faster than HTA | share of HTA's memory "
    "| x touch (zlib) | x touch (isal) | s per GB | kernel time |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def json_bytes(path: Path) -> int:
    """Bytes of JSON in a trace, plain or gzip."""
    with igzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        return sum(map(len, iter(lambda: file.read(1 << 20), b"")))


def rows(path: Path, expected: Expected, json_gb: float, names: list[str], rounds: int) -> list[str]:
    """Measure every reader on one trace; lines of a Markdown table, medians of the rounds."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for _ in range(rounds):
            for name in names:
                results[name].append(run(name, path, Path(folder) / "cache"))
    middle = {
        name: {k: statistics.median(run[k] for run in runs) for k in ("seconds", "cpu_seconds", "peak_mb")}
        for name, runs in results.items()
    }

    def ratio(of: str, key: str, name: str, upside_down: bool = False) -> str:
        if of not in middle or name in ("zlib", "isal"):
            return "-"
        a, b = middle[name][key], middle[of][key]
        return f"{b / a:.1f}" if upside_down else f"{a / b:.2f}"

    out = []
    for name, m in middle.items():
        found = results[name][0]["kernel_us"]
        exact = "-"
        if found is not None:
            right = expected.kernel_sum_ns / 1000
            exact = (
                "exact"
                if abs(found - right) < 5e-4 + 1e-12 * right
                else f"{100 * (found / right - 1):+.2f} %"
            )
        out.append(
            f"| {json_gb:.2f} GB | {path.stat().st_size / 1e6:.0f} MB | {READERS[name][0]} | {m['seconds']:.2f} "
            f"| {m['cpu_seconds']:.2f} | {m['peak_mb']:.0f} | {ratio('hta-steps', 'seconds', name, True)} "
            f"| {ratio('hta-steps', 'peak_mb', name)} | {ratio('zlib', 'seconds', name)} "
            f"| {ratio('isal', 'seconds', name)} | {m['seconds'] / json_gb:.2f} | {exact} |"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure readers on traces of growing size; prints Markdown."
    )
    parser.add_argument(
        "--gb", type=above_0, nargs="+", default=[0.1, 0.5, 2.0], help="GB of JSON (10^9 bytes)"
    )
    parser.add_argument("--kernels", type=whole(1), help="one trace of that many kernels instead")
    parser.add_argument("--plain", action="store_true", help="do not gzip")
    parser.add_argument("--frames", type=whole(0), default=0, help="Python frames per kernel")
    parser.add_argument("--rounds", type=whole(1), default=1, help="processes per reader")
    parser.add_argument("--only", nargs="+", choices=list(READERS), help="these readers")
    parser.add_argument("--folder", type=folder, help="where the traces are written; the system's by default")
    options = parser.parse_args()
    per_step = KERNELS_PER_STEP * (BYTES_PER_KERNEL + options.frames * BYTES_PER_FRAME)
    steps = [max(1, round(gb * 1e9 / per_step)) for gb in options.gb]
    if options.kernels:
        steps = [max(1, round(options.kernels / KERNELS_PER_STEP))]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {options.rounds}\n\n{HEAD}",
        flush=True,
    )
    for count in steps:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            path = Path(place) / ("decode.json" if options.plain else "decode.json.gz")
            expected = generate(path, Plan(steps=count, python_frames=options.frames))
            json_gb = json_bytes(path) / 1e9
            names = list(options.only or NAMES)
            if json_gb > HTA_GB and not options.only:
                names = [n for n in names if n not in ("hta-steps", "orjson")]
            print("\n".join(rows(path, expected, json_gb, names, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
