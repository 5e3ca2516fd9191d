"""HTA's analyses on our frames: what can be set right is, the rest is warned about or refused.

Analyses run on integer nanoseconds and their results are converted, so nothing HTA truncates or compares is
lost; :data:`~hta_dsv4.trace.hta_faults.KNOWN_FAULTS` says what is done about each fault.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from hta_dsv4.errors import HtaDsv4Error

from . import hta_checks as checks
from .hta_faults import HtaFaultError, HtaFaultWarning, Treatment, message, treatment
from .hta_frame import CPU_STREAM, in_microseconds
from .hta_objects import hta_analysis, hta_trace, quiet

_STEP = re.compile(r"ProfilerStep#\d+$")


def _scaled(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Nanoseconds to microseconds in the named columns."""
    return frame.assign(**{name: frame[name] / 1000.0 for name in columns})


@dataclass(frozen=True)
class HtaView:
    """Traces of one run, seen by HTA.

    Attributes:
        label: what messages call it: the file, or the files' folder.
        frames: rank -> HTA's event frame, times in int64 ns (:func:`~.hta_frame.build_frame`).
        symbols: string -> id, for ``name`` and ``cat`` of every frame.
        meta: rank -> top-level metadata as HTA keeps it.
    """

    label: str
    frames: dict[int, pd.DataFrame] = field(repr=False)
    symbols: dict[str, int] = field(repr=False)
    meta: dict[int, dict[str, Any]] = field(repr=False)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(sorted(self.frames))

    @cached_property
    def trace(self) -> Any:
        """``hta.common.trace.Trace``: float64 microseconds since the earliest event; unchecked."""
        with quiet():
            frames = {rank: in_microseconds(frame) for rank, frame in self.frames.items()}
            return hta_trace(frames, self.symbols, self.meta)

    @cached_property
    def analysis(self) -> Any:
        """``hta.trace_analysis.TraceAnalysis`` on :attr:`trace`; unchecked, and without files to read again."""
        return hta_analysis(self.trace)

    def temporal_breakdown(self) -> pd.DataFrame:
        """Idle, compute and other busy time of each rank, HTA's ``get_temporal_breakdown``.

        Returns:
            One row a rank: ``rank``, ``idle_time(us)``, ``compute_time(us)``, ``non_compute_time(us)``,
            ``kernel_time(us)`` (first start to last end) and three percentages rounded to 2 decimals.

        Raises:
            HtaFaultError: a rank without GPU activity, or with several devices.
        """
        for rank in self.ranks:
            self._check(rank, checks.no_gpu, checks.devices_merged, checks.kernel_types)
        with quiet():
            result = self._analysis(self.frames).get_temporal_breakdown(visualize=False)
        return _scaled(result, [c for c in result.columns if c.endswith("(us)")])

    def idle_time_breakdown(
        self, rank: int | None = None, *, consecutive_kernel_delay_us: float = 30.0
    ) -> pd.DataFrame:
        """Idle time of each stream by cause, HTA's ``get_idle_time_breakdown``.

        Args:
            rank: which rank; may be left out when there is one.
            consecutive_kernel_delay_us: a gap shorter than this, whose launch was early enough, is
                ``kernel_wait``; a longer one is ``other``.

        Returns:
            ``rank, stream, idle_category`` (host_wait | kernel_wait | other), ``idle_time`` (us),
            ``idle_time_ratio`` (rounded to 2 decimals).
        """
        rank = self._rank(rank)
        self._check(rank, checks.no_gpu, checks.devices_merged)
        frame = checks.without_overlap(self.frames[rank])
        with quiet():
            result, _ = self._analysis({rank: frame}).get_idle_time_breakdown(
                ranks=[rank],
                consecutive_kernel_delay=consecutive_kernel_delay_us * 1000,
                visualize=False,
            )
        return _scaled(result, ["idle_time"])

    def kernel_breakdown(self, *, include_memory: bool = True) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Time by kernel type and by kernel, HTA's ``get_gpu_kernel_breakdown``, every kernel kept.

        Args:
            include_memory: also copies and sets.

        Returns:
            Types: ``rank, kernel_type, sum`` (us; union of the type's intervals, overlap of types apart),
            ``percentage`` of that rank, rounded to 1 decimal. Kernels: ``name``, ``sum (us)``, ``max (us)``,
            ``min (us)``, ``stddev`` (us), ``mean (us)``, ``kernel_type``, ``rank``.
        """
        types, kernels = [], []
        for rank in self.ranks:
            self._check(rank, checks.no_gpu, checks.kernel_types)
            frame = self.frames[rank]
            with quiet():
                by_type, by_kernel = self._analysis({rank: frame}).get_gpu_kernel_breakdown(
                    visualize=False,
                    duration_ratio=1.0,
                    num_kernels=frame.loc[frame["stream"].ne(CPU_STREAM), "name"].nunique(),
                    include_memory_kernels=include_memory,
                )
            by_type.insert(0, "rank", rank)
            types.append(_scaled(by_type, ["sum"]))
            kernels.append(_scaled(by_kernel, ["sum (us)", "max (us)", "min (us)", "mean (us)", "stddev"]))
        return pd.concat(types, ignore_index=True), pd.concat(kernels, ignore_index=True)

    def launch_statistics(self, rank: int | None = None) -> pd.DataFrame:
        """Launch call, GPU time and delay between them, HTA's ``get_cuda_kernel_launch_stats``.

        Launches that own several activities (CUDA graphs) are left out with a warning.

        Returns:
            One row a launch: ``correlation, cpu_duration, gpu_duration, launch_delay`` (us; never below 0).
        """
        rank = self._rank(rank)
        self._check(rank, checks.no_gpu, checks.graph_launches)
        frame = self._known_launches(rank, checks.STATISTICS_LAUNCHES, graphs=False)
        with quiet():
            found = self._analysis({rank: frame}).get_cuda_kernel_launch_stats(ranks=[rank], visualize=False)
        result = _scaled(found[rank], ["cpu_duration", "gpu_duration", "launch_delay"])
        launches = self.frames[rank]["correlation"].reindex(result["correlation"])
        return result.assign(correlation=launches.to_numpy())

    def queue_length(self, rank: int | None = None) -> pd.DataFrame | None:
        """Statistics of the number of outstanding operations, HTA's ``get_queue_length_summary``.

        Returns:
            One row a stream, HTA's ``describe()`` columns; ``None`` when no activity has a launch.
        """
        rank = self._rank(rank)
        self._check(rank, checks.no_gpu, checks.devices_merged)
        frame = self._known_launches(rank, checks.QUEUE_LAUNCHES, graphs=True)
        with quiet():
            result: pd.DataFrame | None = self._analysis({rank: frame}).get_queue_length_summary(ranks=[rank])
        return result

    def memory_bandwidth(self, rank: int | None = None) -> pd.DataFrame | None:
        """Statistics of copy and set bandwidth, HTA's ``get_memory_bw_summary``.

        Returns:
            One row a kind of copy, HTA's ``describe()`` columns in GB/s; ``None`` when nothing was copied.
        """
        rank = self._rank(rank)
        self._check(rank, checks.no_gpu)
        with quiet():
            result: pd.DataFrame | None = self._analysis({rank: self.frames[rank]}).get_memory_bw_summary(
                ranks=[rank]
            )
        return result

    def critical_path(
        self, annotation: str = "ProfilerStep", instance: int | tuple[int, int] = 0, rank: int | None = None
    ) -> Any:
        """The critical path through one annotated window, HTA's ``critical_path_analysis``.

        Args:
            annotation: part of an annotation's name; ``""`` is the whole trace.
            instance: which occurrence of it on the CPU, counted from 0, or the first and the last.
            rank: which rank; may be left out when there is one.

        Returns:
            HTA's ``CPGraph`` (times in us).

        Raises:
            HtaFaultError: the window has CUDA-graph launches or kernels without a launch, or HTA gives up.
        """
        rank = self._rank(rank)
        self._check(rank, checks.no_gpu, checks.devices_merged, checks.missing_waits)
        frame = self.frames[rank]
        chosen = checks.annotated(frame, self.symbols, annotation, instance) if annotation else frame
        if chosen.empty:
            raise HtaDsv4Error(
                f"{self.label}, rank {rank}: no annotation has {annotation!r} in its name, or it has no occurrence"
                f" {instance}; see the trace's user_annotation events"
            )
        inside = checks.started_within(frame, int(chosen["ts"].min()), int(chosen["end"].max()))
        for key, detail in (*checks.graph_path(inside), *checks.unlinked_path(inside)):
            self._apply(rank, key, detail)
        frame = in_microseconds(frame)
        sync = frame["cat"].eq(self.symbols.get("cuda_sync", -1))
        frame["stream"] = frame["stream"].mask(sync, frame["event_stream"])
        frame = checks.with_known_launches(frame, self.symbols, checks.QUEUE_LAUNCHES, graphs=False)
        name, number = annotation, instance
        if annotation:
            frame.loc[chosen.index, "name"] = self.symbols[checks.WINDOW]
            name, number = checks.WINDOW, (0, len(chosen) - 1)
        with quiet():
            found = self._analysis({rank: frame}).critical_path_analysis(
                rank=rank, annotation=name, instance_id=number
            )
        if found is None or not found[1]:
            raise HtaFaultError(
                f"{self.label}, rank {rank}: HTA finds no valid critical path in {annotation!r}"
            )
        return found[0]

    def diff(
        self,
        test: HtaView,
        *,
        device: Literal["gpu", "cpu", "all"] = "gpu",
        steps: tuple[Sequence[int], Sequence[int]] | None = None,
        ranks: tuple[int | None, int | None] = (None, None),
    ) -> pd.DataFrame:
        """Counts and time by name against another run, HTA's ``TraceDiff.compare_traces``.

        Args:
            test: the other run; this one is the control.
            device: which rows to compare.
            steps: ProfilerStep numbers of control and test; all of each when left out.
            ranks: rank of control and test; may be left out where there is one.

        Returns:
            Indexed by name: ``control_counts, control_total_duration`` (us), the same with ``test_``,
            ``diff_counts, diff_duration`` (us), ``counts_change_categories`` (+ | - | =).
        """
        from hta.trace_diff import DeviceType, LabeledTrace, TraceDiff

        sides, numbers, places = [], [], []
        for side, (view, rank) in enumerate(zip((self, test), ranks, strict=True)):
            rank = view._rank(rank)
            frame = view.frames[rank]
            wanted = list(steps[side]) if steps else view._steps(rank)
            for key, detail in checks.diff_faults(frame, view.symbols, wanted, device):
                view._apply(rank, key, detail)
            # HTA reads a number out of every symbol that starts so; ids must stay, so others get another name.
            table = [
                n if not n.startswith("ProfilerStep") or _STEP.match(n) else f"_{n}" for n in view.symbols
            ]
            with quiet():
                trace = hta_trace({rank: frame}, table, {rank: view.meta[rank]})
                sides.append(LabeledTrace(label=("control", "test")[side], t=trace))
            numbers.append(wanted)
            places.append(rank)
        if len(numbers[0]) != len(numbers[1]):
            self._apply(
                places[0],
                "raw_step_sums",
                f"{len(numbers[0])} steps against {len(numbers[1])} in {test.label}",
            )
        with quiet():
            result = TraceDiff.compare_traces(
                *sides, *places, *numbers, device_type=DeviceType[device.upper()], use_short_name=False
            )
        return _scaled(result, [c for c in result.columns if c.endswith("duration")])

    def _steps(self, rank: int) -> list[int]:
        return sorted(int(n) for n in self.frames[rank]["iteration"].unique() if n >= 0)

    def _rank(self, rank: int | None) -> int:
        if rank is None and len(self.ranks) == 1:
            return self.ranks[0]
        if rank not in self.frames:
            raise HtaDsv4Error(f"{self.label}: name one of the ranks {', '.join(map(str, self.ranks))}")
        return rank

    def _check(self, rank: int, *found: checks.Check) -> None:
        for check in found:
            for key, detail in check(self.frames[rank], self.symbols):
                self._apply(rank, key, detail, depth=4)

    def _apply(self, rank: int, key: str, detail: str, depth: int = 3) -> None:
        """Refuses or warns, as the table of faults says; ``depth`` frames up is who called the view."""
        text = message(key, f"{self.label}, rank {rank}", detail)
        if treatment(key) is Treatment.REFUSED:
            raise HtaFaultError(text)
        warnings.warn(text, HtaFaultWarning, stacklevel=depth)

    def _known_launches(self, rank: int, known: tuple[str, ...], *, graphs: bool) -> pd.DataFrame:
        frame = checks.with_known_launches(self.frames[rank], self.symbols, known, graphs=graphs)
        return checks.by_launch(frame)

    def _analysis(self, frames: dict[int, pd.DataFrame]) -> Any:
        return hta_analysis(hta_trace(frames, self.symbols, {rank: self.meta[rank] for rank in frames}))
