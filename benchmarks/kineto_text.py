"""The text of a generated trace, in Kineto's own layout."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from benchmarks.decode_mix import KERNEL, Template
from benchmarks.decode_step import TRACE_START_NS, Plan, Step

Heads = dict[str, tuple[str, str]]
Write = Callable[[str], object]

BASE_TIME_NS = 1790857026000000000
CPU_PID, CPU_TID, STREAM, CONTEXT, NUM_SMS = 420, 420, 7, 1, 132


def _us(ns: int) -> str:
    """Microseconds with three decimals, as Kineto prints them."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _event(head: str, start: int, dur: int, args: str) -> str:
    tail = f',\n    "args": {{\n      {args}\n    }}' if args else ""
    return f'  {{\n    "ph": "X", {head},\n    "ts": {_us(start)}, "dur": {_us(dur)}{tail}\n  }},\n'


def _flow(ph: str, ident: int, pid: int, tid: int, ts: int) -> str:
    end = ', "bp": "e"' if ph == "f" else ""
    return (
        f'  {{\n    "ph": "{ph}", "id": {ident}, "pid": {pid}, "tid": {tid}, "ts": {_us(ts)},\n'
        f'    "cat": "ac2g", "name": "ac2g"{end}\n  }},\n'
    )


_CPU = f'"pid": {CPU_PID}, "tid": {CPU_TID}'
_GPU = f'"pid": 0, "tid": {STREAM}'
_INDUCTOR = ', "kernel_backend": "triton", "kernel_hash": "c7q3", "grid": "grid(256,)", "stream": 0'


def _annotations(step: Step, plan: Plan) -> list[str]:
    return ([f"ProfilerStep#{step.number}"] if plan.steps_marked else []) + ["decode[bs=32]"]


