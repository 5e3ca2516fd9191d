"""Idle time and launching: variants side by side, what came after the gaps, launch calls; as grids, JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hta_dsv4.analysis import launch_bound as lb
from hta_dsv4.analysis.gaps import CAUSES
from hta_dsv4.analysis.launch_bound import IdleTime
from hta_dsv4.present.cells import plain
from hta_dsv4.present.grid import ABSENT, Grid, per_step, us
from hta_dsv4.present.modelled import about

_Pair = tuple[str, str]


def idle_grid(found: Sequence[IdleTime]) -> Grid:
    """Two columns per variant: time per step and percent of the wall of the steps; then launching and the graph.

    What lies between two steps is no step's: it has a line of its own, the mean of such a gap and no percent.
    """
    headers: list[str] = [""]
    for v in found:
        headers += [f"{v.label} us" + ("/step" if v.step_count else ""), "%"]
    rows = [
        _line("wall", found, lambda v: _time(v, v.wall_ns)),
        _line("busy", found, lambda v: _time(v, v.busy_ns)),
        _line("idle", found, lambda v: _time(v, v.idle_ns)),
    ]
    rows += [_line(f"  {c}", found, lambda v, c=c: _time(v, v.causes[c])) for c in CAUSES]
    rows += [
        _line("  of it in the profiler's own work", found, lambda v: _time(v, v.profiler_ns)),
        _line("between steps, mean gap", found, _between),
        _line("  of it the host's own, median", found, _host_between),
        _line("gaps", found, lambda v: (_count(v, v.gap_count), "")),
        _line("launch calls", found, lambda v: (_count(v, v.launches), "")),
        _line(
            "time in launch calls",
            found,
            lambda v: _time(v, int(v.calls[lb.CALL_NS].sum())) if v.launches else _NONE,
        ),
        _line("median from call to call", found, lambda v: (us(v.cadence_ns), "")),
        _line(f"kernels under {lb.SHORT_NS // 1000} us, of all kernels", found, _short_count),
        _line("  their time, of kernel time", found, _short_time),
        _line("step as one CUDA graph (modelled)", found, _graph),
        _line("step without the profiler", found, lambda v: (us(v.unprofiled_step_ns), _slower(v))),
    ]
    notes = [f"{v.label}: {n}" if len(found) > 1 else n for v in found for n in (*_said(v), *v.notes)]
    return Grid("idle time by cause, and launching", tuple(headers), tuple(rows), notes=tuple(notes))


_NONE: _Pair = (ABSENT, ABSENT)


def _line(name: str, found: Sequence[IdleTime], cell: Any) -> tuple[str, ...]:
    return (name, *(text for v in found for text in cell(v)))


def _time(v: IdleTime, ns: int) -> _Pair:
    return us(per_step(ns, v.step_count)), f"{100 * ns / v.wall_ns:.1f}" if v.wall_ns else ABSENT


def _between(v: IdleTime) -> _Pair:
    return (us(v.between_steps_ns / v.between_count), "") if v.between_count else _NONE


def _host_between(v: IdleTime) -> _Pair:
    return (us(v.graph.host_between_ns), "") if v.between_count and v.graph is not None else _NONE


def _count(v: IdleTime, n: int | None) -> str:
    if n is None:
        return ABSENT
    each = n / max(v.step_count, 1)
    return f"{each:,.0f}" if each.is_integer() else f"{each:,.1f}"


def _short_count(v: IdleTime) -> _Pair:
    share = f"{100 * v.short.launches / v.short.all_launches:.1f}" if v.short.all_launches else ABSENT
    return _count(v, v.short.launches), share


def _short_time(v: IdleTime) -> _Pair:
    share = f"{100 * v.short.time_ns / v.short.all_time_ns:.1f}" if v.short.all_time_ns else ABSENT
    return us(per_step(v.short.time_ns, v.step_count)), share


def _graph(v: IdleTime) -> _Pair:
    return _NONE if v.graph is None else (us(round(v.graph.graph_step_ns)), f"{_change(v):.1f}")


def _change(v: IdleTime) -> float:
    return 0.0 if v.graph is None else 100 * (v.graph.graph_step_ns / v.graph.step_ns)


def _slower(v: IdleTime) -> str:
    if v.unprofiled_step_ns is None or not v.step_count:
        return ABSENT
    return f"{100 * v.unprofiled_step_ns * v.step_count / v.wall_ns:.1f}"


def _said(v: IdleTime) -> list[str]:
    """The verdict in words, with the numbers it rests on."""
    if v.reason:
        return [v.reason]
    said = []
    host = 100 * v.host_ns / v.wall_ns if v.wall_ns else 0.0
    if v.launch_bound:
        said.append(
            f"bound by launching: in {host:.1f} % of the wall time the GPU had nothing queued and waited for the host"
        )
    else:
        said.append(f"not bound by launching: the GPU waited for the host in {host:.1f} % of the wall time")
    said += _between_said(v)
    said += _graph_said(v)
    if v.unprofiled_step_ns is not None and v.step_count:
        over = v.wall_ns / v.step_count / v.unprofiled_step_ns - 1
        if over > 0.05:
            said.append(
                f"the profiler made a step {100 * over:.0f} % longer: the host's gaps are an upper bound"
            )
    return said


def _between_said(v: IdleTime) -> list[str]:
    """A host that is late in front of every step, which no step's wall time shows."""
    if v.graph is None or not v.graph.host_between_ns > lb.HELPED * v.graph.paced_ns:
        return []
    return [
        f"the host is late between steps: {us(v.graph.host_between_ns)} us before each (median) in which it neither "
        f"waited nor launched a graph; from a step's start to the next one's {us(round(v.graph.period_ns))} us"
    ]


