"""What HTA's default load loses of a decode trace's GPU time, against the nanoseconds in the file.

    python -m benchmarks.hta_rounding traces/h200_probe.trace.json.gz
    python -m benchmarks.hta_rounding                  # a generated trace of 60,000 kernels

Three loads, each in a process of its own for HTA reads its switches once: as it is by default; with the last
step kept, which leaves rounding alone; and with rounding off as well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.words import last_line, readable
from hta_dsv4.errors import HtaDsv4Error

LOADS = {
    "default": ("HTA, default load", {"HTA_DISABLE_NS_ROUNDING": "0"}, False),
    "steps": ("HTA, last step kept", {"HTA_DISABLE_NS_ROUNDING": "0"}, True),
    "exact": ("HTA, last step kept, rounding off", {"HTA_DISABLE_NS_ROUNDING": "1"}, True),
}


def hta_totals(path: str, keep_last_step: bool) -> dict[str, Any]:
    """GPU rows as HTA loads them, in this process.

    Args:
        path: the trace.
        keep_last_step: HTA's ``include_last_profiler_step``.

    Returns:
        ``rows`` HTA takes for GPU work (stream != -1), ``sum_us``, ``zero`` and ``negative`` (rows of such
        durations), and ``busy`` (its share of the time from first start to last end).
    """
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    logging.getLogger("hta").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    trace = Trace({0: path})
    trace.load_traces(include_last_profiler_step=keep_last_step)
    rows = trace.traces[0][trace.traces[0]["stream"].ne(-1)]
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = trace
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return {
        "rows": len(rows),
        "sum_us": float(rows["dur"].sum()),
        "zero": int(rows["dur"].abs().lt(5e-4).sum()),
        "negative": int(rows["dur"].le(-5e-4).sum()),
        "busy": float(1 - times["idle_time(us)"] / times["kernel_time(us)"]),
    }


def our_totals(path: Path) -> dict[str, Any]:
    """The same from our reader and bridge."""
    from hta_dsv4.trace import activities as col
    from hta_dsv4.trace.hta import to_hta
    from hta_dsv4.trace.reader import read_trace

    warnings.simplefilter("ignore")
    trace = read_trace(path)
    dur = trace.activities[col.DUR_NS]
    times = to_hta(trace).temporal_breakdown().iloc[0]
    return {
        "rows": len(dur),
        "sum_us": int(dur.sum()) / 1000,
        "zero": int(dur.eq(0).sum()),
        "negative": int(dur.lt(0).sum()),
        "busy": float(1 - times["idle_time(us)"] / times["kernel_time(us)"]),
    }


def table(path: Path) -> str:
    """The comparison for one trace, as Markdown."""
    found = {"ours": ("this project", our_totals(path))}
    for key, (label, environment, _) in LOADS.items():
        command = [
            sys.executable,
            "-m",
            "benchmarks.hta_rounding",
            "--one",
            key,
            str(path.resolve()),
        ]  # HTA takes a relative path as one below its own default folder
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        if done.returncode:
            raise SystemExit(f"HTA failed on {path}: {last_line(done.stderr)}")
        found[key] = (label, json.loads(done.stdout.splitlines()[-1]))
    exact = found["ours"][1]["sum_us"]
    lines = [
        "| | GPU rows | summed us | of the file's | rows of 0 us | of less | GPU busy |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in found.values():
        lines.append(
            f"| {label} | {row['rows']:,} | {row['sum_us']:,.3f} | {100 * (row['sum_us'] / exact - 1):+.2f} % "
            f"| {row['zero']:,} | {row['negative']:,} | {100 * row['busy']:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", type=readable, nargs="*", help="a generated one by default")
    parser.add_argument("--one", choices=list(LOADS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    paths = asked.traces
    if asked.one:
        print(json.dumps(hta_totals(str(paths[0]), LOADS[asked.one][2])))
        return
    with tempfile.TemporaryDirectory() as folder:
        if not paths:
            from benchmarks.generate import generate

            paths = [Path(folder) / "decode.json.gz"]
            generate(paths[0])
        for path in paths:
            try:
                print(f"{path.name}\n\n{table(path)}\n")
            except HtaDsv4Error as error:
                raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
