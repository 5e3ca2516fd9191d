"""Where each decode step begins and ends, and which activity belongs to which step.

Steps come from what the trace says about itself, in this order:

1. engine annotations, ``step[DECODE bs=16]`` (SGLang) and ``execute_..._context_..._generation_...`` (vLLM);
   nested ones are one step, the outermost;
2. ``ProfilerStep#N`` of ``torch.profiler`` schedules;
3. ``cudaGraphLaunch`` / ``hipGraphLaunch``, when every replay runs the same kernel sequence;
4. the repetition of the kernel sequence itself (:mod:`hta_dsv4.trace.periods`), when there is no marker.

Where none applies there are no steps, and :attr:`Steps.method` is ``"none"`` with the reason: a step is never
invented. Every method is also asked what it would have said, and :attr:`Steps.agreement` tells where they differ.

An activity belongs to the step whose marker was open when it was *launched* (joined by correlation), since kernels
run after their marker has closed. What no marker places stays outside every step, and callers report it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.markers import (
    BATCH,
    COUNTED,
    DECODE,
    END_NS,
    LABEL,
    MIXED,
    PHASE,
    PREFILL,
    RANK,
    START_NS,
    UNKNOWN,
    engine_steps,
    graph_steps,
    marker_phase,
    place_by_launch,
    place_by_start,
    profiler_steps,
    step_table,
)
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.repeats import OTHER, PARTIAL, WARM_UP, period_steps

__all__ = [
    "BATCH", "COUNTED", "DECODE", "EMPTY", "END_NS", "ENGINE", "GRAPH", "LABEL", "METHODS", "MIXED", "NONE", "OTHER",
    "PARTIAL", "PERIOD", "PHASE", "PREFILL", "PROFILER", "RANK", "START_NS", "UNKNOWN", "WARM_UP", "Agreement",
    "Steps", "find_steps", "marker_phase",
]  # fmt: skip

EMPTY = "no GPU activity"
ENGINE, PROFILER, GRAPH, PERIOD, NONE = (
    "engine annotation",
    "ProfilerStep",
    "graph launch",
    "repeating kernel sequence",
    "none",
)
METHODS = (ENGINE, PROFILER, GRAPH, PERIOD)
"""In order of trust."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What another method says about the steps.

    Attributes:
        method: the other method.
        steps: how many steps it finds.
        agrees: whether it finds the same steps; ``None`` where it cannot tell.
        alike: share of the activities in the chosen steps that it groups in the same way, 0 to 1.
        detail: one sentence.
    """

    method: str
    steps: int
    agrees: bool | None
    alike: float
    detail: str


@dataclass(frozen=True, slots=True)
class Steps:
    """The decode steps of one trace.

    Attributes:
        method: how they were found: one of :data:`METHODS`, or ``none``.
        detail: one sentence: what was counted, or why there are no steps.
        table: one row per step: ``rank, label, start_ns, end_ns`` (the marker on the CPU; for graph launches the
            end is the next launch; for a repeating sequence, times on the GPU), ``phase`` (decode | prefill | mixed |
            unknown | warm-up | partial | other work | no GPU activity), ``batch`` (Int64, NA where the marker does
            not say), ``counted`` (whether per-step figures use it). Index: the step number.
        of_activity: Int32, aligned with the trace's activity table: the step, or NA outside every step.
        agreement: what the other methods say, those that found something to say.
    """

    method: str
    detail: str
    table: pd.DataFrame
    of_activity: pd.Series[int]
    agreement: tuple[Agreement, ...] = ()

    @property
    def counted(self) -> pd.DataFrame:
        """The steps that per-step figures use."""
        return self.table[self.table[COUNTED]]

    @property
    def disagreements(self) -> tuple[Agreement, ...]:
        """The methods that find other steps."""
        return tuple(a for a in self.agreement if a.agrees is False)


@dataclass(frozen=True, slots=True)
class _Found:
    method: str
    table: pd.DataFrame
    step: NDArray[np.int32]
    detail: str


def find_steps(trace: Trace) -> Steps:
    """Find the decode steps of a trace and place every activity.

    Args:
        trace: a trace read with its CPU side.

    Returns:
        The steps, with the method, its reason and what other methods say; no step where the trace does not show any.
    """
    found = [_by_marker(trace, m, f) for m, f in _MARKERS.items()]
    table, step, detail = period_steps(trace)
    found.append(_Found(PERIOD, table, step, detail))
    chosen = next((f for f in found if len(f.table)), None)
    if chosen is None:
        reasons = "; ".join(dict.fromkeys(f.detail for f in found if f.method in (GRAPH, PERIOD)))
        none = _Found(NONE, step_table([]), np.full(len(trace.activities), -1, dtype=np.int32), reasons)
        return _steps(trace, none, ())
    table = _judged(trace, chosen)
    others = tuple(_compared(chosen, table, f) for f in found if f is not chosen and _has_a_say(f))
    return _steps(trace, _Found(chosen.method, table, chosen.step, chosen.detail), others)


_MARKERS: dict[str, Callable[[Trace], tuple[pd.DataFrame, str]]] = {
    ENGINE: engine_steps,
    PROFILER: profiler_steps,
    GRAPH: graph_steps,
}


def _by_marker(trace: Trace, method: str, find: Callable[[Trace], tuple[pd.DataFrame, str]]) -> _Found:
    table, detail = find(trace)
    step = place_by_launch(trace, table)
    if (
        len(table)
        and len(step)
        and (step < 0).all()
        and not trace.activities[col.LAUNCH_START_NS].notna().any()
    ):
        step = place_by_start(trace, table)
        detail += "; no activity has its launch, so each belongs to the step in whose time it starts"
    return _Found(method, table, step, detail)


def _steps(trace: Trace, found: _Found, agreement: tuple[Agreement, ...]) -> Steps:
    of_activity = pd.Series(found.step, index=trace.activities.index, name=col.STEP, dtype="Int32")
    return Steps(found.method, found.detail, found.table, of_activity.mask(of_activity < 0), agreement)


def _has_a_say(found: _Found) -> bool:
    """A method that found no steps is worth a line only where it looked at kernels and saw none repeat."""
    return len(found.table) > 0 or (found.method == PERIOD and len(found.step) > 0)


def _judged(trace: Trace, found: _Found) -> pd.DataFrame:
    """The step table with cut, empty and untypical steps labelled, and what counts marked."""
    table = found.table.copy()
    kernels = (trace.activities[col.KIND] == col.KERNEL).to_numpy()
    launches = np.bincount(found.step[kernels & (found.step >= 0)], minlength=len(table))
    phase = table[PHASE].to_numpy(dtype=object)
    for _, rows in table.groupby(RANK):
        label = rows.index.to_numpy()
        judged = label[np.isin(phase[label], (DECODE, UNKNOWN))]
        usual = float(np.median(launches[judged])) if len(judged) else 0.0
        if usual == 0 or len(judged) < 2:
            continue
        for end in {int(label[0]), int(label[-1])} & set(judged.tolist()):
            if launches[end] < usual / 2:
                phase[end] = PARTIAL
        inner = judged[phase[judged] != PARTIAL]
        phase[inner[launches[inner] == 0]] = EMPTY
        for first in inner[phase[inner] == DECODE]:  # the first ones may carry an autotuner's launches
            if len(inner) < 4 or launches[first] <= 1.5 * usual:
                break
            phase[first] = WARM_UP
        # Otherwise an engine that says DECODE is believed; other markers may hold a warm-up or a prefill.
        unsaid = inner[phase[inner] == UNKNOWN]
        odd = unsaid[_untypical(trace, found.step, unsaid)]
        typical = np.setdiff1d(unsaid, odd)
        phase[odd] = OTHER
        if len(typical):
            phase[odd[odd < typical[0]]] = WARM_UP
    table[PHASE] = pd.Series(phase, index=table.index, dtype="str")
    for wanted in (
        DECODE,
        UNKNOWN,
    ):  # a decode table is of decode steps, where the trace says which those are
        if (phase == wanted).any():
            table[COUNTED] = phase == wanted
            break
    else:
        table[COUNTED] = ~np.isin(phase, (PARTIAL, EMPTY, WARM_UP, OTHER))
    return table


def _untypical(trace: Trace, step: NDArray[np.int32], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the asked steps ran other kernels than most of them: name by name, against the median step."""
    if len(asked) < 3:
        return np.zeros(len(asked), dtype=bool)
    acts = trace.activities
    mine = (acts[col.KIND] == col.KERNEL).to_numpy() & np.isin(step, asked)
    code = acts[col.NAME].cat.codes.to_numpy()[mine].astype(np.int64)
    row = np.searchsorted(asked, step[mine])
    counts = np.zeros((len(asked), int(code.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(counts, (row, code), 1)
    typical = np.median(counts, axis=0)
    common = np.minimum(counts, typical).sum(axis=1)
    alike = common / np.maximum(np.maximum(counts.sum(axis=1), typical.sum()), 1)
    usual = float(np.median(alike))
    spread = float(np.median(np.abs(alike - usual)))
    odd: NDArray[np.bool_] = alike < usual - max(0.05, 5 * spread)
    return odd


def _compared(chosen: _Found, table: pd.DataFrame, other: _Found) -> Agreement:
    """What another method says about the counted steps of the chosen one."""
    if not len(other.table):
        return Agreement(other.method, 0, None, 0.0, other.detail)
    counted = table.index[table[COUNTED]].to_numpy()
    mine = np.isin(chosen.step, counted)
    ours, theirs = chosen.step[mine].astype(np.int64), other.step[mine].astype(np.int64)
    placed = theirs >= 0
    pair, size = np.unique(ours[placed] * (len(other.table) + 1) + theirs[placed], return_counts=True)
    a, b = pair // (len(other.table) + 1), pair % (len(other.table) + 1)
    best = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(best, a, size)
    # Of their steps only one counts for each of ours, and the other way round: two in one are not alike.
    back = np.zeros(len(other.table), dtype=np.int64)
    np.maximum.at(back, b, size)
    alike = min(int(best.sum()), int(back.sum())) / max(len(ours), 1)
    touched = len(np.unique(b[size > 0.05 * best[a]]))
    say = f"{other.detail}; {100 * alike:.1f} % of the activities lie in the same steps"
    same = touched == len(counted) and alike > 0.5
    if same:
        return Agreement(other.method, touched, True, alike, say)
    if touched > len(counted) > 0 and touched % len(counted) == 0:
        say = f"{other.detail}: {touched // len(counted)} in each step"
    elif 0 < touched < len(counted):
        say = f"{other.detail}: {len(counted)} steps lie in {touched} of them"
    return Agreement(other.method, touched, abs(touched - len(counted)) <= 1 and alike > 0.8, alike, say)
