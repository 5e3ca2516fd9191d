"""Ranks side by side, and their collectives, as text; the JSON and the rows are in :mod:`.ranks_data`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.analysis.collective_layers import spell
from hta_dsv4.analysis.collective_speed import CollectiveSpeeds
from hta_dsv4.analysis.communication import Communication, named, place_name
from hta_dsv4.analysis.ranks import RankTable
from hta_dsv4.analysis.shares import median_name, rank_median
from hta_dsv4.analysis.stragglers import HOST, Straggler
from hta_dsv4.analysis.waits import GroupWaits
from hta_dsv4.present.grid import ABSENT, Grid, per_step, steps_said, us
from hta_dsv4.present.speeds_grid import speeds_grid

_SIDE_BY_SIDE = 8  # ranks with a column of their own; more are told by median and spread
_LISTED = 16  # ranks listed one by one; of more, those with most work
_WAITS = ("transfer_ns", "wait_ns")
_DIFFERENT = 0.01  # of work, from which a rank is called slower

Found = tuple[RankTable, Communication]
"""Both halves of what ``ranks`` says about one variant."""


def ranks_grids(found: Found, top: int = 0, speeds: CollectiveSpeeds | None = None) -> list[Grid]:
    """Everything ``ranks`` says about one variant.

    Args:
        found: its ranks and their collectives.
        top: rows of each table; 0 for all.
        speeds: what its collectives carry, and how fast.
    """
    table, said = found
    grids = [overview_grid(table, said, top)]
    if len(table.ranks) > 1:
        grids += [spread_grid(table, top), blame_grid(said, table.notes)]
        grids += [
            g for g in (causes_grid(said, top), layers_grid(said, top), clocks_grid(said, top)) if g.rows
        ]
    if speeds is not None and speeds.rows:
        grids.append(speeds_grid(speeds, top))
    return grids


def overview_grid(table: RankTable, said: Communication, top: int = 0) -> Grid:
    """One row per rank: sum, own work, transfer, wait, busy, idle, wall; of many, those with most work."""
    unit = "us/step" if table.per_step else "us"
    many = len(table.ranks) > _LISTED and 0 < top < len(table.ranks)
    view = table.overview.assign(**dict.fromkeys(_WAITS, np.nan))
    waits = said.by_rank
    for i, (rank, steps) in enumerate(zip(view["rank"], view["steps"], strict=True)):
        mine = waits[waits["rank"] == rank] if len(waits) else waits
        for c in _WAITS if len(mine) else ():
            view.loc[i, c] = per_step(int(mine[c].sum()), int(steps) if table.per_step else 0)
    if many:
        view = view.sort_values("own_work_ns", ascending=False, kind="stable").reset_index(drop=True)
    rows = [
        (str(int(r["rank"])), f"{int(r['steps']):,}", *_rank_cells(r))
        for r in view.head(top if many else len(view)).to_dict("records")
    ]
    if many:
        rest = view.iloc[top:]
        middle = {
            name: rank_median(rest[name].dropna().to_numpy()) if rest[name].notna().any() else np.nan
            for name in rest
        }
        rows.append((f"({len(rest)} more: {median_name(len(rest))})", "", *_rank_cells(middle)))
    headers = (
        "rank", "steps", f"sum {unit}", "own work" if table.early else "work",
        f"% over {median_name(len(table.ranks))}", "communication", "transfer", "wait", "busy", "idle", "wall",
    )  # fmt: skip
    size = table.world_size
    of = f" of {size}" if size and size != len(table.ranks) else ""
    ranks = f"{len(table.ranks)}{of} ranks, never summed" if len(table.ranks) > 1 else f"1{of} rank"
    most = ", those with most work first" if many else ""
    alone = tuple(n for n in said.notes if n not in table.notes) if len(table.ranks) < 2 else ()
    return Grid(
        f"{table.label}: {ranks}{most}", headers, tuple(rows), lead=(*table.mixed, *_slowest_said(table)),
        notes=(*(n for n in table.notes if n not in table.mixed), *alone),
    )  # fmt: skip


def _rank_cells(row: Mapping[Hashable, Any]) -> tuple[str, ...]:
    def time(name: str) -> str:
        return ABSENT if pd.isna(row[name]) else us(round(row[name]))

    over = row["over_median"]
    return (
        time("sum_ns"), time("own_work_ns"), ABSENT if pd.isna(over) else f"{100 * over:+.1f}",
        time("communication_ns"), *map(time, _WAITS), time("busy_ns"), time("idle_ns"), time("wall_ns"),
    )  # fmt: skip


def _slowest_said(table: RankTable) -> list[str]:
    if len(table.ranks) < 2:
        return []
    view = table.overview.set_index("rank")
    slow = table.slowest
    over = float(view["over_median"].to_numpy(dtype=float, na_value=np.nan)[list(view.index).index(slow)])
    work = "work (own time without communication)"
    middle = "other rank" if len(table.ranks) == 2 else f"{median_name(len(table.ranks))} rank"
    if not over >= _DIFFERENT:  # nor where it is unknown
        return [f"no rank has over {100 * _DIFFERENT:.0f} % more {work} than the {middle}"]
    return [f"rank {slow} has most {work}, {100 * over:.1f} % over the {middle}"]


def spread_grid(table: RankTable, top: int = 0) -> Grid:
    """Own time of each key on each rank, the spread, and who has most."""
    wide, rows = table.wide, []
    each = len(table.ranks) <= _SIDE_BY_SIDE
    found = table.table
    shown = len(found) if top <= 0 else min(top, len(found))
    for i in range(shown):
        row = found.iloc[i]
        cells = [us(int(v)) for v in wide.iloc[i]] if each else [us(int(row["own_min_ns"]))]
        most = str(int(row["most_rank"])) if row["own_spread_ns"] else ABSENT
        median = us(int(row["own_median_ns"]))
        largest = [] if each else [us(int(row["own_max_ns"]))]
        rows.append(
            (*(str(row[k]) for k in table.by), *cells, median, *largest, us(int(row["own_spread_ns"])), most)
        )
    if shown < len(found):
        rest = wide.iloc[shown:].sum()
        cells = [us(int(v)) for v in rest] if each else [us(int(rest.min()))]
        largest = [] if each else [us(int(rest.max()))]
        label = (f"({len(found) - shown} more)", *[""] * (len(table.by) - 1))
        rows.append(
            (*label, *cells, us(int(rank_median(rest.to_numpy()))), *largest, us(int(np.ptp(rest))), "")
        )
    unit = ("own " if table.early else "") + ("us/step" if table.per_step else "us")
    columns = [f"rank {r} {unit}" for r in wide.columns] if each else [f"least {unit}"]
    headers = (
        *table.by,
        *columns,
        median_name(wide.shape[1]),
        *([] if each else ["most"]),
        "spread",
        "most on rank",
    )
    return Grid(f"{table.label}: by {', '.join(table.by)}", headers, tuple(rows), left=len(table.by))


def blame_grid(said: Communication, known: Sequence[str] = ()) -> Grid:
    """Late ranks that are blamed, with cause and layer; or that none is, and why a group was not looked at.

    Args:
        said: the collectives.
        known: notes that stand elsewhere already.
    """
    alike: dict[tuple[str, ...], list[tuple[GroupWaits, Straggler]]] = {}
    for g, s in said.stragglers:  # a kernel that is slower in every layer is one line
        alike.setdefault((g.aligned.group, str(s.rank), s.cause, _kernels(s)), []).append((g, s))
    rows = [_blamed(found) for found in alike.values()]
    rows += [_hidden(g, s) for g, s in said.hidden]
    lead = [_group_said(g) for g in said.groups]
    lead += [f"{named(u)}: collectives not aligned, so no waits: {u.reason}" for u in said.failed]
    if said.groups and not said.stragglers:
        lead.append("nothing is blamed: no rank is late again and again at one place for a reason of its own")
    if any(s.of_steps == 1 for _, s in said.stragglers):
        lead.append("seen in one step only: whether it comes again is not known")
    headers = ("rank", "where", "had more of", "late us", "others waited us", "extra us", "steps")
    notes = tuple(n for n in said.notes if n not in known)
    return Grid(
        f"{said.label}: late ranks", headers, tuple(rows), left=3, lead=tuple(lead), notes=_own(said, notes)
    )


def _blamed(found: list[tuple[GroupWaits, Straggler]]) -> tuple[str, ...]:
    """One line for late arrivals of one rank with one cause: where, and times per step added up."""
    g, first = found[0]
    where = place_name(g, first.place) + (f" and {len(found) - 1} more" if len(found) > 1 else "")
    steps = sorted({(s.steps, s.of_steps) for _, s in found})
    times = (sum(getattr(s, t) for _, s in found) for t in ("late_ns", "waited_ns", "extra_ns"))
    cause = "its host launched late" if first.cause == HOST else _kernels(first)
    said = (
        f"{steps[0][0]} of {steps[0][1]}"
        if len(steps) == 1
        else f"{steps[0][0]}-{steps[-1][0]} of {steps[-1][1]}"
    )
    return str(first.rank), where, cause, *(us(t) for t in times), said


def _hidden(g: GroupWaits, s: Straggler) -> tuple[str, ...]:
    where = place_name(g, s.place) + " (hidden)"
    return (
        str(s.rank),
        where,
        _kernels(s),
        us(s.late_ns),
        us(s.waited_ns),
        us(s.extra_ns),
        f"{s.steps} of {s.of_steps}",
    )


def _own(said: Communication, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Notes about collectives, and how a layer is known where only by count."""
    counted = any(g.layers.how == "count" for g in said.groups)
    more = (
        "layers are told from the number of all-reduces in a step (inferred): the embedding's, then two a layer",
    )
    hidden = (
        "hidden: more work on that rank than on the others, but it is not mainly what they waited for; not blamed",
    )
    return notes + (more if counted else ()) + (hidden if said.hidden else ())


