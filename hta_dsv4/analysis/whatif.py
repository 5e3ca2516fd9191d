"""What would a step take if these launches were faster, fewer or gone? The timeline run again, with its assumptions.

The durations of the launches named are changed and the recorded timeline is simulated with them
(:mod:`hta_dsv4.analysis.timeline`): streams stay in order, overlap and gaps stay as recorded, and where the host was
late it stays late. So a kernel made faster under a slow host saves GPU time and no wall time, and the result says so.

Times are own times: where a launch starts before the one ahead of it has ended (programmatic dependent launch), what it
waited is nobody's, and it takes up when its stream is free. So a kernel made faster lets its successor wait less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hta_dsv4.analysis import change as ch
from hta_dsv4.analysis.change import Change, select
from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.counted import OWN, Counted, own_by_run, step_times
from hta_dsv4.analysis.floors import COMPUTE, LATENCY, LAUNCH, LINK, MEMORY, Launches
from hta_dsv4.analysis.own_time import early_note, own_intervals
from hta_dsv4.analysis.profile import StepTimes
from hta_dsv4.analysis.shares import divide_half_even
from hta_dsv4.analysis.timeline import GRAPH_GAP_NS, Timeline, timeline
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col

# A recorded step that would take this part of its unprofiled time with an infinitely fast host does not tell how fast
# its host is without the profiler.
_HOST_BOUND = 0.9


@dataclass(frozen=True, slots=True)
class Effect:
    """What one change did, per step.

    Attributes:
        text: as given.
        meaning: how its selector was read.
        launches, time_ns: of the launches it names, before it.
        launches_after, time_ns_after: after it.
        untouched: launches per step that it names and could not change (their floor is not known).
        bound: for changes that rest on floors: which side set most of the floor; else empty.
    """

    text: str
    meaning: str
    launches: float
    time_ns: int
    launches_after: float
    time_ns_after: int
    untouched: float = 0.0
    bound: str = ""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A projected step beside the recorded one; all times per step.

    Attributes:
        label: the variant's name.
        steps: counted steps.
        before, after: own, overlap and idle; the wall is what the simulation gives. Without early starts, which are
            taken out, own times and summed durations are the same.
        early_ns: what launches waited for those ahead of them, per step, as recorded.
        own_range: least and most own time over the steps, after.
        wall_range: wall time if no launch were ever late, and if every idle nanosecond stayed.
        batch: requests decoded together; ``None`` where unknown, and then there are no tokens per second.
        effects: one per change.
        unprofiled: the same as ``before.wall_ns`` and ``after.wall_ns`` with the host as fast as it was without the
            profiler; ``None`` where no manifest says how long an unprofiled step took, or that does not bind.
        graph: whether a step was taken to be launched as one graph.
        assumptions: one sentence each.
    """

    label: str
    steps: int
    before: StepTimes
    after: StepTimes
    own_range: tuple[int, int]
    wall_range: tuple[int, int]
    batch: int | None
    effects: tuple[Effect, ...]
    unprofiled: tuple[int, int] | None
    graph: bool
    assumptions: tuple[str, ...]
    early_ns: int = 0

    def tokens_per_s(self, wall_ns: float) -> float | None:
        """Tokens per second at a step time."""
        return None if self.batch is None or wall_ns <= 0 else self.batch * 1e9 / wall_ns


