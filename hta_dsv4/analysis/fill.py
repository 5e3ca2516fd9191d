"""How full each launch could make the GPU: CTAs against what the SMs hold, waves, the tail, and underfilled launches.

* resident: CTAs of this kernel that one SM holds at once (:mod:`hta_dsv4.analysis.occupancy`);
* capacity: resident x SMs. waves: CTAs / capacity. A launch of 2.1 waves runs three, the last one tenth full;
* underfilled: fewer CTAs than SMs, so that some SMs have nothing of it to do, whatever each CTA needs.
* empty: own time (:mod:`hta_dsv4.analysis.own_time`) x the part of the SMs that an underfilled launch leaves without a
  CTA: what a split of its work over all SMs wins at most where each SM gets one CTA, or gets no more done with several.
  A kernel that waits for memory may win more with several per SM. 128 CTAs on 132 SMs leave 3 % empty.

CTAs, resident, capacity and waves follow from the launch and the device. The tail's *time* is modelled: it assumes that
all CTAs of a launch take equally long. Where the trace lacks what a figure needs, the figure is missing and says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hta_dsv4.analysis.occupancy import SmLimits, device_entry, device_limits, resident_ctas
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.profile import apportion
from hta_dsv4.analysis.shares import KEYS, divide_half_even, parse_by
from hta_dsv4.analysis.window import Window
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import TraceMeta

# columns of launch_fill(): one row per kernel launch, index that of the activity table
CTAS = "ctas"  # Int64: grid_x * grid_y * grid_z
SMS = "sms"  # Int64: of the device
THREADS = "threads"  # Int64: per CTA
RESIDENT = "resident"  # Int64: CTAs per SM at once, an upper bound
LIMITED_BY = (
    "limited_by"  # str: what binds resident: warps, registers, shared memory, blocks; + joins several
)
OCCUPANCY = "occupancy"  # Float64: resident warps / warp slots of an SM, as if the grid were endless
CAPACITY = "capacity"  # Int64: resident * sms
WAVES = "waves"  # Float64: ctas / capacity
TAIL = "tail"  # Float64: how full the last wave is, above 0 to 1
UNDERFILLED = "underfilled"  # boolean: ctas < sms
WHY = "why"  # str: what is missing and why; empty where nothing is

# columns of Fill.table, beside one per key
TIME_NS, TIME_NS_PER_STEP = (
    "time_ns",
    "time_ns_per_step",
)  # summed kernel durations; the latter NA without steps
LAUNCHES, LAUNCHES_PER_STEP = "launches", "launches_per_step"
UNDERFILLED_NS, UNDERFILLED_NS_PER_STEP = (
    "underfilled_ns",
    "underfilled_ns_per_step",
)  # of underfilled launches
UNDERFILLED_LAUNCHES = "underfilled_launches"
OWN_NS = "own_ns"  # own time: without waits for the launch ahead in the stream
EMPTY_NS, EMPTY_NS_PER_STEP = "empty_ns", "empty_ns_per_step"  # own time x empty part of the SMs
CTAS_MIN, CTAS_MEDIAN, CTAS_MAX = "ctas_min", "ctas_median", "ctas_max"  # Int64; median weighted by time
RESIDENT_MEDIAN = "resident_median"  # Int64, weighted by time
WAVES_MEDIAN = "waves_median"  # Float64, weighted by time
TAIL_NS, TAIL_NS_PER_STEP = (
    "tail_ns",
    "tail_ns_per_step",
)  # modelled: time x share of the last wave's empty slots
UNKNOWN_LAUNCHES = "unknown_launches"  # launches without CTAs or SMs: neither underfilled nor not

_EMPTY_SM_NS = "empty_sm_ns"  # int: of a launch, own time x SMs without a CTA
_FIXED = 1 << 20  # parts of an ns in which modelled times are added up

_GRID = (col.GRID_X, col.GRID_Y, col.GRID_Z)
_BLOCK = (col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z)


@dataclass(frozen=True)
class Fill:
    """Fill of one variant.

    Attributes:
        label: the variant's name.
        by: what a row is.
        rank: rank that stands for the variant.
        steps: counted steps; 0 where there are none, then totals are of the trace.
        sms: SMs of the devices used, smallest first; empty where the trace does not say.
        kernel_sum_ns: summed kernel durations; the rows add up to it.
        underfilled_ns, underfilled_launches: of them, launches with fewer CTAs than SMs.
        own_ns: own time of the kernels.
        empty_ns: own time of these x the part of the SMs that they leave empty, as time of the whole GPU.
        tail_ns: modelled time that partly empty last waves cost.
        unknown_launches: launches whose CTAs or SMs the trace does not say.
        launches: one row per launch (columns above), with the keys; its empty and tail times are float64, not rounded.
        table: one row per key, most empty time first.
        notes: what is missing and why, what is assumed.
    """

    label: str
    by: tuple[str, ...]
    rank: int
    steps: int
    sms: tuple[int, ...]
    kernel_sum_ns: int
    underfilled_ns: int
    underfilled_launches: int
    own_ns: int
    empty_ns: int
    tail_ns: int
    unknown_launches: int
    launches: pd.DataFrame
    table: pd.DataFrame
    notes: tuple[str, ...] = ()


def launch_fill(activities: pd.DataFrame, meta: TraceMeta) -> pd.DataFrame:
    """CTAs, residency and waves of each kernel launch.

    Args:
        activities: activity table of one trace, or part of it.
        meta: the trace's metadata, for its devices.

    Returns:
        One row per kernel (copies and sets have no CTAs), columns as documented in this module.
    """
    kernels = activities[activities[col.KIND] == col.KERNEL]
    device = kernels[col.DEVICE].to_numpy(dtype=np.int64, na_value=-1)
    parts = [_one_device(kernels[device == d], meta, int(d)) for d in np.unique(device)]
    if not parts:
        return _one_device(kernels, meta, -1)
    return pd.concat(parts).loc[kernels.index] if len(parts) > 1 else parts[0]


def _one_device(kernels: pd.DataFrame, meta: TraceMeta, index: int) -> pd.DataFrame:
    entry = device_entry(meta, index)
    limits, why_no_limits = device_limits(entry)
    sms = entry.num_sms if entry is not None else None
    ctas, threads = _product(kernels, _GRID), _product(kernels, _BLOCK)
    registers, shared = (
        kernels[c].to_numpy(dtype=np.int64, na_value=-1) for c in (col.REGISTERS, col.SHARED_MEM)
    )
    why = np.full(len(kernels), "", dtype=object)
    resident = np.zeros(len(kernels), dtype=np.int64)
    limited, occupancy = np.full(len(kernels), "", dtype=object), np.full(len(kernels), np.nan)
    if limits is None:
        why[:] = why_no_limits
    else:
        # A kernel uses registers: 0 is how some producers write that they do not know.
        known = (threads > 0) & (registers > 0) & (shared >= 0)
        why[~known] = "the trace does not give block, registers and shared memory of the kernel"
        resident[known], limited[known] = _resident(limits, threads[known], registers[known], shared[known])
        too_large = known & (resident == 0)
        why[too_large] = (
            "block, registers or shared memory exceed what deviceProperties allow, so one is not what it says"
        )
        limited[resident == 0] = ""
        fits = resident > 0
        occupancy[fits] = resident[fits] * -(-threads[fits] // 32) / limits.max_warps
    if sms is None:
        why[:] = "the trace does not say how many SMs this GPU has" if entry is not None else why_no_limits
    why[ctas <= 0] = "the trace does not give the grid of the kernel"
    out = pd.DataFrame(index=kernels.index)
    out[CTAS], out[THREADS] = _optional(ctas, ctas > 0), _optional(threads, threads > 0)
    out[SMS] = pd.array([pd.NA if sms is None else sms] * len(kernels), dtype="Int64")
    out[RESIDENT] = _optional(resident, resident > 0)
    out[LIMITED_BY], out[OCCUPANCY] = limited, pd.array(occupancy, dtype="Float64")
    out[OCCUPANCY] = out[OCCUPANCY].mask(resident == 0)
    out[CAPACITY] = out[RESIDENT] * out[SMS]
    out[WAVES] = (out[CTAS] / out[CAPACITY]).astype("Float64")
    last = (out[CTAS] - 1) % out[CAPACITY] + 1
    out[TAIL] = (last / out[CAPACITY]).astype("Float64")
    out[UNDERFILLED] = (out[CTAS] < out[SMS]).astype("boolean")
    out[WHY] = why
    return out


def _resident(
    limits: SmLimits, threads: npt.NDArray[np.int64], registers: npt.NDArray[np.int64],
    shared: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.object_]]:  # fmt: skip
    """CTAs per SM and what limits them; asked once per distinct configuration."""
    configs, back = np.unique(np.stack([threads, registers, shared], axis=1), axis=0, return_inverse=True)
    found = resident_ctas(limits, *configs.T)
    back = back.reshape(-1)
    return found.ctas[back], found.limited_by()[back]


def _product(kernels: pd.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Product of three dimensions; -1 where one is missing or below 1."""
    dims = [kernels[c].to_numpy(dtype=np.int64, na_value=-1) for c in columns]
    known = np.logical_and.reduce([d > 0 for d in dims])
    return np.where(known, dims[0] * dims[1] * dims[2], -1)


