"""What is wrong in HTA's analyses on decode traces, and what the bridge does about each.

Every entry was reproduced on HTA 0.6.1 (``traceinsight``); the tests hold the bridge to what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hta_dsv4.errors import HtaDsv4Error


class HtaFaultError(HtaDsv4Error):
    """An HTA analysis that would be wrong on this trace; the message says why and what to use instead."""


class HtaFaultWarning(UserWarning):
    """An HTA analysis whose result leaves something out or counts it elsewhere; the message says how much."""


class Treatment(Enum):
    """What the bridge does about a fault."""

    CORRECTED = "corrected"  # HTA is fed so that the fault cannot occur
    WARNED = "warned"  # the result is given with an HtaFaultWarning naming the amount
    REFUSED = "refused"  # HtaFaultError, no result
    STANDS = "stands"  # documented only
    NOT_OFFERED = "not offered"  # the bridge has no method for it


@dataclass(frozen=True)
class Fault:
    """One fault of HTA.

    Attributes:
        key: short name, used in messages.
        analyses: methods of the bridge's view it concerns; ``*`` is all of them.
        what: what HTA does, and how that shows.
        treatment: what the bridge does.
        how: how it corrects, or when it warns or refuses.
        instead: what to use for the question, where the bridge does not correct.
    """

    key: str
    analyses: tuple[str, ...]
    what: str
    treatment: Treatment
    how: str
    instead: str = ""


_C, _W, _R, _S, _N = (
    Treatment.CORRECTED,
    Treatment.WARNED,
    Treatment.REFUSED,
    Treatment.STANDS,
    Treatment.NOT_OFFERED,
)

#: Every fault known, in the order of a reader's interest.
KNOWN_FAULTS: tuple[Fault, ...] = (
    Fault("rounding", ("*",),
          "the loader ceils starts and floors ends to whole microseconds: about 1 us lost per kernel, durations of"
          " 0 and -1 us", _C, "frames come from exact nanoseconds"),
    Fault("last_step", ("*",),
          "the loader drops the last ProfilerStep, judging its start by the GPU-side twin of the annotation so"
          " that some of its kernels stay", _C, "nothing is dropped"),
    Fault("cpu_rows_as_kernels", ("*",),
          "any row with a stream counts as a GPU kernel, so torch.compile's CPU launch rows (stream 0) do too",
          _C, "only activities have a stream"),
    Fault("sync_rows_busy", ("temporal_breakdown", "kernel_breakdown"),
          "cuda_sync rows carry a stream and count as GPU busy time", _C, "only activities have a stream"),
    Fault("no_gpu", ("*",),
          "a trace without GPU activity ends in IndexError, ValueError or AssertionError", _R,
          "no GPU activity in the rank", "a capture with CUDA activities enabled"),
    Fault("devices_merged", ("temporal_breakdown", "idle_time_breakdown", "queue_length", "critical_path"),
          "activities of several GPUs in one process are merged, streams of one number treated as one stream", _R,
          "more than one device in the rank", "shares(), which reports each device"),
    Fault("kernel_types", ("temporal_breakdown", "kernel_breakdown"),
          "a kernel's type is judged by NCCL's names: other communication kernels count as computation, compute"
          " kernels with 'dma' or 'Sync' in the name count as neither and are left out", _W,
          "such kernels exist; the warning gives their time", "shares() by bucket"),
    Fault("interval_truncation", ("kernel_breakdown",),
          "each merged interval is truncated to whole microseconds, which loses some 10 % on decode traces even"
          " with rounding off", _C, "the analysis runs on integer nanoseconds"),
    Fault("statistics_of_sums", ("kernel_breakdown",),
          "with more kernels than num_kernels, max, min and mean are those of each kernel's sum and the tail is"
          " folded into 'others'", _C, "num_kernels is the number of distinct kernels"),
    Fault("ranks_summed", ("kernel_breakdown",),
          "the time per kernel type is summed over ranks", _C, "each rank is analysed alone"),
    Fault("negative_gaps", ("idle_time_breakdown",),
          "activities that overlap on one stream (programmatic dependent launch) give negative gaps, which are"
          " subtracted from the idle time", _C, "activities are clipped to the union of their stream"),
    Fault("delay_unit", ("idle_time_breakdown",),
          "consecutive_kernel_delay is documented in nanoseconds and compared with microseconds", _C,
          "the parameter says microseconds and is converted"),
    Fault("launch_names", ("launch_statistics", "queue_length", "critical_path"),
          "launches are told by a list of names that lacks cuLaunchKernel(Ex) (all Triton kernels) in the launch"
          " statistics, and cudaGraphLaunch and cooperative launches everywhere", _C,
          "a launch is what owns activities, whatever its name; critical_path: see graph_path"),
    Fault("graph_launches", ("launch_statistics",),
          "one graph launch owns many kernels; start minus launch says nothing about any but the first", _W,
          "such launches are left out and counted", "idle_time_breakdown()"),
    Fault("negative_delay", ("launch_statistics",),
          "a kernel that starts before its launch call returns has a negative delay, shown as 0", _S,
          "HTA's definition", "launch_start_ns and launch_dur_ns of the activity table"),
    Fault("residual_samples", ("memory_bandwidth",),
          "running sums of bandwidth come back to 1e-15 instead of 0 and count as samples, which drags down"
          " minimum, mean and quartiles", _C, "bandwidths are multiples of 2**-30 GB/s, whose sums are exact"),
    Fault("iteration_twin", ("diff",),
          "CPU rows are looked up among CPU and GPU-side ProfilerStep rows together, the GPU side winning", _C,
          "CPU rows by CPU steps, activities by their launch"),
    Fault("stream_zero", ("diff",),
          "activities on stream 0 (ROCm's default) get no iteration", _C, "iterations come from the launch"),
    Fault("first_step_only", ("diff",),
          "only the first step is compared unless all are named", _C, "all steps unless some are named"),
    Fault("reparse", ("diff",),
          "comparing parses the trace files again and discards any filter", _C, "the frames are kept"),
    Fault("no_steps", ("diff",),
          "a trace without ProfilerStep#N ends in ValueError", _R, "a side has no ProfilerStep#N",
          "compare(), which needs no steps"),
    Fault("outside_steps", ("diff",),
          "activities launched outside every ProfilerStep are left out silently", _W,
          "such activities exist; the warning gives their time", "compare()"),
    Fault("raw_step_sums", ("diff",),
          "sums over N steps are compared with sums over M steps", _W, "the sides have unequal numbers of steps",
          "compare(), per step"),
    Fault("name_join", ("diff",),
          "rows are joined by name alone, so a CPU op and a kernel of one name become one row", _R,
          "device='all' and such names exist", "device='gpu' and device='cpu' separately"),
    Fault("graph_path", ("critical_path",),
          "only one kernel of a graph launch enters the graph; the others' time is on no path", _R,
          "a launch in the window owns several activities", "idle_time_breakdown() and shares()"),
    Fault("unlinked_path", ("critical_path",),
          "kernels without a launch row are dropped silently", _W, "such activities start in the window",
          "a trace loaded with its CPU events"),
    Fault("annotation_names", ("critical_path",),
          "the annotation is looked for in all names, kernels' too ('decode' is in many), and GPU-side twins count"
          " as further occurrences", _C, "the window is made of CPU-side annotations, in order of time"),
    Fault("missing_waits", ("critical_path",),
          "waits between streams are known only from cuda_sync rows", _W,
          "the trace has none, or has stream waits (whose targets our tables do not carry)",
          "a capture with enable_cuda_sync_events, read by HTA itself"),
    Fault("raw_file", ("get_frequent_cuda_kernel_sequences", "overlay_*", "generate_trace_with_counters"),
          "these read the trace file again", _N, "analysis has no files behind it", "HTA on the file"),
)  # fmt: skip

_BY_KEY = {fault.key: fault for fault in KNOWN_FAULTS}


def treatment(key: str) -> Treatment:
    """What the bridge does about the fault called ``key``."""
    return _BY_KEY[key].treatment


def message(key: str, place: str, detail: str) -> str:
    """One line: where, what HTA would do, the amount, what to use instead.

    Args:
        key: of :data:`KNOWN_FAULTS`.
        place: the trace and rank.
        detail: what was found in this trace.
    """
    fault = _BY_KEY[key]
    remedy = f"; use {fault.instead}" if fault.instead else ""
    return f"{place}: {detail}; HTA: {fault.what} [{key}]{remedy}"
