"""The least time of every launch: by its bytes, its operations, or by being a launch at all.

Times held against floors are own times (:mod:`own_time`): a launch that waited for the one ahead of it was not slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.costs.assign import launch_costs
from hta_dsv4.analysis.costs.cost import UNKNOWN, Cost
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.devices import Ceilings
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.trace import activities as col

MEMORY, COMPUTE, LAUNCH, NOTHING = "memory", "compute", "launch", "unknown"
_SLOWER = {"fp4": "fp8", "fp8": "bf16", "tf32": "fp32", "bf16": "fp32"}


@dataclass(frozen=True)
class Launches:
    """Floors of single launches; float64 [activities], NaN where unknown.

    Attributes:
        costs: the distinct costs; ``code`` [activities] int64 is each activity's place among them.
        duration: ns, own time: what a launch adds to its stream, without a wait for the launch ahead of it.
        recorded: ns, as recorded, with that wait; ``recorded - duration`` is early time.
        memory, compute, floor: ns.
        bound: object [activities]: memory, compute, launch or unknown.
        launch_ns: what a launch that does nothing takes.
    """

    costs: list[Cost]
    code: np.ndarray
    duration: np.ndarray
    recorded: np.ndarray
    memory: np.ndarray
    compute: np.ndarray
    floor: np.ndarray
    bound: np.ndarray
    launch_ns: float

    def of(self, field: str) -> np.ndarray:
        """A number of each activity's cost, float64; NaN where the cost is unknown or does not say it."""
        values = [getattr(c, field) for c in self.costs]
        known = [c.known != UNKNOWN for c in self.costs]
        flat = np.array(
            [np.nan if v is None or not k else float(v) for v, k in zip(values, known, strict=True)]
        )
        out: np.ndarray = flat[self.code]
        return out

    @property
    def known(self) -> np.ndarray:
        """Object [activities]: measured, modelled or unknown."""
        out: np.ndarray = np.array([c.known for c in self.costs], dtype=object)[self.code]
        return out


def launch_floors(part: Counted, w: Workload, device: Ceilings | None) -> Launches:
    """The floor of every launch of the counted steps.

    Args:
        part: classified activities.
        w: what was decoded.
        device: the GPU's ceilings.
    """
    costs, code = launch_costs(part, w)
    recorded = part.activities[col.DUR_NS].to_numpy().astype(np.float64)
    duration = own_ns(part.activities).astype(np.float64)
    # A do-nothing kernel was timed start to start, which holds a gap besides: the trace may show shorter ones.
    launch_ns = _shortest(recorded)
    if device is not None and device.launch_ns:
        launch_ns = min(launch_ns, float(device.launch_ns))
    memory, compute, floor = (np.full(len(costs), np.nan) for _ in range(3))
    bound = np.full(len(costs), NOTHING, dtype=object)
    for i, c in enumerate(costs):
        if c.known == UNKNOWN or device is None:
            continue
        memory[i] = device.memory_ns(c.read, c.written)
        compute[i] = compute_ns(device, c.flops, c.arithmetic)
        sides = {LAUNCH: launch_ns, MEMORY: memory[i], COMPUTE: compute[i]}
        bound[i] = max(sides, key=lambda s: sides[s])
        floor[i] = sides[bound[i]]
    return Launches(
        costs, code, duration, recorded, memory[code], compute[code], floor[code], bound[code], launch_ns
    )  # fmt: skip


def compute_ns(device: Ceilings, flops: float, arithmetic: str) -> float:
    """Least time for operations, at the next wider arithmetic where the GPU lacks this one; 0 where none is known."""
    kind: str | None = arithmetic
    while kind is not None:
        found = device.compute_ns(flops, kind)
        if found is not None:
            return found
        kind = _SLOWER.get(kind)
    return 0.0


def _shortest(duration: np.ndarray) -> float:
    positive = duration[duration > 0]
    return float(positive.min()) if len(positive) else 0.0
