"""Several ranks beside one GPU as a grid, as JSON and as CSV rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hta_dsv4.analysis.parallel_gain import NEW, PARTLY, WHOLE, ParallelGain, Row
from hta_dsv4.present.grid import Grid, us

_SAID = 0.03
"""Part of what is lost from which a row is named."""


def parallel_grid(found: ParallelGain, top: int = 0) -> Grid:
    """Speed-up and efficiency above, each row's time on one GPU, an N-th of it and on a rank below.

    Args:
        found: the comparison.
        top: rows; 0 for all.
    """
    n = found.ranks
    shown = found.rows[:top] if top else found.rows
    rows = [_cells(r, n) for r in shown]
    rest = found.rows[len(shown) :]
    if rest:
        times = [sum(r.single_ns for r in rest), sum(r.rank_ns for r in rest)]
        rows.append(
            (
                f"({len(rest)} more)", *[""] * (len(found.by) - 1), us(times[0]), us(times[0] / n), us(times[1]),
                us(sum(r.excess_ns for r in rest)), "", "",
            )
        )  # fmt: skip
    total = found.own_ns - found.single_own_ns / n
    footer = (
        "GPU time (own)", *[""] * (len(found.by) - 1), us(found.single_own_ns), us(found.single_own_ns / n),
        us(found.own_ns), us(float(total)), _times(found.single_own_ns, found.own_ns), "",
    )  # fmt: skip
    headers = (*found.by, "one GPU us/step", f"1/{n} of it", "a rank", "above 1/N", "times faster", "")
    return Grid(
        f"{found.many}: {n} ranks beside one GPU ({found.single})", headers, tuple(rows), (footer,),
        (*sentences(found), *found.notes), left=len(found.by),
    )  # fmt: skip


def sentences(found: ParallelGain) -> list[str]:
    """What the ranks win and what they pay, one sentence each."""
    n, batch = found.ranks, found.batch
    times = found.single_step_ns / 1e6, found.step_ns / 1e6
    step = f"step {found.step_from}: {times[0]:,.2f} ms on one GPU, {times[1]:,.2f} ms on {n}"
    if batch is None or not found.comparable:
        return [step]
    one, all_ = found.tokens_per_s(found.single_step_ns), found.tokens_per_s(found.step_ns)
    assert one is not None
    assert all_ is not None
    out = [
        f"{step}: {found.speedup:.2f} times as fast, efficiency {100 * found.efficiency:.0f} %; {one:,.0f} tok/s on "
        f"one, {all_:,.0f} on {n}, {all_ / n:,.0f} per GPU",
        f"a step takes {found.lost_ns / 1e6:,.2f} ms more than {_nth(n)} of one GPU's: {_lost(found)}",
    ]
    if found.transfer_ns is not None and found.wait_ns is not None:
        out.append(
            f"communication of rank {found.rank}: {us(found.transfer_ns)} us transfer and {us(found.wait_ns)} us "
            "waiting a step; hta-dsv4 ranks says who is waited for"
        )
    return out


def _lost(found: ParallelGain) -> str:
    """The rows that cost most above the ideal, and what is left of the loss."""
    least = _SAID * abs(found.lost_ns)
    parts = [
        f"{r.excess_ns / 1e6:,.2f} {', '.join(r.key)} ({_said(r)})"
        for r in found.rows
        if r.excess_ns >= least
    ]
    less = sum(r.excess_ns for r in found.rows if r.excess_ns < least)
    return ", ".join(
        [
            *parts,
            f"{less / 1e6:+,.2f} other rows",
            f"{found.rest_ns / 1e6:+,.2f} idle, overlap and the profiler's",
        ]
    )


def _said(row: Row) -> str:
    return {WHOLE: "whole on every rank", NEW: "only with ranks", PARTLY: "partly divided"}.get(
        row.how, row.how
    )


def _nth(n: int) -> str:
    return {2: "half", 3: "a third", 4: "a quarter"}.get(n, f"1/{n}")


def _cells(row: Row, n: int) -> tuple[str, ...]:
    return (
        *row.key, us(row.single_ns), us(row.single_ns / n), us(row.rank_ns), us(row.excess_ns),
        _times(row.single_ns, row.rank_ns), row.how,
    )  # fmt: skip


def _times(before: int, after: int) -> str:
    return f"{before / after:.2f}" if before and after else ""


def parallel_body(found: ParallelGain) -> dict[str, Any]:
    """The ``single`` of a variant of ``ranks --json``."""
    told = found.batch is not None and found.comparable
    return {
        "label": found.single, "time": "own", "ranks": found.ranks, "rank": found.rank, "by": list(found.by),
        "step_from": found.step_from, "single_step_ns": found.single_step_ns, "step_ns": found.step_ns,
        "concurrency": found.batch,
        "speedup": found.speedup if told else None, "efficiency": found.efficiency if told else None,
        "tokens_per_s": {
            "single": found.tokens_per_s(found.single_step_ns), "ranks": found.tokens_per_s(found.step_ns)
        },
        "lost_ns": found.lost_ns, "rest_ns": found.rest_ns,
        "single_own_ns": found.single_own_ns, "own_ns": found.own_ns,
        "transfer_ns": found.transfer_ns, "wait_ns": found.wait_ns,
        "rows": [_row(r, found.by) for r in found.rows], "notes": list(found.notes),
    }  # fmt: skip


def _row(row: Row, by: Sequence[str]) -> dict[str, Any]:
    return {
        **dict(zip(by, row.key, strict=True)), "single_ns": row.single_ns, "rank_ns": row.rank_ns,
        "above_ns": row.excess_ns, "how": row.how,
    }  # fmt: skip


def parallel_table(found: ParallelGain) -> pd.DataFrame:
    """Rows of ``ranks --rows single --csv``: keys joined by commas in one column."""
    rows = [
        {
            "single": found.single, "ranks": found.ranks, "key": ",".join(r.key), "single_ns": r.single_ns,
            "rank_ns": r.rank_ns, "above_ns": r.excess_ns, "how": r.how,
        }
        for r in found.rows
    ]  # fmt: skip
    return pd.DataFrame(rows)