def _optional(values: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(np.where(known, values, 0), ~known)


def fill(
    label: str, part: Window, meta: TraceMeta, by: str | Sequence[str] = "kernel", notes: Sequence[str] = ()
) -> Fill:
    """How full the launches of a variant could make the GPU.

    Args:
        label: the variant's name.
        part: the counted steps.
        meta: metadata of the trace.
        by: ``kernel``, ``role``, ``bucket``, ``origin``, or several of them.
        notes: what callers want said beside it.

    Returns:
        The result; without kernels, its table is empty.

    Raises:
        HtaDsv4Error: unknown ``by``.
    """
    keys = parse_by(by)
    launches = launch_fill(part.activities, meta)
    kernels = part.activities.loc[launches.index]
    launches = launches.assign(
        **{k: kernels[KEYS[k]].astype(str) for k in keys}, **{TIME_NS: kernels[col.DUR_NS]}
    )
    tail = launches[TIME_NS] * _empty_tail(launches)
    launches[TAIL_NS] = tail
    under = launches[UNDERFILLED].fillna(False).astype(bool)
    launches[UNDERFILLED_NS] = launches[TIME_NS].where(under, 0)
    launches[OWN_NS] = pd.Series(own_ns(part.activities), index=part.activities.index).loc[launches.index]
    # a copy has no CTAs; a kernel without grid or a GPU without SMs has no empty part that is known
    empty_sms = (launches[SMS] - launches[CTAS]).where(under, 0).fillna(0).astype("int64")
    launches[_EMPTY_SM_NS] = launches[OWN_NS] * empty_sms
    launches[EMPTY_NS] = launches[_EMPTY_SM_NS] / launches[SMS].fillna(1).astype("int64")
    table = _table(launches, keys, part.steps)
    return Fill(
        label=label,
        by=keys,
        rank=part.rank,
        steps=part.steps,
        sms=tuple(sorted({int(s) for s in launches[SMS].dropna().unique()})),
        kernel_sum_ns=int(launches[TIME_NS].sum()),
        underfilled_ns=int(launches[UNDERFILLED_NS].sum()),
        underfilled_launches=int(under.sum()),
        own_ns=int(launches[OWN_NS].sum()),
        empty_ns=int(table[EMPTY_NS].sum()),
        tail_ns=int(table[TAIL_NS].sum()),
        unknown_launches=int(launches[UNDERFILLED].isna().sum()),
        launches=launches.drop(columns=_EMPTY_SM_NS),
        table=table,
        notes=(*_missing(launches), *notes),
    )


def _empty_tail(launches: pd.DataFrame) -> pd.Series[float]:
    """Part of a launch's slots over all its waves that the last wave leaves empty; 0 below one wave or unknown.

    Below one wave there is no tail: that the slots are not all taken is what ``underfilled`` and ``waves`` say.
    """
    waves = launches[WAVES].to_numpy(dtype=float, na_value=0.0)
    whole = np.ceil(waves)
    return pd.Series(np.where(waves > 1, 1 - waves / np.maximum(whole, 1), 0.0), index=launches.index)


def _table(launches: pd.DataFrame, keys: tuple[str, ...], steps: int) -> pd.DataFrame:
    work = launches.assign(
        **{UNDERFILLED_LAUNCHES: launches[UNDERFILLED].fillna(False).astype("int64"),
           UNKNOWN_LAUNCHES: launches[UNDERFILLED].isna().astype("int64")}
    )  # fmt: skip
    grouped = work.groupby(list(keys), sort=False)
    summed = [TIME_NS, OWN_NS, UNDERFILLED_NS, UNDERFILLED_LAUNCHES, UNKNOWN_LAUNCHES]
    table = grouped[summed].sum()
    empty = _empty(work, list(keys), table.index)
    tail = [round(float(ns) * _FIXED) for ns in grouped[TAIL_NS].sum()], _FIXED
    for (parts, of), column, each in (
        (empty, EMPTY_NS, EMPTY_NS_PER_STEP), (tail, TAIL_NS, TAIL_NS_PER_STEP),
    ):  # fmt: skip
        table[column] = _rounded_once(parts, of)
        table[each] = pd.array(
            _rounded_once(parts, of * steps) if steps else [pd.NA] * len(table), dtype="Int64"
        )
    table[LAUNCHES] = grouped.size()
    table[CTAS_MIN], table[CTAS_MAX] = grouped[CTAS].min(), grouped[CTAS].max()
    for column, source in ((CTAS_MEDIAN, CTAS), (RESIDENT_MEDIAN, RESIDENT), (WAVES_MEDIAN, WAVES)):
        table[column] = _median_by_time(work, list(keys), source).reindex(table.index)
    bound = work[work[LIMITED_BY] != ""].groupby([*keys, LIMITED_BY])[TIME_NS].sum()
    most = bound.sort_values(kind="stable").groupby(level=list(range(len(keys)))).tail(1)
    named = most.reset_index(LIMITED_BY)[LIMITED_BY]
    table[LIMITED_BY] = named.reindex(table.index).fillna("")
    for total, per_step in (
        (TIME_NS, TIME_NS_PER_STEP), (UNDERFILLED_NS, UNDERFILLED_NS_PER_STEP),
    ):  # fmt: skip
        values = [divide_half_even(int(v), steps) if steps else pd.NA for v in table[total]]
        table[per_step] = pd.array(values, dtype="Int64")
    table[LAUNCHES_PER_STEP] = (table[LAUNCHES] / steps).astype("Float64") if steps else pd.NA
    table = table.reset_index()
    table = table.sort_values([EMPTY_NS, TIME_NS, *keys], ascending=[False, False] + [True] * len(keys))
    order = [
        *keys, TIME_NS, TIME_NS_PER_STEP, LAUNCHES, LAUNCHES_PER_STEP, UNDERFILLED_NS, UNDERFILLED_NS_PER_STEP,
        UNDERFILLED_LAUNCHES, OWN_NS, EMPTY_NS, EMPTY_NS_PER_STEP, CTAS_MIN, CTAS_MEDIAN, CTAS_MAX, RESIDENT_MEDIAN,
        LIMITED_BY, WAVES_MEDIAN, TAIL_NS, TAIL_NS_PER_STEP, UNKNOWN_LAUNCHES,
    ]  # fmt: skip
    return table[order].reset_index(drop=True)


def _empty(work: pd.DataFrame, keys: list[str], rows: pd.Index[Any]) -> tuple[list[int], int]:
    """Empty time of each row, exactly: whole numbers, and how many of them are an ns."""
    by_size = work[work[_EMPTY_SM_NS] > 0].groupby([*keys, SMS], sort=False)[_EMPTY_SM_NS].sum()
    sizes = [int(s) for s in by_size.index.get_level_values(SMS)]
    every = math.lcm(*set(sizes))
    total = dict.fromkeys(rows, 0)
    for (*key, _), sms, sm_ns in zip(by_size.index, sizes, by_size, strict=True):
        total[key[0] if len(key) == 1 else tuple(key)] += int(sm_ns) * (every // sms)
    return list(total.values()), every


def _rounded_once(numerators: list[int], parts: int) -> list[int]:
    """Whole ns near ``numerators / parts`` that add up to their sum, rounded."""
    return apportion(divide_half_even(sum(numerators), parts), numerators, parts)


def _median_by_time(work: pd.DataFrame, keys: list[str], column: str) -> pd.Series[float]:
    """Per key, the value below or at which half of its time is spent; keys without a value are left out."""
    known = work[work[column].notna()].sort_values([*keys, column], kind="stable")
    grouped = known.groupby(keys, sort=False)[TIME_NS]
    reached = 2 * grouped.cumsum() >= grouped.transform("sum")
    return known[reached].groupby(keys, sort=False)[column].first()


def _missing(launches: pd.DataFrame) -> tuple[str, ...]:
    """Why figures are missing, with how many launches and how much of the time each reason concerns."""
    total = int(launches[TIME_NS].sum())
    gone = launches[launches[WHY] != ""].groupby(WHY)[TIME_NS].agg(["size", "sum"])
    return tuple(
        f"{why}: {int(row['size']):,} of {len(launches):,} launches, {100 * int(row['sum']) / max(total, 1):.1f} % "
        "of the kernel time"
        for why, row in gone.sort_values("sum", ascending=False).iterrows()
    )
