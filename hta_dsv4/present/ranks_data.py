"""What ``ranks`` says, for other programs: JSON (described in docs/ranks.md) and rows for CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from hta_dsv4.analysis.clocks import ClockFit
from hta_dsv4.analysis.collective_speed import CollectiveSpeeds
from hta_dsv4.analysis.communication import Communication, causes_table, layer_table, place_name, rank_table
from hta_dsv4.analysis.parallel_gain import ParallelGain
from hta_dsv4.analysis.ranks import RankTable
from hta_dsv4.analysis.stragglers import Straggler
from hta_dsv4.analysis.waits import GroupWaits
from hta_dsv4.present.cells import plain
from hta_dsv4.present.machine import Table
from hta_dsv4.present.parallel_grid import parallel_body, parallel_table
from hta_dsv4.present.ranks_grid import Found
from hta_dsv4.present.speeds_grid import SPEED_COLUMNS, speeds_body, speeds_records

_COLUMNS = {
    "ranks": (
        "rank", "steps", "launches", "sum_ns", "work_ns", "communication_ns", "transfer_ns", "wait_ns", "busy_ns",
        "idle_ns", "wall_ns", "over_median", "own_ns", "own_work_ns",
    ),
    "collectives": (
        "group", "k", "step", "place", "layer", "half", "what", "elements", "rank", "start_ns", "dur_ns",
        "transfer_ns", "wait_ns", "late_rank", "lateness_ns", "beyond_noise",
    ),
    "layers": (
        "group", "layer", "half", "steps", "collectives", "transfer_ns", "wait_ns", "most_wait_ns", "most_wait_rank",
    ),
    "causes": ("late_rank", "bucket", "origin", "late_ns", "collectives"),
    "clocks": ("group", *(f.name for f in fields(ClockFit))),
    "late": (
        "group", "rank", "where", "layer", "half", "place", "steps", "of_steps", "late_ns", "waited_ns", "cause",
        "extra_ns", "threshold_ns", "bucket", "origin", "kernel", "hidden",
    ),
    "single": ("single", "ranks", "key", "single_ns", "rank_ns", "above_ns", "how"),
    "messages": SPEED_COLUMNS,
}  # fmt: skip
RANKS, COLLECTIVES, LAYERS, CAUSES, CLOCKS, LATE, SINGLE, MESSAGES = (
    "ranks",
    "collectives",
    "layers",
    "causes",
    "clocks",
    "late",
    "single",
    "messages",
)
ROWS = (RANKS, COLLECTIVES, MESSAGES, LAYERS, CAUSES, CLOCKS, LATE, SINGLE)
"""Tables that ``--csv`` and ``--parquet`` can write."""


def ranks_body(
    found: Sequence[Found], gains: Sequence[ParallelGain] = (), speeds: Sequence[CollectiveSpeeds] = ()
) -> dict[str, Any]:
    """``ranks --json``: one entry a variant.

    Args:
        found: one per variant.
        gains: of each variant over one GPU, in their order; none where no single GPU is named.
        speeds: what the collectives of each variant carry, in their order.
    """
    bodies = [_variant(one) for one in found]
    for body, gain in zip(bodies, gains, strict=False):
        body["single"] = parallel_body(gain)
    for body, speed in zip(bodies, speeds, strict=False):
        body["messages"] = speeds_body(speed)
    return {"variants": bodies}


def _variant(one: Found) -> dict[str, Any]:
    table, said = one
    total, own = table.wide_sum, table.wide
    return {
        "label": table.label, "by": list(table.by), "world_size": table.world_size, "missing": list(table.missing),
        "per_step": table.per_step, "slowest": table.slowest, "ranks": _records(table.overview),
        "rows": [
            {**row, "each_ns": _each(total, values), "own_each_ns": _each(own, own_values)}
            for row, values, own_values in zip(
                _records(table.table), total.to_numpy(), own.to_numpy(), strict=True
            )
        ],
        "groups": [_group(g) for g in said.groups],
        "unaligned": [{"group": u.group, "ranks": list(u.ranks), "reason": u.reason} for u in said.failed],
        "notes": list(dict.fromkeys([*table.notes, *said.notes])),
    }  # fmt: skip


def _each(wide: pd.DataFrame, values: Iterable[int]) -> dict[str, int]:
    return {str(rank): int(ns) for rank, ns in zip(wide.columns, values, strict=True)}


def _group(g: GroupWaits) -> dict[str, Any]:
    a = g.aligned
    return {
        "group": a.group, "ranks": list(a.ranks), "absent": list(a.absent), "matched_by": a.how, "steps": g.steps,
        "collectives": int(g.counted.sum()), "collectives_per_step": a.places or None,
        "transfer_ns": int(g.transfer[g.counted].sum()), "noise_ns": g.noise_ns, "layers_by": g.layers.how,
        "ranks_waits": _records(rank_table(g)), "clocks": [asdict(c) for c in g.clocks],
        "step_start": None if g.step_start is None else dict(
            zip(("rank", "late_ns", "steps", "of_steps"), g.step_start, strict=True)
        ),
        "late": [_late(g, s) for s in g.stragglers], "hidden": [_late(g, s) for s in g.hidden],
        "causes": _records(causes_table(g)),
        "layers": _records(layer_table(g)),
    }  # fmt: skip


def _late(g: GroupWaits, s: Straggler) -> dict[str, Any]:
    at = int((g.aligned.place == s.place).argmax())
    return {
        **asdict(s), "where": place_name(g, s.place), "layer": g.layers.layer[at], "half": g.layers.half[at],
        "extras": [asdict(x) for x in s.extras],
    }  # fmt: skip


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(c): plain(row[c]) for c in table.columns} for row in table.to_dict("records")]


def ranks_rows(
    found: Sequence[Found], of: str = RANKS, gains: Sequence[ParallelGain] = (),
    speeds: Sequence[CollectiveSpeeds] = (),
) -> Table:  # fmt: skip
    """Columns and rows of ``ranks --csv``; the columns are the same whether or not there is a row.

    Args:
        found: one per variant.
        of: which table: one of :data:`ROWS`.
        gains: as for :func:`ranks_body`.
        speeds: as for :func:`ranks_body`.
    """
    if of == MESSAGES:
        rows = [{"variant": s.label, **row} for s in speeds for row in speeds_records(s)]
    elif of == SINGLE:
        rows = [{"variant": g.many, **row} for g in gains for row in _records(parallel_table(g))]
    else:
        tables = [(table.label, _table(table, said, of)) for table, said in found]
        rows = [{"variant": label, **row} for label, table in tables for row in _records(table)]
    columns = ["variant", *_COLUMNS[of]]
    return columns, [{c: r.get(c) for c in columns} for r in rows]


def _table(table: RankTable, said: Communication, of: str) -> pd.DataFrame:
    if of == RANKS:
        return _ranks_long(table.overview, said.by_rank, table.per_step)
    if of == CLOCKS:
        return pd.DataFrame([{"group": name, **asdict(c)} for name, c in said.clocks])
    if of == LATE:
        return pd.DataFrame([_flat(g, s) for g, s in (*said.stragglers, *said.hidden)])
    return {COLLECTIVES: said.table, LAYERS: said.by_layer, CAUSES: said.causes}[of]


def _ranks_long(overview: pd.DataFrame, waits: pd.DataFrame, per_step: bool) -> pd.DataFrame:
    """The overview with each rank's transfer and wait, in the overview's unit."""
    if not len(waits):
        return overview.assign(transfer_ns=None, wait_ns=None)
    own = (
        waits.groupby("rank")[["transfer_ns", "wait_ns"]]
        .sum()
        .reindex(overview["rank"])
        .reset_index(drop=True)
    )
    divide = overview["steps"].clip(lower=1) if per_step else 1
    return overview.assign(**{c: (own[c] / divide).round().astype("Int64") for c in own.columns})


def _flat(g: GroupWaits, s: Straggler) -> dict[str, Any]:
    first = s.extras[0] if s.extras else None
    row = {"group": g.aligned.group, **_late(g, s)}
    row.pop("extras")
    return {
        **row, "bucket": first.bucket if first else None, "origin": first.origin if first else None,
        "kernel": first.kernel if first else None,
    }  # fmt: skip
