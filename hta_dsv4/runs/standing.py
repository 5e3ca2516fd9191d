"""Where each variant stands for its user: GPU time, the step itself, tokens per second, and what bounds it.

The step is that of the capture's manifest, timed before the profiler was started, where there is one: a profiler adds
microseconds to every launch, so a step that waits for launches is recorded longer than it is. Else it is the recorded
period, from a step's start to the next one's, and says so; a trace of steps that do not follow each other has their
wall time alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hta_dsv4.analysis.apart import work_differs
from hta_dsv4.analysis.comparability import Fact
from hta_dsv4.analysis.counted import BUSY, OWN, WALL, step_periods, step_times
from hta_dsv4.analysis.idle import Idle, idle
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.apart import recorded_under
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace import steps as steps_module

GPU, HOST, OTHER = "GPU", "host", "other waits"
BUSY_GPU = 0.9
"""A step of which the GPU works this part is bound by it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One variant's step.

    Attributes:
        label: the variant's name.
        steps: counted steps of the trace.
        own_ns, busy_ns: own time and busy time of the GPU per step.
        step_ns: time of a step.
        range_ns: the shortest and longest of the steps behind ``step_ns``.
        unprofiled: whether ``step_ns`` is the manifest's, without the profiler; else it is as recorded.
        batch: requests decoded per step; ``None`` where neither manifest nor trace says it.
        waiting: what the idle time of the recorded steps, and that between them, waited for.
        note: a manifest that cannot be read, or ``""``.
        work: what was decoded on what, as far as the capture says (:data:`hta_dsv4.analysis.apart.WORKLOAD`).
    """

    label: str
    steps: int
    own_ns: float
    busy_ns: float
    step_ns: float
    range_ns: tuple[float, float]
    unprofiled: bool
    batch: int | None
    waiting: Idle
    note: str = ""
    work: Mapping[str, Fact] = field(default_factory=dict)
    period: bool = True
    """Whether a recorded ``step_ns`` reaches to the next step's start; else no step follows another: the wall time."""
    devices: int = 1
    """GPUs whose busy times ``busy_ns`` adds."""

    @property
    def tokens_per_s(self) -> float | None:
        """A decode step gives one token to each request."""
        return None if self.batch is None or not self.step_ns else self.batch * 1e9 / self.step_ns

    @property
    def busy_share(self) -> float:
        """Part of the step in which the GPU works; at most 1, as kernels may take longer while recorded."""
        return min(self.busy_ns / self.devices / self.step_ns, 1.0) if self.step_ns else 0.0

    @property
    def bound_by(self) -> str:
        """GPU, HOST (most idle time has an empty queue), OTHER, or ``""`` where the trace cannot tell."""
        if self.busy_share >= BUSY_GPU:
            return GPU
        share = self.waiting.queue_empty_share
        return "" if share is None else HOST if share > 0.5 else OTHER

    def overlaps(self, other: Standing) -> bool:
        """Whether some step of one is as long as one of the other, so that the two are not told apart."""
        return self.range_ns[0] <= other.range_ns[1] and other.range_ns[0] <= self.range_ns[1]

    def times_faster(self, before: Standing) -> float | None:
        """Step of ``before`` over this step.

        ``None`` where one is recorded with the profiler and the other without, or where the two are of different work:
        a step of one request is not a faster step of 32.
        """
        if self.unprofiled != before.unprofiled or self.other_work(before) or not self.step_ns:
            return None
        return before.step_ns / self.step_ns

    def other_work(self, before: Standing) -> str:
        """What the work of ``before`` was and is here, where it differs: ``concurrency 32 → 1``; else ``""``."""
        differ = work_differs(before.work, self.work)
        return ", ".join(f"{f} {before.work[f]} → {self.work[f]}" for f in differ)


def standings(runs: Sequence[Run]) -> list[Standing]:
    """Where each variant stands.

    Args:
        runs: the variants.

    Returns:
        One entry per variant with steps, in their order.
    """
    return [_standing(run) for run in runs if run.counted.steps]


def _standing(run: Run) -> Standing:
    part = run.counted
    times = step_times(part)
    mean, periods = times[[OWN, BUSY]].mean(), step_periods(part)
    recorded = periods if len(periods) else times[WALL].to_numpy()
    note, batch, plain = "", None, None
    try:
        batch = run.manifest.get("concurrency")
        timing = run.manifest.get("timing", {})
        plain = timing.get("unprofiled_step_ms")
    except HtaDsv4Error as error:
        note, timing = str(error), {}
    if batch is None:
        said = {int(b) for s in run.steps for b in s.counted[steps_module.BATCH].dropna()}
        batch = said.pop() if len(said) == 1 else None
    step, low, high = float(recorded.mean()), float(recorded.min()), float(recorded.max())
    if plain is not None:
        step, low, high = (
            1e6 * float(timing.get(k, plain))
            for k in ("unprofiled_step_ms", "unprofiled_min_ms", "unprofiled_max_ms")
        )
    return Standing(
        run.label, part.steps, float(mean[OWN]), float(mean[BUSY]), step, (low, high), plain is not None,
        None if batch is None else int(batch), idle(part, between=plain is None), note, recorded_under(run),
        bool(len(periods)), max(int(part.activities[col.DEVICE].nunique(dropna=False)), 1),
    )  # fmt: skip