def what_if(
    label: str,
    part: Counted,
    changes: Sequence[Change],
    *,
    floors: Launches,
    batch: int | None = None,
    graph: bool = False,
    unprofiled_ns: float | None = None,
) -> WhatIf:
    """Project the step under changes, applied in the order given.

    Args:
        label: the variant's name.
        part: the counted activities of one rank, classified.
        changes: what becomes of which launches.
        floors: of the same activities, for changes that rest on them.
        batch: requests decoded together, for tokens per second.
        graph: launch each step as one graph.
        unprofiled_ns: what a step took without the profiler, where it is known.

    Returns:
        The projection.

    Raises:
        HtaDsv4Error: no steps, a selector that matches nothing, or a floor asked for where none is known.
    """
    if not part.steps or not len(part.activities):
        raise HtaDsv4Error(f"{label}: no steps in the trace, so there is no step time to project")
    acts = part.activities
    own = own_by_run(acts, part.run[part.step])
    dur = own.astype(np.float64)
    keep = np.ones(len(acts), dtype=bool)
    effects = []
    for change in changes:
        chosen = select(acts, change.selector)
        rows = chosen.rows & keep
        if not rows.any():
            raise HtaDsv4Error(f"{change.text!r}: an earlier change has removed all of these launches")
        before = float(dur[rows].sum())
        n = int(rows.sum())
        untouched, bound = _apply(change, np.flatnonzero(rows), dur, keep, part, floors)
        effects.append(
            Effect(
                change.text, chosen.meaning, n / part.steps, divide_half_even(round(before), part.steps),
                int((rows & keep).sum()) / part.steps,
                divide_half_even(round(float(dur[rows & keep].sum())), part.steps), untouched / part.steps, bound,
            )
        )  # fmt: skip
    table, order = own_intervals(acts, own)
    notes = early_note(acts, part.steps)
    early = int(acts[col.DUR_NS].to_numpy().clip(min=0).sum() - own.sum())
    part = replace(part, activities=table, step=part.step[order])
    model = timeline(part)
    new, keep = np.rint(dur).astype(np.int64)[order], keep[order]
    now = _times(part, model, model.dur, np.ones(len(table), dtype=bool))
    then = _times(part, model, new, keep, graph=graph)
    never_late = _times(part, model, new, keep, graph=True)
    stays = then.per_step.busy_ns + (0 if graph else now.per_step.idle_ns)
    high = max(then.per_step.wall_ns, stays)
    low = min(never_late.per_step.wall_ns, then.per_step.wall_ns)
    fast = _unprofiled(part, model, new, keep, graph, unprofiled_ns)
    return WhatIf(
        label, part.steps, now.per_step, then.per_step, then.range, (low, high), batch, tuple(effects), fast, graph,
        (*_assumptions(model, graph, floors, changes, unprofiled_ns, fast), *notes),
        divide_half_even(early, part.steps),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    per_step: StepTimes
    range: tuple[int, int]


def _times(
    part: Counted,
    model: Timeline,
    dur: np.ndarray,
    keep: np.ndarray,
    graph: bool = False,
    host_scale: float = 1.0,
) -> _Run:
    """Simulate and measure, with the measures used everywhere else."""
    starts = model.starts(dur, keep, graph_gap=GRAPH_GAP_NS if graph else None, host_scale=host_scale)
    acts = part.activities.loc[:, [col.START_NS, col.DUR_NS, col.RANK, col.DEVICE, col.STREAM]].copy()
    acts[col.START_NS], acts[col.DUR_NS] = starts, dur
    order = np.argsort(starts[keep], kind="stable")
    times = step_times(replace(part, activities=acts[keep].iloc[order], step=part.step[keep][order]))
    return _Run(
        StepTimes.mean(times),
        (int(times[OWN].min()), int(times[OWN].max())),
    )


def _apply(
    change: Change, rows: np.ndarray, dur: np.ndarray, keep: np.ndarray, part: Counted, floors: Launches
) -> tuple[int, str]:
    """Change durations in place; how many launches could not be changed, and which side bounds those that were."""
    if change.kind == ch.REMOVE:
        keep[rows] = False
    elif change.kind == ch.SCALE:
        dur[rows] *= change.value
    elif change.kind == ch.EACH:
        dur[rows] = change.value
    elif change.kind == ch.REPLACE:
        for step in range(part.steps):
            mine = rows[part.step[rows] == step]
            if len(mine) < change.count:
                raise HtaDsv4Error(
                    f"{change.text!r}: {change.count} launches in place of {len(mine)} in a step; only as many or "
                    "fewer can be put in their places"
                )
            # Spread evenly, so that each stands where the launches it replaces stood.
            kept = mine[np.linspace(0, len(mine) - 1, change.count).round().astype(np.int64)]
            keep[mine] = False
            keep[kept] = True
            dur[kept] = change.value
    else:
        return _toward_floor(change, rows, dur, floors)
    return 0, ""


def _toward_floor(change: Change, rows: np.ndarray, dur: np.ndarray, floors: Launches) -> tuple[int, str]:
    floor = floors.floor[rows]
    known = ~np.isnan(floor)
    if not known.any():
        costs = [floors.costs[c] for c in floors.code[rows].tolist()]
        why = next(  # where a cost is known, it is the GPU that is not
            (c.source for c in costs if c.known == UNKNOWN and c.source), "the GPU's ceilings are not known"
        )
        raise HtaDsv4Error(
            f"{change.text!r}: no floor is known for any of these launches ({why}); see hta-dsv4 roofline"
        )
    mine, floor = rows[known], floor[known]
    if change.kind == ch.FLOOR:
        dur[mine] = np.minimum(dur[mine], floor)
    else:
        # The kernel keeps its efficiency: its time falls as its floor does.
        sides = (floors.memory / 2, floors.link / 2, floors.compute, floors.latency)
        half = np.maximum(np.maximum.reduce([side[mine] for side in sides]), floors.launch_ns)
        dur[mine] *= np.minimum(half / np.maximum(floor, 1e-9), 1.0)
    bound = floors.bound[mine]
    by_bound = {b: float(floor[bound == b].sum()) for b in (MEMORY, COMPUTE, LAUNCH, LINK, LATENCY)}
    return int((~known).sum()), max(by_bound, key=lambda b: by_bound[b])


def _unprofiled(
    part: Counted,
    model: Timeline,
    dur: np.ndarray,
    keep: np.ndarray,
    graph: bool,
    unprofiled_ns: float | None,
) -> tuple[int, int] | None:
    """Wall per step before and after, with the host scaled so that the recorded step takes what it took unprofiled."""
    if unprofiled_ns is None or not len(model.call_at):
        return None
    everything = np.ones(len(keep), dtype=bool)

    def wall(scale: float) -> int:
        return _times(part, model, model.dur, everything, host_scale=scale).per_step.wall_ns

    if graph:  # one call a step: however fast the host is, it does not matter
        return round(unprofiled_ns), _times(part, model, dur, keep, graph=True).per_step.wall_ns
    low, high = 0.0, 1.0
    if wall(low) > _HOST_BOUND * unprofiled_ns or unprofiled_ns > wall(high):
        return None  # the step hardly depends on its host, or the host's own work does not account for the difference
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if wall(middle) < unprofiled_ns else (low, middle)
    after = _times(part, model, dur, keep, graph=graph, host_scale=high).per_step.wall_ns
    return wall(high), after


def _assumptions(
    model: Timeline, graph: bool, floors: Launches, changes: Sequence[Change], unprofiled_ns: float | None,
    fast: tuple[int, int] | None,
) -> tuple[str, ...]:  # fmt: skip
    n = len(model.start)
    share = [100 * float((model.cause == c).sum()) / n for c in range(3)]
    out = [
        f"starts as recorded: {share[0]:.0f} % waited for their stream, {share[1]:.0f} % for their launch, "
        f"{share[2]:.0f} % for another stream; each keeps the gap or latency it had",
        "launches that are not named keep their durations: caches, clocks and contention stay as they were",
    ]
    if not len(model.call_at):
        out.append("the trace has no launches: idle time is kept as dependency gaps, whatever caused it")
    elif graph:
        out.append(
            f"a step is one graph launch: no host inside it, at most {GRAPH_GAP_NS} ns between its kernels"
        )
    else:
        out.append(
            "the host launches as it did; a launch that is gone costs it nothing, a faster kernel does not speed it up"
        )
        waits = int((model.call_wait >= 0).sum())
        if waits:
            out.append(f"{waits} times the host waited for the GPU to drain and is taken to do so again")
        if model.queue:
            out.append(
                f"the launch queue holds {model.queue} calls: where it was full, the host waited for room"
            )
    kinds = {c.kind for c in changes}
    if kinds & {ch.FLOOR, ch.HALVE_BYTES}:
        out.append(
            "floors are of the bytes and operations no implementation avoids: hta-dsv4 roofline says what each rests on"
        )
    if ch.FLOOR in kinds and any(c.message is not None for c in floors.costs):
        out.append("a collective set to its floor waits for no other rank any more")
    if ch.HALVE_BYTES in kinds:
        out.append("with half the bytes a kernel keeps its efficiency: its time falls as its floor does")
    if unprofiled_ns is not None and fast is None and not graph:
        out.append(
            "how fast the host is without the profiler cannot be told from this step: no unprofiled projection"
        )
    return tuple(out)
