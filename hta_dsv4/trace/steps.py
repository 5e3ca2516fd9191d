"""Where each decode step begins and ends, and which activity belongs to which step.

Steps come from what the trace says about itself, in this order:

1. engine annotations, ``step[DECODE bs=16]`` (SGLang) and ``execute_..._context_..._generation_...`` (vLLM);
   nested ones are one step, the outermost;
2. ``ProfilerStep#N`` of ``torch.profiler`` schedules;
3. ``cudaGraphLaunch`` / ``hipGraphLaunch``, when every replay runs the same kernel sequence.

Where none applies there are no steps, and :attr:`Steps.method` is ``"none"`` with the reason: a step is never
invented. An activity belongs to the step whose marker was open when it was *launched* (joined by correlation),
since kernels run after their marker has closed. Activities without a launch fall back on the GPU-side twin of
the marker; what neither places stays outside every step, and callers report it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace

# columns of Steps.table, one row per step, in time order within a rank; the row label is the step's index
RANK, LABEL, START_NS, END_NS = col.RANK, "label", col.START_NS, "end_ns"
PHASE, BATCH, COUNTED = "phase", "batch", "counted"
DECODE, PREFILL, MIXED, UNKNOWN = "decode", "prefill", "mixed", "unknown"

ENGINE, PROFILER, GRAPH, NONE = "engine annotation", "ProfilerStep", "graph launch", "none"

_PROFILER_STEP = re.compile(r"^ProfilerStep#\d+$")
_SGLANG = re.compile(r"^step\[(?P<mode>[A-Z_]+)(?:[^\]]*?\bbs=(?P<bs>\d+))?[^\]]*\]")
_VLLM = re.compile(
    r"^execute(?:_new)?_.*?context_(?P<context>\d+)(?:\([^)]*\))?_generation_(?P<generation>\d+)"
)
_GRAPH_LAUNCH = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Steps:
    """The decode steps of one trace.

    Attributes:
        method: how they were found: ``engine annotation``, ``ProfilerStep``, ``graph launch`` or ``none``.
        detail: one sentence: what was counted, or why there are no steps.
        table: one row per step: ``rank, label, start_ns, end_ns`` (the marker on the CPU; for graph launches the
            end is the next launch), ``phase`` (decode | prefill | mixed | unknown), ``batch`` (Int64, NA where the
            marker does not say), ``counted`` (whether per-step figures use it). Index: the step number.
        of_activity: Int32, aligned with the trace's activity table: the step, or NA outside every step.
    """

    method: str
    detail: str
    table: pd.DataFrame
    of_activity: pd.Series[int]

    @property
    def counted(self) -> pd.DataFrame:
        """The steps that per-step figures use."""
        return self.table[self.table[COUNTED]]


def marker_phase(name: str) -> tuple[str, int | None]:
    """What an engine's step annotation says about itself.

    Args:
        name: the annotation, e.g. ``step[DECODE bs=16]`` or ``execute_16_context_0(...)_generation_16(...)``.

    Returns:
        The phase (decode | prefill | mixed | unknown) and the decode batch size, ``None`` where it is not said.
    """
    if found := _SGLANG.match(name):
        mode, batch = found["mode"], found["bs"]
        phase = {"DECODE": DECODE, "EXTEND": PREFILL, "PREFILL": PREFILL, "MIXED": MIXED}.get(mode, UNKNOWN)
        if mode == "TARGET_VERIFY":  # speculative decoding verifies drafts: one decode forward pass
            phase = DECODE
        return phase, int(batch) if batch else None
    if found := _VLLM.match(name):
        context, generation = int(found["context"]), int(found["generation"])
        if context and generation:
            return MIXED, generation
        if generation:
            return DECODE, generation
        return (PREFILL, None) if context else (UNKNOWN, None)
    return UNKNOWN, None


def find_steps(trace: Trace) -> Steps:
    """Find the decode steps of a trace and place every activity.

    Args:
        trace: a trace read with its CPU side.

    Returns:
        The steps, with the method and its reason; no step where the trace does not show any.
    """
    events = trace.events
    annotations = events[events[col.CATEGORY] == "user_annotation"] if len(events) else events
    names = annotations[col.NAME].astype(str) if len(annotations) else pd.Series([], dtype=str)

    engine = annotations[[bool(_SGLANG.match(n) or _VLLM.match(n)) for n in names]]
    if len(engine):
        table = _from_markers(_outermost(engine))
        nested = len(engine) - len(table)
        detail = f"{len(table)} engine annotations" + (
            f" ({nested} nested ones belong to them)" if nested else ""
        )
        return _placed(trace, ENGINE, detail, table)

    profiler = annotations[[bool(_PROFILER_STEP.match(n)) for n in names]]
    if len(profiler):
        table = _from_markers(_outermost(profiler))
        return _placed(trace, PROFILER, f"{len(table)} ProfilerStep annotations", table)

    launched, reason = _from_graph_launches(trace)
    if launched is not None:
        return _placed(trace, GRAPH, reason, launched)
    return _placed(trace, NONE, reason, _steps_table([]))


def _steps_table(rows: list[tuple[int, str, int, int, str, int | None]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[RANK, LABEL, START_NS, END_NS, PHASE, BATCH])
    table = table.astype(
        {RANK: "int32", START_NS: "int64", END_NS: "int64", BATCH: "Int64", LABEL: "str", PHASE: "str"}
    )
    table = table.sort_values([RANK, START_NS], kind="stable").reset_index(drop=True)
    # A decode table is of decode steps; prefill and mixed steps are left out only where there is decode to show.
    has_decode = bool((table[PHASE] == DECODE).any())
    table[COUNTED] = table[PHASE].eq(DECODE) if has_decode else pd.Series(True, index=table.index, dtype=bool)
    return table


def _outermost(markers: pd.DataFrame) -> pd.DataFrame:
    """Markers that no other marker of the same rank and process encloses."""
    keep: list[object] = []
    for _, group in markers.groupby([col.RANK, col.PID], observed=True, sort=False):
        order = group.sort_values([col.START_NS, col.DUR_NS], ascending=[True, False], kind="stable")
        open_until = -1
        for label, start, dur in zip(order.index, order[col.START_NS], order[col.DUR_NS], strict=True):
            if start + dur > open_until:
                keep.append(label)
                open_until = start + dur
    return markers.loc[markers.index.isin(keep)]


def _from_markers(markers: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for rank, name, start, dur in zip(
        markers[col.RANK], markers[col.NAME], markers[col.START_NS], markers[col.DUR_NS], strict=True
    ):
        phase, batch = marker_phase(str(name))
        rows.append((int(rank), str(name), int(start), int(start + dur), phase, batch))
    return _steps_table(rows)


def _from_graph_launches(trace: Trace) -> tuple[pd.DataFrame | None, str]:
    """One step per graph launch, if all replays are alike; otherwise ``None`` and why."""
    acts = trace.activities
    if col.LAUNCH_NAME not in acts or not len(acts):
        return None, "no step markers: neither engine annotations, ProfilerStep nor graph launches"
    is_replay = np.array(
        [bool(_GRAPH_LAUNCH.match(str(n))) for n in acts[col.LAUNCH_NAME].cat.categories], dtype=bool
    )
    codes = acts[col.LAUNCH_NAME].cat.codes.to_numpy()
    replayed = acts[(codes >= 0) & is_replay[codes]] if len(is_replay) else acts.iloc[:0]
    if not len(replayed):
        return None, "no step markers: neither engine annotations, ProfilerStep nor graph launches"
    sequences: dict[tuple[object, ...], int] = {}
    launches: list[tuple[int, int]] = []
    for _, group in replayed.groupby([col.RANK, col.LAUNCH_START_NS], observed=True):
        sequence = tuple(group[col.NAME].cat.codes)
        sequences[sequence] = sequences.get(sequence, 0) + 1
        launches.append((int(group[col.RANK].iloc[0]), int(group[col.LAUNCH_START_NS].iloc[0])))
    if len(sequences) > 1:
        return None, (
            f"{len(launches)} graph launches replay {len(sequences)} different kernel sequences, "
            "so a launch is not a step and the trace has no other marker"
        )
    launches.sort()
    rows: list[tuple[int, str, int, int, str, int | None]] = []
    for i, (rank, start) in enumerate(launches):
        following = launches[i + 1] if i + 1 < len(launches) else (None, 0)
        # Sampling and copies launched after a replay belong to it, up to the next replay.
        end = following[1] if following[0] == rank else _INT64_MAX
        rows.append((rank, f"graph launch {i}", start, end, UNKNOWN, None))
    return _steps_table(rows), f"{len(launches)} graph launches of one kernel sequence"


def _placed(trace: Trace, method: str, detail: str, table: pd.DataFrame) -> Steps:
    acts = trace.activities
    step = np.full(len(acts), -1, dtype=np.int32)
    if len(table) and len(acts):
        start = (
            acts[col.LAUNCH_START_NS]
            if col.LAUNCH_START_NS in acts
            else pd.Series(pd.NA, acts.index, dtype="Int64")
        )
        linked = start.notna().to_numpy()
        at = start.fillna(0).to_numpy(dtype=np.int64)
        ranks = acts[col.RANK].to_numpy()
        for rank, rows in table.groupby(RANK):
            mine = linked & (ranks == rank)
            step[mine] = _inside(at[mine], rows)
        _place_unlinked(trace, table, ~linked, step)
    of_activity = pd.Series(step, index=acts.index, name=col.STEP, dtype="Int32")
    return Steps(method, detail, table, of_activity.mask(of_activity < 0))


def _inside(at: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """The step whose [start, end) holds each time, or -1."""
    starts, ends = rows[START_NS].to_numpy(), rows[END_NS].to_numpy()
    place = np.searchsorted(starts, at, side="right") - 1
    found = (place >= 0) & (at < ends[np.maximum(place, 0)])
    return np.where(found, rows.index.to_numpy()[np.maximum(place, 0)], -1).astype(np.int32)


def _place_unlinked(trace: Trace, table: pd.DataFrame, unlinked: np.ndarray, step: np.ndarray) -> None:
    """Place activities without a launch by the GPU-side twins of the markers, where there is one per step."""
    events = trace.events
    if not unlinked.any() or not len(events):
        return
    twins = events[(events[col.CATEGORY] == "gpu_user_annotation") & events[col.NAME].isin(set(table[LABEL]))]
    acts = trace.activities
    for rank, rows in table.groupby(RANK):
        here = twins[twins[col.RANK] == rank].sort_values(col.START_NS, kind="stable")
        if here[col.NAME].astype(str).tolist() != rows[LABEL].tolist():
            continue  # not one twin per step in the same order: no certain mapping, leave them outside
        spans = pd.DataFrame(
            {
                START_NS: here[col.START_NS].to_numpy(),
                END_NS: (here[col.START_NS] + here[col.DUR_NS]).to_numpy(),
            },
            index=rows.index,
        )
        mine = unlinked & (acts[col.RANK].to_numpy() == rank)
        step[mine] = _inside(acts[col.START_NS].to_numpy()[mine], spans)
