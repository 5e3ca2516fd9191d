"""How far is each kernel from what the hardware permits? Floor, headroom, achieved bandwidth and rate, and the bound.

``floor = max(bytes / bandwidth, operations / rate, a launch that does nothing)``, per launch, of the bytes and
operations that no implementation can avoid; that of a collective is its bytes over the link, or the time of NCCL's
smallest message. ``headroom = time - floor``, of own times: what a launch waited for the one
ahead of it (programmatic dependent launch) is shown beside them and is nobody's headroom. A launch below its floor is
not hidden: its data came from a cache, or the model is wrong there, and the result says how many and how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from hta_dsv4.analysis.costs.cost import MEASURED, MODELLED, UNKNOWN
from hta_dsv4.analysis.costs.step import step_costs
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.devices import Ceilings
from hta_dsv4.analysis.floors import (
    COMPUTE,
    LATENCY,
    LAUNCH,
    LINK,
    MEMORY,
    NOTHING,
    Launches,
    compute_ns,
    launch_floors,
)
from hta_dsv4.analysis.own_time import early_note
from hta_dsv4.analysis.shares import KEYS, divide_half_even
from hta_dsv4.analysis.verdicts import product_verdicts

# Below the floor by less than this is the clock's resolution and the ceiling's own spread, not a finding.
_TOLERANCE = 0.03
COLLECTIVES_NOTE = (
    "floors of collectives take their GPUs to be of one host; what is above them holds waits for other ranks, which "
    "hta-dsv4 ranks takes apart where all ranks are there"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel, role, bucket or origin, per step.

    Attributes:
        key: one value per key of ``by``.
        launches: per step.
        time_ns: own time per step, of all of its launches.
        known_ns: the part of it whose cost is known; everything below is about this part.
        floor_ns: least time of that part; ``None`` without ceilings.
        memory_ns, compute_ns: what bytes alone, and operations alone, would take.
        bytes, flops: per step.
        requested, issued: bytes asked for and operations carried out, repeats and padding included, per step; ``None``
            where no launch says it; ``redundant_bytes, redundant_flops`` are what those same launches need.
        below: launches per step below their floor even as recorded, and ``below_ns`` how far in all.
        early_ns: what its launches waited for those ahead of them, per step; summed durations are ``time_ns`` and this.
        link_ns: what the bytes of its collectives take over the link, per step; ``None`` where none has a message.
        wire_bytes: those bytes, one way, per step; not among ``bytes``.
        bound: which side sets most of the floor: memory, compute, launch, link, latency or unknown.
        known: measured, modelled, unknown, or several with the share of the time.
        arithmetic: of the most operations.
        assumes: distinct assumptions behind it.
        sources: distinct sources, and reasons for what is unknown.
    """

    key: tuple[str, ...]
    launches: float
    time_ns: int
    known_ns: int
    floor_ns: int | None
    memory_ns: float | None
    compute_ns: float | None
    bytes: float
    flops: float
    requested: float | None
    issued: float | None
    redundant_bytes: float
    redundant_flops: float
    below: float
    below_ns: int
    bound: str
    known: str
    arithmetic: str
    assumes: tuple[str, ...]
    sources: tuple[str, ...]
    early_ns: int = 0
    link_ns: float | None = None
    wire_bytes: float = 0.0

    @property
    def headroom_ns(self) -> int | None:
        """Time of the known part minus its floor."""
        return None if self.floor_ns is None else self.known_ns - self.floor_ns

    @property
    def gb_s(self) -> float | None:
        """Achieved bandwidth: unavoidable bytes over the known time, 10^9 bytes/s."""
        return self.bytes / self.known_ns if self.known_ns and self.bytes else None

    @property
    def tflop_s(self) -> float | None:
        """Achieved rate: unavoidable operations over the known time, 10^12 per s."""
        return self.flops / self.known_ns / 1e3 if self.known_ns and self.flops else None

    @property
    def redundancy(self) -> float | None:
        """Bytes asked for over bytes needed, of the launches that say it."""
        return self.requested / self.redundant_bytes if self.requested and self.redundant_bytes else None

    @property
    def waste(self) -> float | None:
        """Operations carried out over operations needed, of the launches that say it."""
        return self.issued / self.redundant_flops if self.issued and self.redundant_flops else None


