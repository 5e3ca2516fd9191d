"""What in a frame makes an HTA analysis go wrong, and the frames in which it does not.

Checks take a rank's frame and yield ``(fault key, what was found)``; corrections take a frame and return
another. Neither runs an analysis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from .hta_frame import CATEGORIES, CPU_STREAM, NO_ITERATION

Finding = tuple[str, str]
Check = Callable[[pd.DataFrame, dict[str, int]], Iterator[Finding]]

# Launch calls HTA's launch statistics and its queue length and critical path know by name.
STATISTICS_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
QUEUE_LAUNCHES = (
    *STATISTICS_LAUNCHES,
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
    "hipMemsetAsync",
)
GRAPH_LAUNCH = "cudaGraphLaunch"
WINDOW = "critical path window"  # a name no annotation and no kernel has
# Communication kernels that are not NCCL's own, as vLLM, SGLang, TensorRT-LLM and DeepEP spell them.
_COMMUNICATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|quick_?reduce|nvshmem|multimem"
    r"|deep_ep::|(one|two)_?shot|custom_ar",
    re.IGNORECASE,
)


def _us(ns: int) -> str:
    return f"{ns / 1000:,.3f} us"


def _gpu(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["stream"].ne(CPU_STREAM)]


def no_gpu(frame: pd.DataFrame, symbols: dict[str, int]) -> Iterator[Finding]:
    """No activity at all."""
    if not frame["stream"].ne(CPU_STREAM).any():
        yield "no_gpu", f"none of its {len(frame)} events is a GPU activity"


def devices_merged(frame: pd.DataFrame, symbols: dict[str, int]) -> Iterator[Finding]:
    """Activities of more than one GPU."""
    devices = sorted(_gpu(frame)["pid"].unique())
    if len(devices) > 1:
        yield "devices_merged", f"activities of devices {', '.join(map(str, devices))}"


def kernel_types(frame: pd.DataFrame, symbols: dict[str, int]) -> Iterator[Finding]:
    """Kernels whose type HTA's name patterns get wrong."""
    from hta.utils.utils import get_kernel_type

    names = list(symbols)
    kernel = symbols.get(CATEGORIES["kernel"], -1)
    wrong: dict[str, int] = {}
    totals = _gpu(frame).groupby(["cat", "name"], as_index=False)["dur"].sum()
    for category, name_id, ns in zip(totals["cat"], totals["name"], totals["dur"], strict=True):
        name = names[name_id]
        expected = "MEMORY"
        if category == kernel:
            # Inductor lists the ops it fused: "triton_poi_fused_add_all_reduce_1" communicates nothing.
            apart = _COMMUNICATION.search(name) and not name.startswith("triton_")
            expected = "COMMUNICATION" if apart or get_kernel_type(name) == "COMMUNICATION" else "COMPUTATION"
        if get_kernel_type(name) != expected:
            wrong[name] = int(ns)
    if wrong:
        largest = max(wrong, key=lambda n: wrong[n])
        shown = largest if len(largest) <= 60 else largest[:57] + "..."
        total = _us(sum(wrong.values()))
        yield "kernel_types", f"{total} in {len(wrong)} names under another type, most in {shown!r}"


def _owners(frame: pd.DataFrame) -> pd.DataFrame:
    """Per launch (its label): activities owned, whether all are copies or sets, their time in ns."""
    linked = _gpu(frame)
    linked = linked[linked["index_correlation"].gt(0)]
    return linked.groupby("index_correlation").agg(
        count=("dur", "size"), dur=("dur", "sum"), category=("cat", "min"), last=("cat", "max")
    )


def graph_launches(frame: pd.DataFrame, symbols: dict[str, int]) -> Iterator[Finding]:
    """Launches that own several activities."""
    many = _owners(frame).query("count > 1")
    if len(many):
        owned, total = int(many["count"].sum()), int(many["dur"].sum())
        yield "graph_launches", f"{len(many)} launches own {owned} activities ({_us(total)})"


def graph_path(frame: pd.DataFrame) -> Iterator[Finding]:
    """The same, in a critical-path window."""
    for _, detail in graph_launches(frame, {}):
        yield "graph_path", detail


def unlinked_path(frame: pd.DataFrame) -> Iterator[Finding]:
    """Activities without a launch row, in a critical-path window."""
    lost = _gpu(frame).query("index_correlation <= 0")
    if len(lost):
        yield "unlinked_path", f"{len(lost)} activities ({_us(int(lost['dur'].sum()))}) have no launch row"


def missing_waits(frame: pd.DataFrame, symbols: dict[str, int]) -> Iterator[Finding]:
    """No record of what streams waited for."""
    sync = frame["cat"].eq(symbols.get("cuda_sync", -1))
    waits = int((sync & frame["name"].eq(symbols.get("Stream Wait Event", -1))).sum())
    if not sync.any():
        yield "missing_waits", "no cuda_sync rows"
    elif waits:
        yield "missing_waits", f"{waits} stream waits"


