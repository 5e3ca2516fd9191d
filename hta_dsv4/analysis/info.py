"""What a trace is, what it has and what it lacks, before any analysis is trusted."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from hta_dsv4.analysis.intervals import busy_by_device
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.classify.architecture import read_activities
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import GRAPH, Agreement, Steps

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU that a rank used: ``name`` is ``None`` where the trace does not say it.

    ``kernel_sum_ns`` is of kernels alone, ``sum_ns`` and ``busy_ns`` are of copies and sets, too.
    """

    rank: int
    device: int | None
    name: str | None
    num_sms: int | None
    kernels: int
    kernel_sum_ns: int
    sum_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Capability:
    """Something an analysis may need: whether the trace has it, how much of it, and how to get it if not."""

    name: str
    present: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Info:
    """Counts and capabilities of one trace.

    Attributes:
        path: the file, as given.
        kernels, memcpys, memsets: activities by kind.
        kernel_sum_ns: summed kernel durations, all ranks in the file; copies and sets not included.
        sum_ns, own_ns: summed durations and own times of all activities, copies and sets included.
        busy_ns: union of all activities per device and rank, added.
        span_ns: first start to last end of all activities.
        steps: counted decode steps (of one rank, where a merged file holds several alike).
        step_method, step_detail: how they were found.
        step_agreement: what the other ways of finding steps say, one sentence each.
        architecture: what the launch counts say about the model, one sentence each; empty where they fit none.
        devices: per rank and device.
        ranks: rank -> label.
        rank_known: whether the file says which rank it is.
        versions: driver, runtime, CUPTI, schema.
        capabilities: what the trace has and lacks.
        warnings: what the reader repaired or doubts.
        partial: salvaged from a cut file.
    """

    path: str
    kernels: int
    memcpys: int
    memsets: int
    kernel_sum_ns: int
    sum_ns: int
    own_ns: int
    busy_ns: int
    span_ns: int
    steps: int
    step_method: str
    step_detail: str
    step_agreement: tuple[str, ...]
    architecture: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]
    ranks: dict[int, str]
    rank_known: bool
    versions: dict[str, object]
    capabilities: tuple[Capability, ...]
    warnings: tuple[str, ...]
    partial: bool


def trace_info(trace: Trace, steps: Steps) -> Info:
    """Describe one trace.

    Args:
        trace: as read.
        steps: its steps.

    Returns:
        The description.
    """
    acts = trace.activities
    kinds = acts[col.KIND].value_counts()
    ranks = sorted({int(r) for t in (acts, trace.events) for r in t[col.RANK].unique()}) or [0]
    devices: list[DeviceInfo] = []
    for rank in ranks:
        devices += _devices(trace, acts[acts[col.RANK] == rank], rank)
    counted = steps.counted.groupby(col.RANK).size() if len(steps.counted) else pd.Series([0])
    end = acts[col.START_NS] + acts[col.DUR_NS].clip(lower=0)
    span = int(end.max() - acts[col.START_NS].min()) if len(acts) else 0
    reading = read_activities(acts, steps)
    return Info(
        path=str(trace.path),
        kernels=int(kinds.get(col.KERNEL, 0)),
        memcpys=int(kinds.get(col.MEMCPY, 0)),
        memsets=int(kinds.get(col.MEMSET, 0)),
        kernel_sum_ns=int(acts.loc[acts[col.KIND] == col.KERNEL, col.DUR_NS].sum()),
        sum_ns=int(acts[col.DUR_NS].sum()),
        own_ns=int(own_ns(acts).sum()),
        busy_ns=sum(d.busy_ns for d in devices),
        span_ns=span,
        steps=int(counted.max()),
        step_method=steps.method,
        step_detail=steps.detail,
        step_agreement=tuple(_agreement(a) for a in steps.agreement),
        architecture=reading.sentences() if reading is not None else (),
        devices=tuple(devices),
        ranks={r: trace.meta.rank_labels.get(r, str(r)) for r in ranks},
        rank_known=trace.meta.rank_known,
        versions=dict(trace.meta.versions),
        capabilities=_capabilities(trace, steps),
        warnings=trace.warnings,
        partial=trace.partial,
    )


def _agreement(other: Agreement) -> str:
    verdict = {True: "agrees", False: "disagrees", None: "cannot tell"}[other.agrees]
    return f"{other.method} {verdict}: {other.detail}"


def _devices(trace: Trace, acts: pd.DataFrame, rank: int) -> list[DeviceInfo]:
    known = {d.index: d for d in trace.meta.devices}
    rows = []
    for device, busy in busy_by_device(acts).items():
        # ROCm numbers kernels by the node's GPU and deviceProperties by the process's: one entry is that GPU.
        entry = known.get(device) or (trace.meta.devices[0] if len(known) == 1 else None)
        here = acts[acts[col.DEVICE].fillna(-1) == device]
        kernels = here[here[col.KIND] == col.KERNEL]
        rows.append(
            DeviceInfo(
                rank=rank,
                device=None if device < 0 else device,
                name=entry.name if entry else None,
                num_sms=entry.num_sms if entry else None,
                kernels=len(kernels),
                kernel_sum_ns=int(kernels[col.DUR_NS].sum()),
                sum_ns=int(here[col.DUR_NS].sum()),
                busy_ns=busy,
            )
        )
    return rows


def _capabilities(trace: Trace, steps: Steps) -> tuple[Capability, ...]:
    acts, events = trace.activities, trace.events
    kernels = acts[acts[col.KIND] == col.KERNEL]
    n = len(kernels)

    def part(column: str) -> tuple[bool, str]:
        have = int(kernels[column].notna().sum()) if column in kernels else 0
        return have > 0, f"{have} of {n} kernels"

    launches, ops = part(col.LAUNCH_NAME), part(col.OP)
    shapes_known = bool((events[col.SHAPES].notna()).any()) if len(events) else False
    graph = (
        int(kernels[col.LAUNCH_NAME].astype(str).isin(_GRAPH_LAUNCHES).sum())
        if col.LAUNCH_NAME in kernels
        else 0
    )
    registers = part(col.REGISTERS)
    return (
        Capability("launches", launches[0], f"{launches[1]} have their launch"),
        Capability(
            "ops",
            ops[0],
            f"{ops[1]} have their CPU op" + ("" if ops[0] or not n else "; record with ProfilerActivity.CPU"),
        ),
        Capability(
            "shapes",
            shapes_known,
            "recorded" if shapes_known else "not recorded; profile with record_shapes=True",
        ),
        Capability(
            "stacks",
            bool(trace.meta.with_stack),
            "recorded"
            if trace.meta.with_stack
            else "not recorded; profile with with_stack=True to see Python frames",
        ),
        Capability("annotations", *_annotations(events)),
        Capability(
            "graph replay",
            graph > 0,
            f"{graph} of {n} kernels run in graph replays"
            + (", where no kernel has a CPU op" if graph else ""),
        ),
        Capability("registers and shared memory", registers[0], registers[1]),
        Capability("steps", steps.method != "none", f"{steps.detail}" + (_graph_hint(steps))),
    )


def _annotations(events: pd.DataFrame) -> tuple[bool, str]:
    n = int((events[col.CATEGORY] == "user_annotation").sum()) if len(events) else 0
    return n > 0, f"{n} user annotations" + (
        "" if n else "; wrap parts of the model in torch.profiler.record_function"
    )


def _graph_hint(steps: Steps) -> str:
    return " (a step is taken to end where the next replay is launched)" if steps.method == GRAPH else ""
