"""How much of the GPU has work, over time: SMs covered, empty SM-time and who owns it.

A sweep over the timeline of each device. At any time ``min(sum over running kernels of min(CTAs, SMs), SMs)`` SMs are
taken to be covered. That is an *upper bound* of the SMs at work: a kernel is taken to cover its SMs from its first to
its last nanosecond although its CTAs end at different times, and kernels that run together are taken to sit on
different SMs. A GPU that is never idle can still be mostly empty, which idle time does not show and this does.

* wall: of the steps, each from its first start to its last end; what lies between two steps is in no figure.
* capacity: SMs x wall; covered + empty = capacity, exactly, in SM-nanoseconds.
* Empty SM-time while kernels or copies run belongs to them in equal parts; while nothing runs, to ``(idle)``.
* Copies and sets cover no SM: the copy engines do most of them, and a trace does not say which run on SMs.
* A kernel without a grid in the trace is taken to cover every SM, which keeps the bound; its time is said.
* packed: covered / SMs, the shortest time that the same launches, each as long as it was and no two on one SM, could
  take. wall / packed is the packing ceiling: what overlap alone, without making any kernel faster, could win at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.fill import CTAS, SMS, launch_fill
from hta_dsv4.analysis.shares import KEYS, divide_half_even, parse_by
from hta_dsv4.analysis.window import Span, Window
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import TraceMeta

Ints = npt.NDArray[np.int64]

IDLE = "(idle)"
BANDS = ("idle", "copies only", "up to 1/4", "up to 1/2", "below all", "all")

# columns of Coverage.table, beside one per key
EMPTY_SM_NS = "empty_sm_ns"  # int64: empty SM-time it owns, SM-nanoseconds
EMPTY_NS_PER_STEP = "empty_ns_per_step"  # Int64: the same as time of a wholly empty GPU, per step
EMPTY_SHARE = "empty_share"  # float: of all empty SM-time
BUSY_SHARE = "busy_share"  # Float64: of the empty SM-time while something runs; NA for (idle)
TIME_NS = "time_ns"  # int64: summed durations; 0 for (idle)
MEAN_SMS = "mean_sms"  # Float64: min(CTAs, SMs), mean over its time; NA for (idle) and for copies alone


@dataclass(frozen=True)
class Coverage:
    """Coverage of one variant; times over all its counted steps, ns.

    Attributes:
        label: the variant's name.
        by: what a row of the table is.
        rank: rank that stands for the variant.
        steps: counted steps; 0 where there are none, then figures are of the whole trace.
        sms: SMs of each device used, by device number.
        wall_ns, busy_ns: of each device, added; a step's wall is its own first start to its own last end, and busy the
            time with any activity.
        capacity_sm_ns, covered_sm_ns: SMs x wall; SM-time covered (upper bound).
        bands: band of SMs covered -> time spent in it, one per :data:`BANDS`; they add up to the wall. ``up to 1/4`` is
            above 0 and up to a quarter of the SMs.
        unknown_ns: summed durations of kernels whose grid the trace does not say.
        table: one row per key and one for idle time, most empty SM-time first.
        notes: what makes the figures weaker than they look.
        between_ns, between_count: from a step's last end to the next one's first start, added; how many such gaps. In
            no other figure.
    """

    label: str
    by: tuple[str, ...]
    rank: int
    steps: int
    sms: tuple[int, ...]
    wall_ns: int
    busy_ns: int
    capacity_sm_ns: int
    covered_sm_ns: int
    bands: dict[str, int]
    unknown_ns: int
    table: pd.DataFrame
    notes: tuple[str, ...] = ()
    between_ns: int = 0
    between_count: int = 0

    @property
    def empty_sm_ns(self) -> int:
        """SM-time without work: capacity minus covered."""
        return self.capacity_sm_ns - self.covered_sm_ns

    @property
    def mean(self) -> float:
        """Mean share of the SMs covered over the wall, 0 to 1, an upper bound."""
        return self.covered_sm_ns / self.capacity_sm_ns if self.capacity_sm_ns else 0.0

    @property
    def mean_while_busy(self) -> float:
        """The same over the time with any activity."""
        busy = self.capacity_sm_ns * self.busy_ns / self.wall_ns if self.wall_ns else 0.0
        return self.covered_sm_ns / busy if busy else 0.0

    @property
    def packing_ceiling(self) -> float | None:
        """Wall / packed: the most that overlap alone could win; ``None`` where nothing covers an SM."""
        return self.capacity_sm_ns / self.covered_sm_ns if self.covered_sm_ns else None


@dataclass(frozen=True, slots=True)
class Sweep:
    """One device over one run, cut wherever an activity begins or ends.

    Attributes:
        span: what was swept.
        sms: SMs of the device.
        times: int64 [m + 1], ns: the cuts, increasing.
        running: int64 [m], activities running in each piece.
        covered: int64 [m], SMs covered in each piece.
        empty: int64 [span], empty SM-time each activity owns.
    """

    span: Span
    sms: int
    times: Ints
    running: Ints
    covered: Ints
    empty: Ints


def sweep(span: Span, touched: Ints, sms: int) -> Sweep:
    """Sweep one device over one run.

    Args:
        span: its activities.
        touched: int64 [span], SMs that each covers; 0 for copies.
        sms: SMs of the device.

    Returns:
        The pieces and who owns the empty SM-time; exact integers.
    """
    times = np.unique(np.concatenate([span.start, span.end]))
    first, last = np.searchsorted(times, span.start), np.searchsorted(times, span.end)
    change, demand = np.zeros((2, len(times)), dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last, -1)
    np.add.at(demand, first, touched)
    np.add.at(demand, last, -touched)
    running, covered = change.cumsum()[:-1], np.minimum(demand.cumsum()[:-1], sms)
    free = np.where(running > 0, (sms - covered) * np.diff(times), 0)
    each, rest = free // np.maximum(running, 1), free % np.maximum(running, 1)
    total = np.concatenate([[0], each.cumsum()])
    empty = total[last] - total[first]
    # What does not divide goes to the activity that reaches furthest: of those begun, it is surely running.
    reach = np.maximum.accumulate(span.end)
    furthest = np.maximum.accumulate(np.where(span.end == reach, np.arange(len(reach)), 0))
    begun = np.searchsorted(span.start, times[:-1], side="right")
    np.add.at(empty, furthest[begun - 1], rest)
    return Sweep(span, sms, times, running, covered, empty)


@dataclass(frozen=True, slots=True)
class Swept:
    """All devices and runs of a window, swept.

    Attributes:
        sweeps: one per run and device that ran kernels.
        touched: int64 [activities], SMs that each activity covers: 0 for copies, all where its grid is unknown.
        unknown: bool [activities], kernels whose grid is unknown.
    """

    sweeps: tuple[Sweep, ...]
    touched: Ints
    unknown: npt.NDArray[np.bool_]


def sweeps(part: Window, meta: TraceMeta, where: str = "the trace") -> Swept:
    """Sweep every device and run of a window; what a figure or a counter track over time is drawn from.

    Args:
        part: the counted steps.
        meta: metadata of the trace.
        where: what a message calls the trace.

    Returns:
        The sweeps.

    Raises:
        HtaDsv4Error: the trace does not say how many SMs a device has.
    """
    found = launch_fill(part.activities, meta)
    n, kernels = len(part.activities), found.index.to_numpy()
    sms_of, touched = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    unknown, is_kernel = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    sms = found[SMS].to_numpy(dtype=np.int64, na_value=0)
    sms_of[kernels], is_kernel[kernels] = sms, True
    unknown[kernels] = found[CTAS].isna().to_numpy()
    touched[kernels] = np.minimum(found[CTAS].to_numpy(dtype=np.int64, na_value=np.iinfo(np.int64).max), sms)
    out = []
    for span in part.spans():
        if not is_kernel[span.rows].any():
            continue  # copies alone: no SM of this device was asked for anything
        count = int(sms_of[span.rows].max())
        if not count:
            raise HtaDsv4Error(
                f"{where}: coverage needs the number of SMs, and the trace's deviceProperties do not say it; record "
                "with torch.profiler, which writes numSms"
            )
        out.append(sweep(span, touched[span.rows], count))
    return Swept(tuple(out), touched, unknown)


def coverage(
    label: str, part: Window, meta: TraceMeta, by: str | Sequence[str] = ("bucket", "origin"),
    notes: Sequence[str] = (), where: str | None = None,
) -> Coverage:  # fmt: skip
    """How much of the GPU has work over time, and who leaves it empty.

    Args:
        label: the variant's name.
        part: the counted steps.
        meta: metadata of the trace.
        by: what a row of the table is.
        notes: what callers want said beside it.
        where: what a message calls the trace; by default the label.

    Returns:
        The result.

    Raises:
        HtaDsv4Error: unknown ``by``; no kernel; the number of SMs is unknown.
    """
    keys = parse_by(by)
    where = where or label
    swept = sweeps(part, meta, where)
    if not swept.sweeps:
        raise HtaDsv4Error(f"{where}: no kernel in the trace, so there is no SM to cover")
    bands = dict.fromkeys(BANDS, 0)
    empty = np.zeros(len(part.activities), dtype=np.int64)
    capacity = covered = wall = busy = between_ns = between_count = 0
    for s in swept.sweeps:
        between = _between(part, s)
        dt = np.where(between, 0, np.diff(s.times))
        between_ns, between_count = (
            between_ns + s.span.wall_ns - int(dt.sum()),
            between_count + int(between.sum()),
        )
        empty[s.span.rows] = s.empty
        wall, capacity = wall + int(dt.sum()), capacity + s.sms * int(dt.sum())
        covered += int((s.covered * dt).sum())
        busy += int(dt[s.running > 0].sum())
        for band, mask in zip(BANDS, _bands(s), strict=True):
            bands[band] += int(dt[mask].sum())
    unknown = int(part.activities[col.DUR_NS].to_numpy()[swept.unknown].sum())
    said = ["SMs covered are an upper bound: CTAs that end early and kernels that share an SM are not seen"]
    if unknown:
        kernel_ns = int(part.activities.loc[part.activities[col.KIND] == col.KERNEL, col.DUR_NS].sum())
        weak = ", so the bound says little" if unknown > kernel_ns / 5 else ""
        said.append(
            f"{unknown / 1e3:,.3f} us of kernels, {100 * unknown / kernel_ns:.1f} % of the kernel time, have no grid "
            f"in the trace and count as covering every SM{weak}"
        )
    devices = {s.span.device: s.sms for s in swept.sweeps}
    if left_out := len({s.device for s in part.spans()} - set(devices)):
        said.append(f"{left_out} device(s) that only copy are left out")
    table = _owners(part, keys, empty, swept.touched, capacity - covered)
    steps = max(part.steps, 1)
    whole = [divide_half_even(int(e) * wall, max(capacity * steps, 1)) for e in table[EMPTY_SM_NS]]
    table[EMPTY_NS_PER_STEP] = pd.array(whole, dtype="Int64")
    return Coverage(
        label=label, by=keys, rank=part.rank, steps=part.steps, sms=tuple(devices[d] for d in sorted(devices)),
        wall_ns=wall, busy_ns=busy, capacity_sm_ns=capacity, covered_sm_ns=covered, bands=bands, unknown_ns=unknown,
        table=table, notes=(*said, *notes), between_ns=between_ns, between_count=between_count,
    )  # fmt: skip


def _between(part: Window, s: Sweep) -> npt.NDArray[np.bool_]:
    """Which pieces of a sweep lie between two steps."""
    begun = np.searchsorted(s.span.start, s.times[:-1], side="right")
    idle = np.flatnonzero((s.running == 0) & (begun < len(s.span.start)))
    out = np.zeros(len(s.running), dtype=bool)
    out[idle] = part.between_steps(s.span, begun[idle])
    return out


def _bands(s: Sweep) -> list[npt.NDArray[np.bool_]]:
    """Which pieces lie in each band; every piece in exactly one."""
    n, busy = s.covered, s.running > 0
    low, half, full = 4 * n <= s.sms, 2 * n <= s.sms, n == s.sms
    some = busy & (n > 0)
    return [
        ~busy, busy & (n == 0), some & low & ~full, some & ~low & half & ~full, some & ~half & ~full, some & full
    ]  # fmt: skip


def _owners(part: Window, keys: tuple[str, ...], empty: Ints, touched: Ints, total: int) -> pd.DataFrame:
    """Empty SM-time by key, and the rest of the total as idle time's."""
    dur = part.activities[col.DUR_NS].to_numpy().clip(min=0)
    kernels = (part.activities[col.KIND] == col.KERNEL).to_numpy()
    work = pd.DataFrame({k: part.activities[KEYS[k]].astype(str).to_numpy() for k in keys})
    work[EMPTY_SM_NS], work[TIME_NS] = empty, dur
    work["sm_time"], work["kernel_time"] = touched * dur, np.where(kernels, dur, 0)
    table = work.groupby(list(keys), sort=False).sum().reset_index()
    while_busy = int(empty.sum())
    table[MEAN_SMS] = (table["sm_time"] / table["kernel_time"].where(table["kernel_time"] > 0)).astype(
        "Float64"
    )
    table[BUSY_SHARE] = (table[EMPTY_SM_NS] / max(while_busy, 1)).astype("Float64")
    idle = {keys[0]: [IDLE], **{k: [""] for k in keys[1:]}, EMPTY_SM_NS: [total - while_busy], TIME_NS: [0]}
    table = pd.concat([table, pd.DataFrame(idle)], ignore_index=True)
    table[EMPTY_SHARE] = table[EMPTY_SM_NS] / max(total, 1)
    table = table.sort_values([EMPTY_SM_NS, *keys], ascending=[False] + [True] * len(keys), kind="stable")
    return table[[*keys, EMPTY_SM_NS, EMPTY_SHARE, BUSY_SHARE, TIME_NS, MEAN_SMS]].reset_index(drop=True)
