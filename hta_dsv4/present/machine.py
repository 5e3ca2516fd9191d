"""Results for other programs: JSON (a contract, ``"schema": 1``, described in docs/json.md) and rows, as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import pandas as pd

from hta_dsv4.analysis import compare as cmp
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.compare import Comparison
from hta_dsv4.analysis.info import Info
from hta_dsv4.analysis.shares import RankShares, Shares
from hta_dsv4.classify.results import Explanation
from hta_dsv4.present.cells import plain

SCHEMA = 1
SCHEMAS = dict.fromkeys(
    ("diff", "scaling", "gate", "roofline", "findings", "whatif", "idle", "coverage", "ranks"), 2
)
"""Command -> its schema, where it is not :data:`SCHEMA`: 2 of what judges or compares, which is of own time, and of
idle time and coverage, which are of the steps without what lies between them."""

Table = tuple[list[str], list[dict[str, Any]]]
"""Columns and rows, as ``--csv`` and ``--parquet`` write them."""


def dumps(command: str, body: dict[str, Any]) -> str:
    """A JSON document of ours; never NaN or Infinity, names as written."""
    return _text({"schema": SCHEMAS.get(command, SCHEMA), "command": command, **body}, indent=1)


# In JSON text: an escape that is half a pair of surrogates (group 1), or anything else that a backslash begins.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-f]{2}\\u[dD][c-fC-F][0-9a-f]{2}|(\\u[dD][89a-f][0-9a-f]{2})|\\.", re.DOTALL
)


def _text(value: Any, indent: int | None = None) -> str:
    """JSON that every parser takes: no NaN or Infinity, and no half of a surrogate pair, which a path may hold."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False)
    text = _ESCAPE.sub(lambda m: "\\ufffd" if m.lastindex else m.group(), text)
    # json indents in Python, token by token: 20 times as slow, which 100,000 repeats of a sweep are long enough to feel
    return text if indent is None else msgspec.json.format(text, indent=indent)


def _finite(value: Any) -> Any:
    """The same with ``None`` for what is no finite number, such as 1e400 among a trace's own metadata."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def info_body(infos: Sequence[Info]) -> dict[str, Any]:
    """``info``: the trace's own fields at the top for one trace, ``traces`` for a folder of ranks."""
    bodies = [_one_info(i) for i in infos]
    return bodies[0] if len(bodies) == 1 else {"traces": bodies}


def _one_info(info: Info) -> dict[str, Any]:
    body = asdict(info)
    body["ranks"] = [{"rank": r, "label": label} for r, label in info.ranks.items()]
    return body


def shares_body(variants: Sequence[Shares]) -> dict[str, Any]:
    """``shares``: one entry a variant."""
    bodies = [_variant(v) for v in variants]
    for body, v in zip(bodies, variants, strict=True):
        body["notes"] += v.early_note
    return {"by": list(variants[0].by), "variants": bodies}


def comparison_body(comparison: Comparison) -> dict[str, Any]:
    """``diff``: as ``shares``, each row of a variant after the first with its change of own time against the first."""
    variants = [_compared(comparison.variants[0])]
    keys = list(comparison.by)
    for v in comparison.variants[1:]:
        body = _compared(v)
        deltas = comparison.table[v.label][[cmp.DELTA_NS_PER_STEP, cmp.DELTA_SHARE]]
        known = {tuple(row[k] for k in keys): row for row in body["rows"]}
        rows = []
        changes = zip(deltas.index, deltas[cmp.DELTA_NS_PER_STEP], deltas[cmp.DELTA_SHARE], strict=True)
        for key, change, share in changes:
            key = key if isinstance(key, tuple) else (key,)
            row = known.get(key) or _gone(keys, key, v.median_rank.steps)
            row[cmp.DELTA_NS_PER_STEP] = None if pd.isna(change) else int(change)
            row[cmp.DELTA_SHARE] = float(share)
            rows.append(row)
        body["rows"] = sorted(rows, key=lambda r: -r[sh.OWN_NS])
        variants.append(body)
    return {
        "time": "own",
        "by": keys,
        "base": comparison.variants[0].label,
        "variants": variants,
        "notes": list(comparison.notes),
    }


def _gone(keys: list[str], key: tuple[object, ...], steps: int) -> dict[str, Any]:
    """A row that only the base or another variant has."""
    per_step = 0 if steps else None
    return {
        **dict(zip(keys, key, strict=True)),
        sh.TIME_NS: 0, sh.TIME_NS_PER_STEP: per_step, sh.SHARE: 0.0, sh.LAUNCHES: 0, sh.LAUNCHES_PER_STEP: per_step,
        sh.MEAN_NS: None, sh.MEDIAN_NS: None, sh.OWN_NS: 0, sh.OWN_NS_PER_STEP: per_step, cmp.OWN_SHARE: 0.0,
    }  # fmt: skip