def _graph_said(v: IdleTime) -> list[str]:
    if v.graph is None:
        return []
    if v.graph.replays and not v.graph.recoverable_ns:
        return ["steps run as CUDA graphs already"]
    now = f"{v.graph.step_ns / 1e6:,.3f} ms as profiled"
    if v.unprofiled_step_ns is not None:
        now += f", {v.unprofiled_step_ns / 1e6:,.3f} ms without the profiler"
    has = f" ({_count(v, v.graph.replays)} graph launches in it now)" if v.graph.replays else ""
    # What the profiler added would not be won, so the unprofiled step is the one to beat.
    beat = min(v.graph.step_ns, v.unprofiled_step_ns or v.graph.step_ns)
    helps = v.graph.helped and v.graph.graph_step_ns < (1 - lb.HELPED) * beat
    return [
        f"a CUDA graph of the whole step{has} would {'help' if helps else 'save little'}: about "
        f"{about(v.graph.graph_step_ns / 1e6)} ms (now {now}); modelled: durations and overlaps stay, gaps inside a "
        f"step become {v.graph.node_gap_ns:,.0f} ns ({v.graph.node_gap_from})"
    ]


def next_grid(found: IdleTime, top: int = 0) -> Grid:
    """Idle time of one variant by what came next."""
    table = found.by_next
    shown = len(table) if top <= 0 else min(top, len(table))
    unit = "/step" if found.step_count else ""
    rows = [
        (*(str(row[k]) for k in found.by), _count(found, int(row[lb.GAPS])), *_time(found, int(row[lb.IDLE_NS])),
         us(per_step(int(row[lb.HOST_NS]), found.step_count)))
        for _, row in table.head(shown).iterrows()
    ]  # fmt: skip
    if shown < len(table):
        gaps, idle, host = (int(table[c].iloc[shown:].sum()) for c in (lb.GAPS, lb.IDLE_NS, lb.HOST_NS))
        label = (f"({len(table) - shown} more)", *("",) * (len(found.by) - 1))
        rows.append((*label, _count(found, gaps), *_time(found, idle), us(per_step(host, found.step_count))))
    headers = (*found.by, f"gaps{unit}", f"idle us{unit}", "% of wall", f"the host's us{unit}")
    return Grid(f"{found.label}: what the GPU was idle in front of", headers, tuple(rows), left=len(found.by))


def calls_grid(found: IdleTime) -> Grid:
    """Launch calls of one variant."""
    unit = "/step" if found.step_count else ""
    rows = tuple(
        (str(row[lb.CALL]), _count(found, int(row[lb.CALLS])), us(per_step(int(row[lb.CALL_NS]), found.step_count)),
         us(float(row[lb.CALL_NS] / row[lb.CALLS])))
        for _, row in found.calls.iterrows()
    )  # fmt: skip
    return Grid(
        f"{found.label}: launch calls on the host", ("call", f"n{unit}", f"us{unit}", "mean us"), rows
    )


def hta_grid(label: str, rows: Sequence[dict[str, Any]], notes: Sequence[str]) -> Grid:
    """HTA's own idle time breakdown, of the whole trace."""
    cells = tuple(
        (str(r["stream"]), str(r["idle_category"]), f"{r['idle_time']:,.3f}", f"{r['idle_time_ratio']:.2f}")
        for r in rows
    )
    title = f"{label}: HTA's idle time breakdown (whole trace, by stream)"
    return Grid(title, ("stream", "category", "us", "ratio"), cells, notes=tuple(notes), left=2)


def idle_body(found: Sequence[IdleTime]) -> dict[str, Any]:
    """``idle --json``: one entry a variant."""
    return {"by": list(found[0].by), "variants": [_variant(v) for v in found]}


def _variant(v: IdleTime) -> dict[str, Any]:
    def rows(table: Any) -> list[dict[str, Any]]:
        return [{c: plain(row[c]) for c in table.columns} for _, row in table.iterrows()]

    return {
        "label": v.label, "rank": v.rank, "steps": v.step_count, "wall_ns": v.wall_ns, "busy_ns": v.busy_ns,
        "idle_ns": v.idle_ns, "causes_ns": dict(v.causes), "host_ns": v.host_ns, "launch_bound": v.launch_bound,
        "gaps": v.gap_count, "profiler_ns": v.profiler_ns, "between_steps_ns": v.between_steps_ns,
        "between_causes_ns": dict(v.between_causes), "between_gaps": v.between_count,
        "launches": v.launches, "cadence_ns": v.cadence_ns, "calls": rows(v.calls), "rows": rows(v.by_next),
        "each_step": rows(v.steps), "short_kernels": asdict(v.short),
        "graph": None if v.graph is None else {**asdict(v.graph), "method": "modelled"},
        "unprofiled_step_ns": v.unprofiled_step_ns, "reason": v.reason or None, "notes": [*_said(v), *v.notes],
    }  # fmt: skip


def idle_rows(found: Sequence[IdleTime]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``idle --csv``: one line per variant and cause."""
    columns = ["variant", "steps", "cause", "idle_ns", "share_of_wall"]
    return columns, [
        {
            "variant": v.label,
            "steps": v.step_count,
            "cause": c,
            "idle_ns": ns,
            "share_of_wall": ns / max(v.wall_ns, 1),
        }
        for v in found
        for c, ns in v.causes.items()
    ]
