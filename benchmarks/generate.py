"""Writes realistic DeepSeek-V4 decode traces of any size, and says exactly what is in them.

The output follows Kineto's layout and order: CPU ops first, then each GPU activity with its ``ac2g`` flow
and its launch, then process metadata. Durations are log-normal around each kernel's own median (mean near
5 us over the mix) with nanosecond decimals. Everything follows from the seed, and nothing is held but one
decode step, so a gigabyte trace needs no gigabyte of memory.

    python -m benchmarks.generate /tmp/decode.json.gz --steps 10 --kernels-per-step 6000

writes 60,000 kernels (about 92 MB of JSON, 7 MB gzipped) and prints the totals a reader must reproduce.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.decode_mix import DTOH, HTOD, KERNEL, LAYER, MEMCPY, MEMSET, ZERO
from benchmarks.decode_step import Plan, Step, simulate
from benchmarks.kineto_text import heads_of, text_head, text_tail, write_cpu, write_gpu
from benchmarks.words import share, whole, writable

__all__ = ["Expected", "Plan", "generate"]


@dataclass
class Expected:
    """What a reader must find in the file, in integer ns.

    Attributes:
        kernels, memcpys, memsets: counts.
        kernel_sum_ns, memcpy_sum_ns, memset_sum_ns: summed durations.
        busy_ns: union of all activities. span_ns: first start to last end.
        start_ns: the first activity's start, relative to the base time.
        steps: decode steps. step_kernel_sum_ns: summed kernel time of each.
        sum_ns_by_name: summed kernel time per name. launches_by_name: kernels per name.
        events: entries of ``traceEvents``.
    """

    kernels: int = 0
    memcpys: int = 0
    memsets: int = 0
    kernel_sum_ns: int = 0
    memcpy_sum_ns: int = 0
    memset_sum_ns: int = 0
    busy_ns: int = 0
    span_ns: int = 0
    start_ns: int = 0
    steps: int = 0
    events: int = 0
    step_kernel_sum_ns: list[int] = field(default_factory=list)
    sum_ns_by_name: dict[str, int] = field(default_factory=dict)
    launches_by_name: dict[str, int] = field(default_factory=dict)


def _count(expected: Expected, step: Step, last_end: int) -> int:
    """Adds one step to the totals; returns the latest end so far."""
    kinds = np.array([t.kind for t in step.templates])
    kernels = kinds == KERNEL
    expected.kernels += int(kernels.sum())
    expected.memcpys += int((kinds == MEMCPY).sum())
    expected.memsets += int((kinds == MEMSET).sum())
    expected.kernel_sum_ns += int(step.dur[kernels].sum())
    expected.memcpy_sum_ns += int(step.dur[kinds == MEMCPY].sum())
    expected.memset_sum_ns += int(step.dur[kinds == MEMSET].sum())
    expected.step_kernel_sum_ns.append(int(step.dur[kernels].sum()))
    expected.steps += 1
    expected.start_ns = expected.start_ns or int(step.start.min())
    end = step.start + step.dur
    before = np.concatenate([[last_end], np.maximum.accumulate(end)[:-1]])  # starts never go back
    expected.busy_ns += int(np.maximum(end - np.maximum(step.start, np.maximum(before, last_end)), 0).sum())
    last_end = max(last_end, int(end.max()))
    expected.span_ns = last_end - expected.start_ns
    for t, d in zip(step.templates, step.dur.tolist(), strict=True):
        if t.kind == KERNEL:
            expected.sum_ns_by_name[t.name] = expected.sum_ns_by_name.get(t.name, 0) + d
            expected.launches_by_name[t.name] = expected.launches_by_name.get(t.name, 0) + 1
    return last_end


def generate(path: str | Path, plan: Plan | None = None) -> Expected:
    """Writes a trace; gzip when the name ends in ``.gz``.

    Args:
        path: where to write.
        plan: what to write; default :class:`Plan`.

    Returns:
        The exact totals of what was written.
    """
    plan = plan or Plan()
    path = Path(path)
    heads = {t.name: heads_of(t) for t in (*LAYER, HTOD, DTOH, ZERO)}
    expected, last_end = Expected(), 0
    with gzip.open(path, "wt", compresslevel=6) if path.suffix == ".gz" else open(path, "w") as out:
        write = out.write
        write(text_head(plan))
        for step in simulate(plan):
            expected.events += write_cpu(step, plan, write, heads)
        for step in simulate(plan):
            expected.events += write_gpu(step, plan, write, heads)
            last_end = _count(expected, step, last_end)
        write(text_tail(last_end))
        expected.events += 3
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a realistic decode trace and print its exact totals.")
    parser.add_argument("path", type=writable, help="output file; .gz compresses")
    parser.add_argument("--kernels-per-step", type=whole(1), default=6000)
    parser.add_argument("--steps", type=whole(1), default=10)
    parser.add_argument("--graph", action="store_true", help="one cudaGraphLaunch per step")
    parser.add_argument("--graph-nodes", action="store_true", help="write graph node ids (newer Kineto)")
    parser.add_argument("--overlap", type=share, default=0.0, help="share of kernels starting early (PDL)")
    parser.add_argument("--compiled", action="store_true", help="torch.compile's CPU launch rows (stream 0)")
    parser.add_argument("--python-frames", type=whole(0), default=0, help="python_function events per kernel")
    parser.add_argument("--seed", type=whole(0), default=0)
    options = vars(parser.parse_args())
    path = options.pop("path")
    totals = asdict(generate(path, Plan(**options)))
    for name in ("sum_ns_by_name", "launches_by_name", "step_kernel_sum_ns"):
        totals.pop(name)
    print(json.dumps({**totals, "file_bytes": path.stat().st_size}, indent=2))


if __name__ == "__main__":
    main()