def _group_said(g: GroupWaits) -> str:
    which = g.counted
    steps = g.steps
    transfer = us(per_step(int(g.transfer[which].sum()), steps))
    wait = g.wait[:, which].sum(axis=1)
    each = " to ".join(dict.fromkeys(us(per_step(int(w), steps)) for w in (wait.min(), wait.max())))
    number = (
        f"{int(which.sum()) / steps:,.0f} collectives a step"
        if steps
        else f"{int(which.sum()):,} collectives"
    )
    unit = "us a step" if steps else "us"
    counted = f" ({steps_said(steps)})" if steps else ""
    start = ""
    if g.step_start is not None:
        rank, late, n, of = g.step_start
        start = f"; steps begin apart: rank {rank} is last to the first collective in {n} of {of} by {us(late)} us"
    return (
        f"{named(g)}: {number}{counted}, matched by {g.aligned.how}; transfer {transfer}, wait {each} {unit} "
        f"per rank; lateness below {us(g.noise_ns)} us is not looked at{start}"
    )


def _kernels(s: Straggler) -> str:
    if not s.extras:
        return "work"
    first = s.extras[0]
    origin = f", {first.origin}" if first.origin not in ("", "unknown") else ""
    more = f" and {len(s.extras) - 1} more" if len(s.extras) > 1 else ""
    return f"{first.bucket}{origin}: {first.kernel}{more}"