def annotated(
    frame: pd.DataFrame, symbols: dict[str, int], annotation: str, instance: int | tuple[int, int]
) -> pd.DataFrame:
    """CPU-side annotations with ``annotation`` in their name: the given occurrence, or the first to the last.

    Args:
        frame: of one rank.
        symbols: string -> id.
        annotation: part of the name.
        instance: which, counted from 0 in order of time; a pair is a range, both ends included.
    """
    named = frame["name"].isin([i for name, i in symbols.items() if annotation in name])
    rows = frame[named & frame["cat"].eq(symbols.get("user_annotation", -1))].sort_values(["ts", "index"])
    first, last = instance if isinstance(instance, tuple) else (instance, instance)
    return rows.iloc[first : last + 1]


def started_within(frame: pd.DataFrame, low: int, high: int) -> pd.DataFrame:
    """CPU rows that start in [low, high], activities launched in it, and those without a launch that start in it.

    Args:
        frame: of one rank.
        low: in the frame's unit.
        high: likewise.
    """
    linked = (frame["stream"].ne(CPU_STREAM) & frame["index_correlation"].gt(0)).to_numpy()
    when = frame["ts"].to_numpy().copy()
    when[linked] = frame["ts"].reindex(frame["index_correlation"].to_numpy()[linked]).to_numpy()
    return frame[(when >= low) & (when <= high)]


def diff_faults(
    frame: pd.DataFrame, symbols: dict[str, int], steps: Sequence[int], device: str
) -> Iterator[Finding]:
    """What a comparison of these steps gets wrong.

    Args:
        frame: of one side.
        symbols: string -> id.
        steps: the steps to compare.
        device: ``gpu``, ``cpu`` or ``all``.
    """
    present = {int(n) for n in frame["iteration"].unique() if n >= 0}
    if not present:
        yield "no_steps", "no ProfilerStep#N"
    unknown = [n for n in steps if n not in present]
    if unknown:
        yield "no_steps", f"no ProfilerStep#{unknown[0]}"
    gpu = _gpu(frame)
    if device != "cpu":
        outside = gpu[gpu["iteration"].eq(NO_ITERATION)]
        if len(outside):
            total = _us(int(outside["dur"].sum()))
            yield "outside_steps", f"{len(outside)} activities ({total}) are launched outside every step"
    if device == "all":
        shared = sorted(set(gpu["name"]) & set(frame.loc[frame["stream"].eq(CPU_STREAM), "name"]))
        if shared:
            name = list(symbols)[shared[0]]
            yield "name_join", f"{len(shared)} names are both of a CPU row and of a kernel, {name!r} first"


def without_overlap(frame: pd.DataFrame) -> pd.DataFrame:
    """Activities clipped to the union of their stream, so that no gap between neighbours is negative.

    An activity that starts before everything earlier on its stream has ended starts where that ends; one
    wholly covered is left out. Gaps, and so idle times, are those of the union.
    """
    gpu = _gpu(frame).sort_values(["stream", "ts", "index"])
    covered = gpu.groupby("stream")["end"].cummax().groupby(gpu["stream"]).shift()
    covered = covered.fillna(gpu["ts"]).astype("int64")
    start = gpu["ts"].clip(lower=covered)
    first = gpu.groupby("stream").cumcount().eq(0)
    clipped = gpu.assign(ts=start, dur=gpu["end"] - start)[gpu["end"].gt(covered) | first]
    return pd.concat([clipped, frame[frame["stream"].eq(CPU_STREAM)]]).sort_index()


def with_known_launches(
    frame: pd.DataFrame, symbols: dict[str, int], known: Sequence[str], *, graphs: bool
) -> pd.DataFrame:
    """Launch rows under names HTA takes for launches, judged by what they own.

    Args:
        frame: of one rank.
        symbols: string -> id; holds the names used here.
        known: names that stay as they are.
        graphs: whether launches of several activities count as launches.
    """
    owners = _owners(frame)
    name = frame["name"].reindex(owners.index)
    copies = owners["last"].eq(symbols.get("gpu_memcpy", -1)) & owners["category"].eq(owners["last"])
    sets = owners["last"].eq(symbols.get("gpu_memset", -1)) & owners["category"].eq(owners["last"])
    wanted: pd.Series[Any] = name.where(
        name.isin([symbols[n] for n in known if n in symbols]),
        np.select(
            [copies, sets],
            [symbols["cudaMemcpyAsync"], symbols["cudaMemsetAsync"]],
            symbols["cudaLaunchKernel"],
        ),
    )
    if not graphs:
        wanted = wanted.where(owners["count"].eq(1), symbols[GRAPH_LAUNCH])
    result = frame.copy()
    result.loc[owners.index, "name"] = wanted.astype("int64")
    return result


def by_launch(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the launch's label as correlation, unique where the trace's own ids are not (0, reuse)."""
    gpu = frame["stream"].ne(CPU_STREAM)
    owner = frame["index_correlation"].where(gpu, frame["index"])
    linked = frame["index_correlation"].gt(0)
    return frame.assign(correlation=owner.where(linked, -1))
