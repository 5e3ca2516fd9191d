"""When things happen in a generated decode trace: CPU ops, launches and GPU activities of each step.

A stream runs its activities in order; the CPU runs ahead of it within a step and waits for it at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.decode_mix import DTOH, HTOD, LAYER, ZERO, Template

Int64s = npt.NDArray[np.int64]

TRACE_START_NS = 5106093298343101
FIRST_CORRELATION, FIRST_STEP = 899, 3


@dataclass(frozen=True)
class Plan:
    """What to generate.

    Attributes:
        kernels_per_step: kernels in one decode step; each step adds 3 copies and 1 memset.
        steps: decode steps, each under a ``ProfilerStep#N`` on both sides.
        graph: one ``cudaGraphLaunch`` per step instead of one launch per kernel.
        graph_nodes: write ``graph id`` and ``graph node id`` on graph kernels, as newer Kineto does.
        overlap: share of kernels that start before their predecessor ends (programmatic dependent launch).
        compiled: write the launch row that torch.compile adds: a ``cpu_op`` carrying ``stream: 0``.
        python_frames: ``python_function`` events per kernel (the profiler's ``with_stack``).
        steps_marked: write the ``ProfilerStep#N`` annotations.
        rank, world_size: written as ``distributedInfo`` when world_size > 1.
        seed: everything random follows from it.
    """

    kernels_per_step: int = 6000
    steps: int = 10
    graph: bool = False
    graph_nodes: bool = False
    overlap: float = 0.0
    compiled: bool = False
    python_frames: int = 0
    steps_marked: bool = True
    rank: int = 0
    world_size: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kernels_per_step < 1 or self.steps < 1 or not 0.0 <= self.overlap < 1.0:
            raise ValueError("a plan needs kernels_per_step >= 1, steps >= 1 and 0 <= overlap < 1")


@dataclass(frozen=True)
class Step:
    """One simulated step; arrays have one element per activity, times in ns since the base time."""

    number: int
    templates: list[Template]
    op_start: Int64s
    launch_start: Int64s
    launch_dur: Int64s
    op_end: Int64s
    start: Int64s
    dur: Int64s
    correlation: Int64s
    external_id: int
    cpu_start: int
    cpu_end: int


def _jitter(rng: np.random.Generator, medians: Int64s, sigma: float) -> Int64s:
    return np.maximum(np.rint(medians * rng.lognormal(0.0, sigma, len(medians))), 1).astype(np.int64)


def simulate(plan: Plan) -> Iterator[Step]:
    """Steps in order of time. A stream runs in order; the CPU waits for it at the end of each step."""
    cpu, gpu_end = TRACE_START_NS, TRACE_START_NS
    correlation, external_id = FIRST_CORRELATION, 1
    body = [LAYER[i % len(LAYER)] for i in range(plan.kernels_per_step)]
    templates = [HTOD, HTOD, *body[: len(body) // 2], ZERO, *body[len(body) // 2 :], DTOH]
    medians = np.array([t.median_ns for t in templates], np.int64)
    n = len(templates)
    for number in range(plan.steps):
        rng = np.random.default_rng([plan.seed, plan.rank, number])
        dur = _jitter(rng, medians, 0.3)
        gap = _jitter(rng, np.full(n, 850, np.int64), 0.25)
        if plan.overlap:
            early = rng.random(n) < plan.overlap
            early[0] = False
            gap = np.where(early, -np.roll(dur, 1) // 3, gap)
        if plan.graph:
            launch_start = np.full(n, cpu + 11_000, np.int64)
            launch_dur = np.full(n, int(_jitter(rng, np.array([26_000]), 0.1)[0]), np.int64)
            op_start, op_end = launch_start, launch_start + launch_dur
            ids = np.full(n, correlation, np.int64)
            correlation += 446
        else:
            parts = (3_000, 4_300, 900, 1_900)
            lead, launch_dur, tail, rest = (_jitter(rng, np.full(n, p, np.int64), 0.35) for p in parts)
            period = lead + launch_dur + tail + rest
            op_start = cpu + 5_000 + np.cumsum(period) - period
            launch_start = op_start + lead
            op_end = launch_start + launch_dur + tail
            ids = correlation + 11 * np.arange(n, dtype=np.int64)
            correlation += 11 * n
        # start[i] = max(ready[i], end[i-1] + gap[i]); with c = cumsum(gap + dur), end - c only grows.
        ready = launch_start + launch_dur + _jitter(rng, np.full(n, 2_600, np.int64), 0.2)
        ready[0] = max(int(ready[0]), gpu_end + 850)
        c = np.cumsum(gap + dur)
        start = c + np.maximum.accumulate(ready + dur - c) - dur
        gpu_end = int((start + dur).max())
        cpu_end = max(int(op_end[-1]), gpu_end) + 9_000
        yield Step(
            FIRST_STEP + number, templates, op_start, launch_start, launch_dur, op_end, start, dur, ids,
            external_id, cpu, cpu_end,
        )  # fmt: skip
        external_id += 4 * n + 4
        cpu = cpu_end + 40_000
