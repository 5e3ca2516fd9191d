"""The least time of every launch: by its bytes, its operations, or by being a launch at all.

That of a collective is by the bytes that must cross a link, or what NCCL takes for the smallest message on it.

Times held against floors are own times (:mod:`own_time`): a launch that waited for the one ahead of it was not slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.costs.assign import launch_costs
from hta_dsv4.analysis.costs.cost import UNKNOWN, Cost, unknown
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.devices import Ceilings
from hta_dsv4.analysis.links import Link
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.analysis.wire import Message
from hta_dsv4.trace import activities as col

MEMORY, COMPUTE, LAUNCH, NOTHING = "memory", "compute", "launch", "unknown"
LINK, LATENCY = "link", "latency"
"""What bounds a collective: its bytes over the link, or the smallest message's time."""
_SLOWER = {"fp4": "fp8", "fp8": "bf16", "tf32": "fp32", "bf16": "fp32"}


@dataclass(frozen=True)
class Launches:
    """Floors of single launches; float64 [activities], NaN where unknown.

    Attributes:
        costs: the distinct costs; ``code`` [activities] int64 is each activity's place among them.
        duration: ns, own time: what a launch adds to its stream, without a wait for the launch ahead of it.
        recorded: ns, as recorded, with that wait; ``recorded - duration`` is early time.
        memory, compute, link, latency, floor: ns; link and latency are of collectives, 0 for everything else.
        bound: object [activities]: memory, compute, launch, link, latency or unknown.
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
    link: np.ndarray
    latency: np.ndarray

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
    costs = [_over_link(c, device) for c in costs]
    recorded = part.activities[col.DUR_NS].to_numpy().astype(np.float64)
    duration = own_ns(part.activities).astype(np.float64)
    # A do-nothing kernel was timed start to start, which holds a gap besides: the trace may show shorter ones.
    launch_ns = _shortest(recorded)
    if device is not None and device.launch_ns:
        launch_ns = min(launch_ns, float(device.launch_ns))
    memory, compute, floor = (np.full(len(costs), np.nan) for _ in range(3))
    link, latency = np.zeros(len(costs)), np.zeros(len(costs))
    bound = np.full(len(costs), NOTHING, dtype=object)
    for i, c in enumerate(costs):
        if c.known == UNKNOWN or device is None:
            continue
        memory[i] = device.memory_ns(c.read, c.written)
        compute[i] = compute_ns(device, c.flops, c.arithmetic)
        over = link_sides(c.message, device.link)
        link[i], latency[i] = over.get(LINK, 0.0), over.get(LATENCY, 0.0)
        sides = {LAUNCH: launch_ns, MEMORY: memory[i], COMPUTE: compute[i], **over}
        bound[i] = max(sides, key=lambda s: sides[s])
        floor[i] = sides[bound[i]]
    return Launches(
        costs, code, duration, recorded, memory[code], compute[code], floor[code], bound[code], launch_ns,
        link[code], latency[code],
    )  # fmt: skip


def link_sides(message: Message | None, link: Link | None) -> dict[str, float]:
    """What bounds a collective -> the least time it leaves, ns; empty where nothing is known.

    Args:
        message: what it carries.
        link: between the GPUs of its group.
    """
    if message is None or message.wire is None or link is None or not link.joins(message.ranks):
        return {}
    latency = link.latency_ns(message.kind, message.ranks) if message.nccl else None
    return {LINK: link.wire_ns(message.wire), **({} if latency is None else {LATENCY: latency})}


def _over_link(cost: Cost, device: Ceilings | None) -> Cost:
    """A collective's cost, unknown where its link is."""
    m = cost.message
    if m is None or device is None or link_sides(m, device.link):
        return cost
    if device.link is None:
        return unknown(f"{device.name}: no link between these ranks is known")
    if m.ranks < 1:
        return unknown("how many ranks a collective has is not known")
    if m.ranks == 1:
        return unknown("a group of one rank sends nothing over a link")
    return unknown(f"{m.ranks} ranks: {device.link.name} joins {device.link.gpus} GPUs of one host at most")


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