@dataclass(frozen=True, slots=True)
class Roofline:
    """The speed of light of one variant.

    Attributes:
        label: the variant's name.
        by: what a row is.
        steps: counted steps; 0 where there are none, and then no rows.
        ceilings: of the GPU; ``None`` where it is not known.
        workload: what was decoded.
        total: the whole step.
        model_ns: origin -> the least its part of the model's step takes on this GPU, whatever its kernels are; empty
            where the workload is not known. Only time per origin can be held against it.
        rows: largest headroom first, then what is unknown, longest first.
        verdicts: what the numbers say about single kernels, one sentence each.
        notes: what the reader should know, one sentence each.
    """

    label: str
    by: tuple[str, ...]
    steps: int
    ceilings: Ceilings | None
    workload: Workload
    total: Row | None
    rows: tuple[Row, ...]
    verdicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    model_ns: Mapping[str, float] = field(default_factory=dict)

    @property
    def known_share(self) -> float:
        """Share of the step's time whose floor is known."""
        if self.total is None or self.total.floor_ns is None or not self.total.time_ns:
            return 0.0
        return self.total.known_ns / self.total.time_ns


def roofline(
    label: str,
    part: Counted,
    w: Workload,
    device: Ceilings | None,
    device_name: str | None,
    by: Sequence[str],
) -> Roofline:
    """Floors and headroom by kernel, role, bucket or origin.

    Args:
        label: the variant's name.
        part: the counted activities of one rank, classified.
        w: what was decoded.
        device: the GPU's ceilings; ``None`` where the table does not know it.
        device_name: the GPU as the trace names it.
        by: what a row is.

    Returns:
        The rows, with verdicts; empty, with the reason in its notes, where there is no step.
    """
    by = tuple(by)
    if not part.steps or not len(part.activities):
        return Roofline(
            label, by, 0, device, w, None, (), notes=("no steps: there is no time per step to compare",)
        )
    found = launch_floors(part, w, device)
    acts = part.activities
    columns = [acts[KEYS[k]].astype(str).to_numpy() for k in by]
    code = pd.MultiIndex.from_arrays(columns).factorize()[0]
    first = np.unique(code, return_index=True)[1]
    labelled = [tuple(str(c[i]) for c in columns) for i in first]
    rows = [
        _row(labelled[i], found, np.flatnonzero(code == i), part.steps, device is not None)
        for i in range(len(labelled))
    ]
    rows.sort(key=lambda r: (-(r.headroom_ns or 0), -r.time_ns, r.key))
    total = _row(("step",), found, np.arange(len(acts)), part.steps, device is not None)
    verdicts = product_verdicts(part, found, device) if device is not None else ()
    return Roofline(
        label, by, part.steps, device, w, total, tuple(rows), verdicts,
        (*_notes(found, w, device, device_name), *early_note(acts, part.steps)),
        model_floor(w, device),
    )  # fmt: skip


def model_floor(w: Workload, device: Ceilings | None) -> dict[str, float]:
    """The least time of each part of the model's step, ns; empty without ceilings or workload.

    Args:
        w: what was decoded.
        device: the GPU's ceilings.
    """
    if device is None:
        return {}
    return {
        origin: max(device.memory_ns(c.read, c.written), compute_ns(device, c.flops, c.arithmetic))
        for origin, c in step_costs(w).items()
    }


