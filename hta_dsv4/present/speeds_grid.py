"""What collectives carry and how near their link's speed they are: as a grid, as JSON and as rows."""

from __future__ import annotations

import re
from typing import Any

from hta_dsv4.analysis.collective_speed import CollectiveSpeeds, Speed
from hta_dsv4.present.grid import ABSENT, Grid, count, per_step, shown_of, us
from hta_dsv4.present.kernel_names import shorten

_KERNEL = re.compile(r"^nccl(?:Dev)?Kernel_[A-Za-z]+_(\w+)")  # its kind stands beside it
_VERDICTS = 3  # said in words, those that take most

SPEED_COLUMNS = (
    "group", "kind", "ranks", "bytes", "bytes_from", "wire_bytes", "kernel", "collectives", "steps", "taken_ns",
    "holds_waits", "each_ns", "algorithm_gb_s", "bus_gb_s", "link_gb_s", "link_share", "link_ns", "latency_ns",
    "alone_ns", "one_shot_ns", "bound",
)  # fmt: skip


def speeds_grid(found: CollectiveSpeeds, top: int = 0) -> Grid:
    """Bytes, time, bandwidth and bound of each kind of collective, most time first; verdicts in words above.

    Args:
        found: the collectives.
        top: rows to show, the rest as one line; 0 for all.
    """
    shown = found.rows[: shown_of(top, len(found.rows))]
    rest = found.rows[len(shown) :]
    rows = [_cells(s) for s in shown]
    if rest:
        taken = sum(per_step(s.taken_ns, s.steps) for s in rest)
        number = sum(s.per_step for s in rest)
        rows.append((f"({len(rest)} more)", "", "", "", "", count(number), "", us(taken), *[""] * 3))
    holds = "with their waits" if any(s.upper for s in found.rows) else "waits taken off"
    steps = any(s.steps for s in found.rows)
    headers = (
        "kind", "kernel", "size by", "ranks", "bytes", "a step" if steps else "count", "us each",
        "us/step" if steps else "us", "bus GB/s", "% link", "bound by",
    )  # fmt: skip
    lead = tuple(s.sentence for s in shown if s.sentence)[:_VERDICTS]
    title = f"{found.label}: collectives by what they carry, {holds}"
    return Grid(title, headers, tuple(rows), lead=lead, notes=found.notes, left=3)


def _cells(s: Speed) -> tuple[str, ...]:
    m = s.message
    plain = _KERNEL.match(s.kernel)
    return (
        m.kind,
        plain[1] if plain else shorten(s.kernel, 40),
        m.how,
        str(s.ranks) if s.ranks else ABSENT,
        ABSENT if m.nbytes is None else f"{m.nbytes:,}",
        count(s.per_step),
        us(round(s.each_ns)),
        us(per_step(s.taken_ns, s.steps)),
        _rate(s.bus_gb_s),
        ABSENT if s.link_share is None else f"{100 * s.link_share:.1f}",
        s.bound or ABSENT,
    )


def _rate(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.1f}"


def speeds_body(found: CollectiveSpeeds) -> dict[str, Any]:
    """``messages`` of ``ranks --json``: the rows, and what was said of them."""
    return {
        "link": None if found.link is None else found.link.name,
        "rows": [_record(s) for s in found.rows],
        "notes": list(found.notes),
    }


def speeds_records(found: CollectiveSpeeds) -> list[dict[str, Any]]:
    """Rows of ``ranks --rows messages``: the columns of :data:`SPEED_COLUMNS`."""
    return [_record(s) for s in found.rows]


def _record(s: Speed) -> dict[str, Any]:
    m = s.message
    values = (
        s.group, m.kind, s.ranks or None, m.nbytes, m.how, m.wire, s.kernel, s.collectives, s.steps, s.taken_ns,
        s.upper, s.each_ns, s.algorithm_gb_s, s.bus_gb_s, s.link_gb_s, s.link_share, s.link_ns, s.latency_ns,
        s.alone_ns, s.one_shot_ns, s.bound or None,
    )  # fmt: skip
    return dict(zip(SPEED_COLUMNS, values, strict=True))
