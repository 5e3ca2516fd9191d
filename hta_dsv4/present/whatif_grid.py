"""A projected step as a grid, as JSON and as CSV rows."""

from __future__ import annotations

from typing import Any

from hta_dsv4.analysis.profile import StepTimes
from hta_dsv4.analysis.whatif import WhatIf
from hta_dsv4.present.grid import ABSENT, Grid, steps_said, us
from hta_dsv4.present.modelled import about, about_us

_MEASURES = (
    ("own", "GPU time, streams added up", "own_ns"),
    ("busy", "union of intervals", "busy_ns"),
    ("idle", "wall - busy", "idle_ns"),
    ("wall", "first start to last end", "wall_ns"),
)


def whatif_grids(found: WhatIf) -> tuple[Grid, Grid]:
    """The step before and after, then what each change did."""
    rows: list[tuple[str, ...]] = []
    for name, what, key in _MEASURES:
        before, after = getattr(found.before, key), getattr(found.after, key)
        rows.append(
            (f"{name}: {what}", us(before), about_us(after), _change(before, after), _interval(found, name))
        )
    if found.unprofiled is not None:
        before, after = found.unprofiled
        rows.append(("wall without the profiler", us(before), about_us(after), _change(before, after), ""))
    if found.batch is not None:
        rows.append(_tokens(found, "tok/s", found.before.wall_ns, found.after.wall_ns, found.wall_range))
        if found.unprofiled is not None:
            rows.append(_tokens(found, "tok/s without the profiler", *found.unprofiled, None))
    step = Grid(
        f"{found.label}: what if, per step, {steps_said(found.steps)}",
        ("", "recorded us", "projected us", "change", "range"),
        tuple(rows), notes=tuple(f"assumed: {a}" for a in found.assumptions),
    )  # fmt: skip
    effects = tuple(
        (
            e.text, e.meaning, f"{e.launches:,.5g}", us(e.time_ns), f"{e.launches_after:,.5g}",
            about_us(e.time_ns_after), e.bound,
            f"{e.untouched:,.5g} unchanged" if e.untouched else "",
        )
        for e in found.effects
    )  # fmt: skip
    headers = (
        "change",
        "read as",
        "n/step",
        "us/step",
        "n/step then",
        "us/step then",
        "floor by",
        "no floor known",
    )
    return step, Grid("changes, in order", headers, effects, left=2, prose=True)


def _change(before: int, after: int) -> str:
    return f"{100 * (after - before) / before:+.1f} %" if before else ABSENT


def _interval(found: WhatIf, name: str) -> str:
    low, high = {"own": found.own_range, "wall": found.wall_range}.get(name, (None, None))
    return "" if low is None else f"{about_us(low)} .. {about_us(high)}"


def _tokens(
    found: WhatIf, name: str, before: int, after: int, span: tuple[int, int] | None
) -> tuple[str, ...]:
    rates = [found.tokens_per_s(t) for t in (before, after)]
    cells = [about(r) for r in rates]
    change = ABSENT if rates[0] is None or rates[1] is None else f"{100 * (rates[1] / rates[0] - 1):+.1f} %"
    between = ""
    if span is not None:
        low, high = (found.tokens_per_s(t) for t in (span[1], span[0]))
        between = "" if low is None or high is None else f"{about(low)} .. {about(high)}"
    return (name, *cells, change, between)


def whatif_body(found: WhatIf) -> dict[str, Any]:
    """``whatif --json``."""
    return {
        "label": found.label,
        "time": "own",
        "steps": found.steps,
        "concurrency": found.batch,
        "graph": found.graph,
        "per_step": {"recorded": {**_times(found.before), **_recorded(found)}, "projected": _times(found.after)},
        "own_range_ns": list(found.own_range),
        "wall_range_ns": list(found.wall_range),
        "tokens_per_s": {
            "recorded": found.tokens_per_s(found.before.wall_ns),
            "projected": found.tokens_per_s(found.after.wall_ns),
            "range": [found.tokens_per_s(t) for t in reversed(found.wall_range)] if found.batch else None,
        },
        "unprofiled_wall_ns": None
        if found.unprofiled is None
        else {"recorded": found.unprofiled[0], "projected": found.unprofiled[1]},
        "changes": [
            {
                "text": e.text, "meaning": e.meaning, "launches_per_step": e.launches, "time_ns_per_step": e.time_ns,
                "launches_per_step_after": e.launches_after, "time_ns_per_step_after": e.time_ns_after,
                "unchanged_launches_per_step": e.untouched, "bound": e.bound or None,
            }
            for e in found.effects
        ],
        "assumptions": list(found.assumptions),
    }  # fmt: skip


def _recorded(found: WhatIf) -> dict[str, int]:
    """What only a recorded step has: early time, and the sum with it."""
    return {"early_ns": found.early_ns, "sum_ns": found.before.own_ns + found.early_ns}


def _times(t: StepTimes) -> dict[str, int]:
    return {
        "own_ns": t.own_ns, "overlap_ns": t.overlap_ns, "idle_ns": t.idle_ns, "busy_ns": t.busy_ns, "wall_ns": t.wall_ns
    }  # fmt: skip


def whatif_rows(found: WhatIf) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``whatif --csv``: one line per measure."""
    rows = [
        {"variant": found.label, "measure": name, "recorded_ns": getattr(found.before, key),
         "projected_ns": getattr(found.after, key)}
        for name, _, key in _MEASURES
    ]  # fmt: skip
    return ["variant", "measure", "recorded_ns", "projected_ns"], rows