def heads_of(t: Template) -> tuple[str, str]:
    """The constant text of a template: a CPU op's shapes, and a GPU activity's launch shape."""
    threads = t.block[0] * t.block[1] * t.block[2]
    blocks = t.grid[0] * t.grid[1] * t.grid[2] / NUM_SMS
    # Kineto says 0 above 48 KiB of shared memory: it asks the occupancy calculator with the default limit.
    resident = 65536 // max(threads * t.registers, 1)
    occupancy = 0 if t.shared_mem > 48 * 1024 else min(100, 100 * resident * threads // 2048)
    strides = [[int(np.prod(d[i + 1 :])) for i in range(len(d))] for d in t.dims]
    shapes = (
        f'"Concrete Inputs": {json.dumps([""] * len(t.dims))}, "Input type": {json.dumps(t.dtypes)}, '
        f'"Input Strides": {json.dumps(strides)}, "Input Dims": {json.dumps(t.dims)}'
    )
    launch = (
        f'      "registers per thread": {t.registers},      "shared memory": {t.shared_mem},      '
        f'"blocks per SM": {blocks:.6f},      "warps per SM": {blocks * threads / 32:.6f},      '
        f'"grid": {list(t.grid)},      "block": {list(t.block)},      '
        f'"est. achieved occupancy %": {occupancy}'
    )
    return shapes, launch


def write_cpu(step: Step, plan: Plan, write: Write, heads: Heads) -> int:
    """One step's annotations, ops and Python frames; returns the number of events."""
    wrote, ident = 0, step.external_id
    for name in _annotations(step, plan):
        ident += 1
        head = f'"cat": "user_annotation", "name": "{name}", {_CPU}'
        args = f'"External id": {ident},"Record function id": 0, "Ev Idx": {ident - 1}'
        length = step.cpu_end - step.cpu_start - 2000 * wrote
        write(_event(head, step.cpu_start + 1000 * wrote, length, args))
        wrote += 1
    if plan.graph:
        return wrote
    for i, t in enumerate(step.templates):
        start, end = int(step.op_start[i]), int(step.op_end[i])
        for level in range(plan.python_frames):
            frame = f"deepseek_v4.py({100 + level}): forward_{level}"
            head = f'"cat": "python_function", "name": "{frame}", {_CPU}'
            args = f'"Python parent id": {level or "null"}, "Python id": {level + 1}, "Ev Idx": {ident}'
            write(_event(head, start - 200 + level, end - start + 300 - 2 * level, args))
            wrote += 1
        ident = step.external_id + 4 * i + 4
        for level, op in enumerate(t.ops):
            inductor = op.startswith("triton_")
            if inductor and not plan.compiled:
                continue
            args = f'"External id": {ident + level},"Record function id": 0, {heads[t.name][0]}'
            args += f', "Ev Idx": {ident + level - 1}' + _INDUCTOR * inductor
            head = f'"cat": "cpu_op", "name": "{op}", {_CPU}'
            write(_event(head, start + 300 * level, end - start - 600 * level, args))
            wrote += 1
    return wrote


def write_gpu(step: Step, plan: Plan, write: Write, heads: Heads) -> int:
    """One step's activities, launches and flows; returns the number of events."""
    wrote = 0
    for i, t in enumerate(step.templates):
        start, dur, ident = int(step.start[i]), int(step.dur[i]), int(step.correlation[i])
        op = [o for o in t.ops if plan.compiled or not o.startswith("triton_")]
        innermost = step.external_id + 4 * i + 3 + len(op)
        external = "" if plan.graph or not op else f'"External id": {innermost},      '
        node = f'      "graph id": 3, "graph node id": {i + 1},' if plan.graph and plan.graph_nodes else ""
        where = f'"device": 0, "context": {CONTEXT},      "stream": {STREAM}, "correlation": {ident},'
        if t.kind == KERNEL:
            args = f'{external}"queued": 0, {where}{node}{heads[t.name][1]}'
        else:
            args = f'{external}{where}      "bytes": {t.size}, "memory bandwidth (GB/s)": {t.size / dur!r}'
        write(_event(f'"cat": "{t.kind}", "name": "{t.name}", {_GPU}', start, dur, args))
        write(_flow("f", ident, 0, STREAM, start))
        wrote += 2
        if plan.graph and i:
            continue
        launch, cbid = ("cudaGraphLaunch", 311) if plan.graph else (t.launch, t.cbid)
        category = "cuda_driver" if launch.startswith("cuLaunch") else "cuda_runtime"
        at = int(step.launch_start[i])
        args = f'{external}"cbid": {cbid}, "correlation": {ident}'
        write(_event(f'"cat": "{category}", "name": "{launch}", {_CPU}', at, int(step.launch_dur[i]), args))
        write(_flow("s", ident, CPU_PID, CPU_TID, at))
        wrote += 2
    end = int((step.start + step.dur).max())
    wait = int(step.op_end[-1]) + 1_500
    head = f'"cat": "cuda_runtime", "name": "cudaStreamSynchronize", {_CPU}'
    args = f'"cbid": 131, "correlation": {int(step.correlation[-1]) + 5}'
    write(_event(head, wait, max(end + 4_000 - wait, 900), args))
    wrote += 1
    start = int(step.start[0])
    for k, name in enumerate(_annotations(step, plan)):
        head = f'"cat": "gpu_user_annotation", "name": "{name}", {_GPU}'
        write(_event(head, start, end - start, f'"External id": {step.external_id + 1 + k}'))
        wrote += 1
    return wrote


_DEVICE = (
    '{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0, '
    '"maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32, '
    f'"sharedMemPerBlock": 49152, "numSms": {NUM_SMS}, "regsPerMultiprocessor": 65536, '
    '"sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472}'
)


def text_head(plan: Plan) -> str:
    """Everything before the first event."""
    ranks = f'"backend": "nccl", "rank": {plan.rank}, "world_size": {plan.world_size}'
    return (
        f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {_DEVICE}\n    ],\n'
        + (f'    "distributedInfo": {{{ranks}}},\n' if plan.world_size > 1 else "")
        + '      "record_shapes": 1,\n      "cuda_driver_version": 13000,\n'
        '      "cuda_runtime_version": 13000,\n      "cupti_version": 130001,\n  "displayTimeUnit": "ms",\n'
        f'  "baseTimeNanoseconds": {BASE_TIME_NS},\n  "traceEvents": [\n'
    )


def text_tail(last_end: int) -> str:
    """The last three events and everything after them."""
    start, total = _us(TRACE_START_NS - 9_000), _us(last_end - TRACE_START_NS + 200_000)
    return (
        f'  {{\n    "name": "process_name", "ph": "M", "ts": {start}, "pid": {CPU_PID}, "tid": 0,\n'
        '    "args": {\n      "name": "python3"\n    }\n  },\n'
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {start}, "dur": {total},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  },\n'
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {_us(last_end + 90_000)}\n  }}\n  ],\n'
        '  "traceName": "decode.json"\n}\n'
    )