def _compared(shares: Shares) -> dict[str, Any]:
    """A variant whose rows say their part of its own time, too."""
    body = _variant(shares)
    for part, ranks in ((body, shares.median_rank), *zip(body.get("ranks", []), shares.ranks, strict=False)):
        total = ranks.extent.own_ns
        for row in part["rows"]:
            row[cmp.OWN_SHARE] = row[sh.OWN_NS] / total if total else 0.0
        part["rows"].sort(key=lambda row: -row[sh.OWN_NS])
    return body


def _variant(shares: Shares) -> dict[str, Any]:
    body: dict[str, Any] = {
        "label": shares.label,
        **_rank(shares.median_rank, shares.by),
        "notes": list(shares.notes),
    }
    if len(shares.ranks) > 1:
        body["median_rank"] = shares.median_rank.rank
        body["ranks"] = [{"rank": r.rank, **_rank(r, shares.by)} for r in shares.ranks]
    return body


def _rank(rank: RankShares, keys: Sequence[str]) -> dict[str, Any]:
    e = rank.extent
    return {
        "steps": rank.steps,
        "sum_ns": e.sum_ns,
        "kernel_sum_ns": e.kernel_sum_ns,
        "own_ns": e.own_ns,
        "early_ns": e.early_ns,
        "busy_ns": e.busy_ns,
        "wall_ns": e.span_ns,
        "idle_ns": e.span_ns - e.busy_ns,
        "step_wall_ns": e.wall_ns if rank.steps else None,
        "between_ns": e.between_ns if rank.steps else None,
        "gaps": e.gaps if rank.steps else None,
        "launches": e.launches,
        "outside": {"launches": rank.outside, "sum_ns": rank.outside_ns},
        "rows": _rows(rank.table, (*keys, *_ROW)),
    }


_ROW = (
    sh.TIME_NS,
    sh.TIME_NS_PER_STEP,
    sh.SHARE,
    sh.LAUNCHES,
    sh.LAUNCHES_PER_STEP,
    sh.MEAN_NS,
    sh.MEDIAN_NS,
    sh.OWN_NS,
    sh.OWN_NS_PER_STEP,
)


def _rows(table: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """A table's rows as plain values; by column, as a row of a frame has one type and integers would turn float."""
    values = zip(*([plain(v) for v in table[c]] for c in columns), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def shares_rows(variants: Sequence[Shares]) -> Table:
    """Columns and rows of ``shares --csv``: one line per variant, rank and row."""
    keys = list(variants[0].by)
    rows = [
        {"variant": v.label, "rank": r.rank, "steps": r.steps, **row}
        for v in variants
        for r in v.ranks
        for row in _rows(r.table, (*keys, *_ROW))
    ]
    return ["variant", "rank", "steps", *keys, *_ROW], rows


def comparison_rows(comparison: Comparison) -> Table:
    """Columns and rows of ``diff --csv``: one line per variant and row, with the change against the first."""
    body = comparison_body(comparison)
    keys = list(comparison.by)
    rows = [
        {"variant": v["label"], "steps": v["steps"], **row} for v in body["variants"] for row in v["rows"]
    ]
    return ["variant", "steps", *keys, *_ROW, cmp.OWN_SHARE, cmp.DELTA_NS_PER_STEP, cmp.DELTA_SHARE], rows


def table_csv(columns: list[str], rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; missing cells empty; text quoted, so that no name splits a cell, and otherwise as written.

    A spreadsheet takes a cell that begins with ``=`` for a formula even so: import the columns of names as text.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writeheader()
    writer.writerows([{c: "" if r.get(c) is None else r[c] for c in columns} for r in rows])
    return out.getvalue()


def info_rows(infos: Sequence[Info]) -> Table:
    """Columns and rows of ``info --csv``: one line per trace with its counts and times."""
    columns = [
        "path",
        "kernels",
        "memcpys",
        "memsets",
        "kernel_sum_ns",
        "sum_ns",
        "own_ns",
        "busy_ns",
        "span_ns",
        "steps",
        "partial",
    ]
    return columns, [{c: getattr(i, c) for c in columns} for i in infos]


def explain_lines(found: Sequence[Explanation]) -> str:
    """``explain``: JSON Lines, one object a name."""
    return "".join(_text(_explanation(e)) + "\n" for e in found)


def _explanation(e: Explanation) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": e.name,
        "bucket": e.bucket,
        "role": e.role,
        "rule": e.rule,
        "candidates": [asdict(c) for c in e.candidates],
        "ambiguous": e.ambiguous,
        "comment": e.comment,
    }


def explain_rows(found: Sequence[Explanation]) -> Table:
    """Columns and rows of ``explain --csv``: one line per name."""
    columns = ["name", "bucket", "role", "rule", "ambiguous"]
    return columns, [{c: getattr(e, c) for c in columns} for e in found]
