"""What rules look at: the counted launches of one variant with their floors, fill, idle time and what is known of them.

Rules are pure functions of it. Its columns are plain arrays, one entry per activity of the counted steps, in the order
of their start: the order of rows in a table never matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.collective_speed import CollectiveSpeeds
from hta_dsv4.analysis.communication import Communication
from hta_dsv4.analysis.costs.workload import Workload
from hta_dsv4.analysis.counted import WALL, Counted, step_times
from hta_dsv4.analysis.devices import Ceilings
from hta_dsv4.analysis.fill import CAPACITY, CTAS, SMS, launch_fill
from hta_dsv4.analysis.findings.finding import Claim, Floats, Ints
from hta_dsv4.analysis.floors import Launches, launch_floors
from hta_dsv4.analysis.launch_bound import SHORT_NS, IdleTime
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.link import is_graph_launch
from hta_dsv4.trace.model import TraceMeta

COMMUNICATION = "communication"
"""The bucket of collectives: no rule on fill, bytes or operations is about them."""

Texts = np.ndarray
"""object [activities] of str; missing is empty."""


@dataclass(frozen=True)
class Subject:
    """One variant, as rules see it.

    Attributes:
        label: the variant's name.
        part: the counted activities of one rank, classified, in time order.
        floors: of the same activities.
        workload: what was decoded.
        device: the GPU's ceilings; ``None`` where unknown.
        meta: the trace's metadata.
        idle: idle time by cause; ``None`` where it was not looked at.
        timing: step times of the capture's manifest (``unprofiled_step_ms``, ...); empty without.
        shapes_recorded: whether any CPU op has its shapes.
        communication: the collectives of all ranks; ``None`` where only one is loaded.
        speeds: what they carry and how fast; ``None`` likewise.
        sweep: time per step over the static maximum context, by origin; ``None`` without captures at several.
        companion: the option that gives an eager companion which is at hand; ``None`` without, and where it is given.
    """

    label: str
    part: Counted
    floors: Launches
    workload: Workload
    device: Ceilings | None
    meta: TraceMeta
    idle: IdleTime | None = None
    timing: Mapping[str, Any] = field(default_factory=dict)
    shapes_recorded: bool = True
    sweep: Scaling | None = None
    communication: Communication | None = None
    speeds: CollectiveSpeeds | None = None
    companion: str | None = None

    @property
    def steps(self) -> int:
        """Counted steps."""
        return self.part.steps

    @cached_property
    def own_ns(self) -> int:
        """GPU time per step: own times of all launches, added up."""
        return divide_half_even(round(float(self.dur.sum())), self.steps)

    @cached_property
    def wall_ns(self) -> int:
        """Wall time per step, as recorded."""
        return divide_half_even(int(self._times[WALL].sum()), self.steps)

    @cached_property
    def _times(self) -> pd.DataFrame:
        return step_times(self.part)

    @property
    def dur(self) -> Floats:
        """Own times, ns: what a launch took without its wait for the launch ahead of it."""
        return self.floors.duration

    @cached_property
    def name(self) -> Texts:
        """Kernel names."""
        return self._text(col.NAME)

    @cached_property
    def bucket(self) -> Texts:
        """Buckets."""
        return self._text(col.BUCKET)

    @cached_property
    def role(self) -> Texts:
        """Roles."""
        return self._text(col.ROLE)

    @cached_property
    def origin(self) -> Texts:
        """Origins; ``unknown`` where not known."""
        return self._text(col.ORIGIN)

    @cached_property
    def op(self) -> Texts:
        """Innermost CPU ops."""
        return self._text(col.OP)

    @cached_property
    def shapes(self) -> Texts:
        """Their input shapes, JSON text."""
        return self._text(col.OP_SHAPES)

    @cached_property
    def dtypes(self) -> Texts:
        """Their input types, JSON text."""
        return self._text(col.OP_DTYPES)

    @cached_property
    def in_graph(self) -> np.ndarray:
        """Bool [activities]: whether a graph launch caused it."""
        names = self._text(col.LAUNCH_NAME)
        told = {n: is_graph_launch(n) for n in set(names)}
        return np.array([told[n] for n in names], dtype=bool)

    @cached_property
    def ctas(self) -> Floats:
        """CTAs of each launch; NaN where unknown, and for copies."""
        return self._fill(CTAS)

    @cached_property
    def sms(self) -> Floats:
        """SMs of the GPU it ran on; NaN where unknown, and for copies."""
        return self._fill(SMS)

    @cached_property
    def capacity(self) -> Floats:
        """CTAs of each launch's kernel that the GPU holds at once; NaN where unknown, and for copies."""
        return self._fill(CAPACITY)

    @cached_property
    def small_ns(self) -> float:
        """What a small launch takes here: median of those below 3 us, else three times a launch that does nothing."""
        short = self.dur[(self.dur > 0) & (self.dur < SHORT_NS)]
        return float(np.median(short)) if len(short) else 3 * self.floors.launch_ns

    @property
    def unprofiled_ns(self) -> float | None:
        """A step without the profiler, from the manifest."""
        value = self.timing.get("unprofiled_step_ms")
        return None if value is None else float(value) * 1e6

    @property
    def step_ns(self) -> float:
        """What a user waits for a token: the step without the profiler; as recorded, with the host's part between two.

        Other time between two recorded steps, in which the host waited for something, is no part of it.
        """
        if self.unprofiled_ns is not None:
            return self.unprofiled_ns
        graph = None if self.idle is None else self.idle.graph
        return float(self.wall_ns) if graph is None else graph.paced_ns

    def about(self, rows: Ints) -> dict[str, Any]:
        """The fields of a finding that say which launches it is about: ``kernels, launches, time_ns, steps``."""
        time = pd.Series(self.dur[rows]).groupby(self.name[rows]).sum()
        heaviest = sorted(time.index, key=lambda n: (-time[n], n))
        return {
            "kernels": tuple(str(n) for n in heaviest[:3]), "launches": len(rows) / self.steps,
            "time_ns": round(float(self.dur[rows].sum()) / self.steps), "steps": self.steps,
        }  # fmt: skip

    def saved(self, made: Claim) -> dict[str, Any]:
        """The fields of a finding that say what it saves: ``claim, recoverable``."""
        return {"claim": made, "recoverable": made.per_step(self.steps)}

    def _text(self, column: str) -> Texts:
        acts = self.part.activities
        if column not in acts:
            return np.full(len(acts), "unknown" if column == col.ORIGIN else "", dtype=object)
        values = acts[column].astype(object)
        out: Texts = values.where(values.notna(), "").astype(str).to_numpy(dtype=object)
        return out

    def _fill(self, column: str) -> Floats:
        acts = self.part.activities
        found = launch_fill(acts, self.meta)[column].reindex(acts.index)
        return found.to_numpy(dtype=np.float64, na_value=np.nan)


def subject(
    label: str, part: Counted, workload: Workload, device: Ceilings | None, meta: TraceMeta, **more: Any
) -> Subject:
    """A subject, its launches put in time order and their floors worked out.

    Args:
        label: the variant's name.
        part: the counted activities of one rank, in any order.
        workload: what was decoded.
        device: the GPU's ceilings.
        meta: the trace's metadata.
        more: further attributes of :class:`Subject`.
    """
    acts = part.activities
    order = np.lexsort((acts[col.EVENT_INDEX].to_numpy(), acts[col.START_NS].to_numpy()))
    ordered = Counted(part.rank, acts.iloc[order].reset_index(drop=True), part.step[order], part.run)
    return Subject(label, ordered, launch_floors(ordered, workload, device), workload, device, meta, **more)
