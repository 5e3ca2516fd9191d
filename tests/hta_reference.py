"""HTA's own loader and analyses on a trace file, in a process of their own: ``python hta_reference.py IN OUT``.

HTA reads its rounding switch once per process, so each setting needs a fresh one. The result is a pickled
dictionary of what each analysis returned, or the text of the exception it raised.
"""

from __future__ import annotations

import logging
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd


def main(path: str, out: str, annotation: str) -> None:
    from hta.analyzers.trace_counters import TraceCounters
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis
    from hta.trace_diff import DeviceType, TraceDiff

    logging.getLogger("hta").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    trace = Trace({0: path})
    trace.load_traces(include_last_profiler_step=True, use_multiprocessing=False, use_memory_profiling=False)
    analysis = TraceAnalysis.__new__(TraceAnalysis)
    analysis.t = trace
    frame = trace.traces[0].copy()
    names = trace.symbol_table.get_sym_table()
    frame["s_name"] = [names[i] for i in frame["name"]]
    frame["s_cat"] = [names[i] for i in frame["cat"]]

    def diff() -> pd.DataFrame:
        trace.trace_files = {}  # or the comparison parses the file again
        steps = trace.get_iterations(0)
        return TraceDiff.compare_traces(trace, trace, 0, 0, steps, steps, DeviceType.GPU)

    def path_of() -> dict[str, Any]:
        graph, valid = analysis.critical_path_analysis(rank=0, annotation=annotation, instance_id=0)
        rows = graph.get_critical_path_breakdown()
        return {"valid": valid, "rows": rows, "nodes": len(graph.nodes), "edges": len(graph.edges)}

    calls: dict[str, Callable[[], Any]] = {
        "temporal": lambda: analysis.get_temporal_breakdown(visualize=False),
        "idle": lambda: analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0],
        "kernels": lambda: analysis.get_gpu_kernel_breakdown(
            visualize=False, num_kernels=10**6, duration_ratio=1.0, include_memory_kernels=True
        ),
        "kernels_default": lambda: analysis.get_gpu_kernel_breakdown(visualize=False),
        "launches": lambda: analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0],
        "queue": lambda: analysis.get_queue_length_summary(ranks=[0]),
        "bandwidth": lambda: analysis.get_memory_bw_summary(ranks=[0]),
        "bandwidth_series": lambda: TraceCounters.get_memory_bw_time_series(trace, [0])[0],
        "path": path_of,
        "diff": diff,
    }
    result: dict[str, Any] = {"frame": frame}
    for name, call in calls.items():
        try:
            result[name] = call()
        except Exception as error:  # what HTA raises is part of the reference
            result[name] = f"{type(error).__name__}: {error}"
    with open(out, "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