def _row(key: tuple[str, ...], found: Launches, rows: np.ndarray, steps: int, has_device: bool) -> Row:
    known = found.known[rows]
    told = known != UNKNOWN
    duration, floor, recorded = found.duration[rows], found.floor[rows], found.recorded[rows]

    def per_step(values: np.ndarray) -> int:
        return divide_half_even(round(float(np.nansum(values))), steps)

    def mean(field: str, where: np.ndarray | None = None) -> float:
        values = found.of(field)[rows]
        return float(np.nansum(values if where is None else values[where])) / steps

    below = told & (recorded < floor * (1 - _TOLERANCE)) if has_device else np.zeros(len(rows), dtype=bool)
    asked = ~np.isnan(found.of("requested")[rows])
    carried = ~np.isnan(found.of("issued")[rows])
    costs = [found.costs[i] for i in np.unique(found.code[rows])]
    wire = np.array([c.message.wire or 0.0 if c.message else 0.0 for c in found.costs])[found.code[rows]]
    by_bound = {
        b: float(np.nansum(floor[found.bound[rows] == b])) for b in (MEMORY, COMPUTE, LAUNCH, LINK, LATENCY)
    }
    flops = {
        a: sum(c.flops for c in costs if c.arithmetic == a) for a in {c.arithmetic for c in costs if c.flops}
    }
    return Row(
        key=key,
        launches=len(rows) / steps,
        time_ns=per_step(duration),
        known_ns=per_step(duration[told]),
        floor_ns=per_step(floor[told]) if has_device else None,
        memory_ns=float(np.nansum(found.memory[rows])) / steps if has_device else None,
        compute_ns=float(np.nansum(found.compute[rows])) / steps if has_device else None,
        bytes=mean("moved"),
        flops=mean("flops"),
        requested=mean("requested", asked) if asked.any() else None,
        issued=mean("issued", carried) if carried.any() else None,
        redundant_bytes=mean("moved", asked),
        redundant_flops=mean("flops", carried),
        below=int(below.sum()) / steps,
        below_ns=per_step((floor - recorded)[below]),
        bound=max(by_bound, key=lambda b: by_bound[b]) if has_device and told.any() else NOTHING,
        known=_known(known, duration),
        arithmetic=max(flops, key=lambda a: flops[a]) if flops else "",
        assumes=tuple(sorted({c.assumes for c in costs if c.assumes})),
        sources=tuple(sorted({c.source for c in costs if c.source})),
        early_ns=per_step(recorded.clip(min=0) - duration),
        link_ns=float(found.link[rows].sum()) / steps if wire.any() and has_device else None,
        wire_bytes=float(wire.sum()) / steps,
    )


def _known(known: np.ndarray, duration: np.ndarray) -> str:
    total = float(duration.sum())
    parts = {
        k: float(duration[known == k].sum()) for k in (MEASURED, MODELLED, UNKNOWN) if (known == k).any()
    }
    if len(parts) == 1 or not total:
        return next(iter(parts), UNKNOWN)
    said = {k: ns for k, ns in parts.items() if round(100 * ns / total)} or parts
    if len(said) == 1:
        return next(iter(said))
    return ", ".join(f"{100 * ns / total:.0f} % {k}" for k, ns in said.items())


def _notes(found: Launches, w: Workload, device: Ceilings | None, name: str | None) -> tuple[str, ...]:
    notes = list(w.sources) or ["the workload is not known: no manifest beside the trace and nothing given"]
    if device is None:
        said = f"the GPU {name!r} is not in the device table" if name else "the trace does not name its GPU"
        return (*notes, f"{said}: no ceilings, so no floors; say which it is with --device")
    notes += device.sentences()
    if not device.launch_ns:
        notes.append(
            f"the launch floor, {found.launch_ns:.0f} ns, is the shortest activity of this trace: none was measured "
            f"for {device.name}"
        )
    if (found.link > 0).any():
        assert device.link is not None
        notes += device.link.sentences()
        notes.append(COLLECTIVES_NOTE)
    below = (found.recorded < found.floor * (1 - _TOLERANCE)) & ~np.isnan(found.floor)
    if below.any():
        moved = found.of("moved")[below]
        # Up to twice the cache: one operand may still lie there from the launch before.
        cached = moved <= 2 * device.l2_bytes if device.l2_bytes else np.zeros(len(moved), dtype=bool)
        share = 100 * found.duration[below].sum() / max(float(found.duration.sum()), 1.0)
        notes.append(
            f"{int(below.sum()):,} launches, {share:.1f} % of the time, are below their floor: {int(cached.sum()):,} "
            f"move at most twice the L2 cache, and part of that need not come from DRAM"
            + (f"; for the other {int((~cached).sum()):,} the model is wrong" if (~cached).any() else "")
        )
    return tuple(notes)