def causes_grid(said: Communication, top: int = 0) -> Grid:
    """What late ranks had more of than the others, over all collectives that somebody was late to."""
    table = said.causes
    shown = len(table) if top <= 0 else min(top, len(table))
    steps = max((g.steps for g in said.groups), default=0)
    rows = [
        (str(r["bucket"]), str(r["origin"] or ABSENT), str(int(r["late_rank"])),
         us(per_step(int(r["late_ns"]), steps)), f"{int(r['collectives']):,}")
        for _, r in table.head(shown).iterrows()
    ]  # fmt: skip
    if shown < len(table):
        rest = int(table["late_ns"].iloc[shown:].sum())
        rows.append((f"({len(table) - shown} more)", "", "", us(per_step(rest, steps)), ""))
    lead = (
        "lateness beyond the noise, blamed or not, by what the late rank had more of than the others (an estimate)",
    )
    headers = ("bucket", "origin", "late rank", "late us" + ("/step" if steps else ""), "collectives")
    return Grid(f"{said.label}: behind late arrivals", headers, tuple(rows), left=3, lead=lead)


def layers_grid(said: Communication, top: int = 0) -> Grid:
    """Transfer and wait by layer, those waited for most first."""
    table = said.by_layer
    if not len(table):
        return Grid(f"{said.label}: collectives by layer", (), ())
    ordered = table.sort_values("wait_ns", ascending=False, kind="stable")
    shown = len(ordered) if top <= 0 else min(top, len(ordered))
    several = len(said.groups) > 1
    rows = []
    for _, r in ordered.head(shown).iterrows():
        layer = None if pd.isna(r["layer"]) else int(r["layer"])
        steps = int(r["steps"])
        times = (us(per_step(int(r[c]), steps)) for c in ("transfer_ns", "wait_ns", "most_wait_ns"))
        group = (str(r["group"] or ABSENT),) if several else ()
        rows.append(
            (spell(layer, r["half"] or None) or ABSENT, *group, *times, str(int(r["most_wait_rank"])))
        )
    if shown < len(ordered):
        rest = ordered.iloc[shown:]
        steps = int(rest["steps"].max())
        times = (us(per_step(int(rest[c].sum()), steps)) for c in ("transfer_ns", "wait_ns"))
        rows.append((f"({len(rest)} more)", *([""] * several), *times, "", ""))
    headers = ("where", *(["group"] * several), "transfer us/step", "mean wait", "most wait", "on rank")
    return Grid(
        f"{said.label}: collectives by layer, most waited for first", headers, tuple(rows), left=1 + several
    )


def clocks_grid(said: Communication, top: int = 0) -> Grid:
    """Each rank's clock against its group's first rank; of many, those that fit worst."""
    fits = list(said.clocks)
    many = len(fits) > _LISTED and 0 < top < len(fits)
    if many:
        fits = sorted(fits, key=lambda f: -f[1].p95_ns)[:top]
    rows: list[tuple[str, ...]] = [
        (name or ABSENT, str(c.rank), str(c.reference), f"{c.collectives:,}", us(c.offset_ns),
         f"{c.drift_ppm:+.3f}" if c.drift_resolved else "not resolved", us(c.p50_ns), us(c.p95_ns), us(c.max_ns))
        for name, c in fits
    ]  # fmt: skip
    if many:
        rows.append((f"({len(said.clocks) - top} more, fitting better)", *[""] * 8))
    headers = (
        "group", "rank", "to rank", "collectives", "offset us", "drift us/s", "residual p50 us", "p95", "max",
    )  # fmt: skip
    hosts = [c.one_host for _, c in said.clocks]
    said_hosts = (
        "all on one host by their files: offsets near 0 are expected" if hosts and all(hosts)
        else "on different hosts by their files: offsets are those of the hosts' clocks" if False in hosts
        else "the files do not say whether they come from one host"
    )  # fmt: skip
    lead = ("fitted to the ends of collectives, which all ranks leave together; " + said_hosts,)
    return Grid(f"{said.label}: clocks of the ranks", headers, tuple(rows), left=3, lead=lead)
