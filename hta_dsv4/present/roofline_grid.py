"""The speed of light as a grid, as JSON and as CSV rows."""

from __future__ import annotations

import math
from typing import Any

from hta_dsv4.analysis.devices import RATES, Ceilings
from hta_dsv4.analysis.links import Link
from hta_dsv4.analysis.own_time import LITTLE_PERCENT
from hta_dsv4.analysis.roofline import Roofline, Row
from hta_dsv4.present.grid import ABSENT, Grid, steps_said, us
from hta_dsv4.present.modelled import about, about_us


def roofline_grid(found: Roofline, top: int = 0) -> Grid:
    """Time, floor, headroom and what was achieved, largest headroom first.

    Args:
        found: the result.
        top: rows to show, the rest as one line; 0 for all.
    """
    by_origin = found.by == ("origin",) and bool(found.model_ns)
    waits = _waits(found)
    headers = [
        *found.by,
        "us/step",
        "floor us",
        "headroom us",
        "GB/s",
        "TFLOP/s",
        "bound by",
        "known",
        "repeats",
    ]
    if by_origin:
        headers.insert(4, "model us")
    if waits:
        headers.insert(len(found.by) + 1, "waits us")
    shown = found.rows if top <= 0 else found.rows[:top]
    rows = [tuple(_cells(r, found, by_origin)) for r in shown]
    rest = found.rows[len(shown) :]
    if rest:
        time = sum(r.time_ns for r in rest)
        floors = [r.floor_ns for r in rest if r.floor_ns is not None]
        room = [r.headroom_ns for r in rest if r.headroom_ns is not None]
        cells = [us(time), about_us(sum(floors) if floors else None), about_us(sum(room) if room else None)]
        if waits:
            cells.insert(1, us(sum(r.early_ns for r in rest)))
        if by_origin:
            cells.append("")
        rows.append((f"({len(rest)} more)", *[""] * (len(found.by) - 1), *cells, "", "", "", "", ""))
    footer = []
    if found.total is not None:
        cells = _cells(found.total, found, by_origin)
        footer = [("step", *[""] * (len(found.by) - 1), *cells[1:])]
    return Grid(
        f"{found.label}: speed of light, {steps_said(found.steps)}", tuple(headers), tuple(rows), tuple(footer),
        (*_headline(found), *found.verdicts, *found.notes), left=len(found.by),
    )  # fmt: skip


def _cells(row: Row, found: Roofline, by_origin: bool) -> list[str]:
    known = row.known_ns > 0  # a floor of nothing known is not a floor of 0
    cells = [
        *row.key, us(row.time_ns), about_us(row.floor_ns if known else None),
        about_us(row.headroom_ns if known else None),
        _number(row.gb_s), _number(row.tflop_s), row.bound, row.known,
        ABSENT if row.redundancy is None else f"{row.redundancy:.1f}x",
    ]  # fmt: skip
    if by_origin:
        model = sum(found.model_ns.values()) if row is found.total else found.model_ns.get(row.key[0])
        cells.insert(4, about_us(model))
    if _waits(found):
        cells.insert(len(row.key) + 1, us(row.early_ns))
    return cells


def _waits(found: Roofline) -> bool:
    """Whether launches waited for those ahead of them for a part of the step that is worth a column."""
    t = found.total
    return t is not None and 100 * t.early_ns > LITTLE_PERCENT * (t.time_ns + t.early_ns)


def _number(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _headline(found: Roofline) -> list[str]:
    """What the whole step says: floor as programmed, floor of the model, and where the difference is."""
    total = found.total
    if total is None or total.floor_ns is None or not total.known_ns:
        return []
    out = [
        f"floors are known for {100 * found.known_share:.1f} % of the time; as programmed that part needs at least "
        f"{about(total.floor_ns / 1e6)} ms of its {total.known_ns / 1e6:,.2f} ms"
    ]
    if found.model_ns:
        model = sum(found.model_ns.values())
        out.append(
            f"the model's step itself needs at least {about(model / 1e6)} ms on this GPU: each weight and each "
            f"attended token once, nothing in between; floors above that are work the step sets itself"
        )
    for row in found.rows:
        if row.redundancy is not None and row.redundancy > 1.5:
            waste = (
                f" and carry out {row.waste:.1f} times the operations"
                if row.waste and row.waste > 1.5
                else ""
            )
            out.append(
                f"{', '.join(row.key)}: its programs ask for {row.redundancy:.1f} times the unique bytes{waste}"
            )
    return out


def roofline_body(found: list[Roofline]) -> dict[str, Any]:
    """``roofline --json``."""
    return {"by": list(found[0].by), "variants": [_variant(f) for f in found]}


def _variant(found: Roofline) -> dict[str, Any]:
    w = found.workload
    return {
        "label": found.label,
        "time": "own",
        "steps": found.steps,
        "device": None if found.ceilings is None else device_body(found.ceilings),
        "workload": {
            "model": None if w.geometry is None else w.geometry.name,
            "concurrency": w.batch,
            "context": w.context,
            "max_context": w.max_context,
        },
        "known_share": found.known_share,
        "model_ns": {k: round(v) for k, v in found.model_ns.items()},
        "step": None if found.total is None else _row(found.total, {}),
        "rows": [_row(r, dict(zip(found.by, r.key, strict=True))) for r in found.rows],
        "verdicts": list(found.verdicts),
        "notes": list(found.notes),
    }


def device_body(c: Ceilings) -> dict[str, Any]:
    """A GPU's ceilings."""
    return {
        "name": c.name, "dram_gb_s": c.dram_gb_s, "dram_read_gb_s": c.read_gb_s, "l2_bytes": c.l2_bytes,
        "l2_read_gb_s": c.l2_gb_s, "sms": c.sms,
        "tflop_s": dict(c.rates), "launch_ns": c.launch_ns, "measured": list(c.measured), "source": c.source,
        "measured_source": c.measured_source or None, "link": None if c.link is None else link_body(c.link),
    }  # fmt: skip


def link_body(link: Link) -> dict[str, Any]:
    """The links between GPUs of one host; ``times_ns``: kind of collective to the times of the first ``sizes``."""
    return {
        "name": link.name, "gb_s": link.gb_s, "gpus": link.gpus, "measured": link.measured, "ranks": link.ranks or None,
        "sizes": list(link.sizes), "times_ns": {k: list(v) for k, v in link.times.items()}, "source": link.source,
        "measured_source": link.measured_source or None,
    }  # fmt: skip


def _row(row: Row, key: dict[str, str]) -> dict[str, Any]:
    return {
        **key, "launches_per_step": row.launches, "time_ns_per_step": row.time_ns,
        "early_ns_per_step": row.early_ns, "known_ns_per_step": row.known_ns,
        "floor_ns_per_step": row.floor_ns, "headroom_ns_per_step": row.headroom_ns,
        "memory_ns_per_step": _finite(row.memory_ns), "compute_ns_per_step": _finite(row.compute_ns),
        "link_ns_per_step": row.link_ns, "link_bytes_per_step": round(row.wire_bytes),
        "bytes_per_step": round(row.bytes), "flops_per_step": round(row.flops), "gb_s": row.gb_s,
        "tflop_s": row.tflop_s,
        "bound": row.bound, "known": row.known, "arithmetic": row.arithmetic or None, "redundancy": row.redundancy,
        "waste": row.waste, "below_floor_launches_per_step": row.below, "below_floor_ns_per_step": row.below_ns,
        "assumes": list(row.assumes), "sources": list(row.sources),
    }  # fmt: skip


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


COLUMNS = (
    "launches_per_step", "time_ns_per_step", "early_ns_per_step", "known_ns_per_step", "floor_ns_per_step",
    "headroom_ns_per_step", "bytes_per_step", "flops_per_step", "gb_s", "tflop_s",
    "bound", "known", "redundancy", "waste",
)  # fmt: skip


def roofline_rows(found: list[Roofline]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``roofline --csv``: one line per variant and row."""
    body = roofline_body(found)
    rows = [{"variant": v["label"], "steps": v["steps"], **r} for v in body["variants"] for r in v["rows"]]
    return ["variant", "steps", *found[0].by, *COLUMNS], rows


def devices_rows(known: tuple[Ceilings, ...]) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of ``roofline --devices --csv``: one line per GPU; rates in TFLOP/s, what was measured named."""
    rows = []
    for body in map(device_body, known):
        rates = {f"{k}_tflop_s": body["tflop_s"].get(k) for k in RATES}
        rows.append({**body, **rates, "measured": " ".join(body["measured"])})
        del rows[-1]["tflop_s"], rows[-1]["link"]
        rows[-1]["link_gb_s"] = None if body["link"] is None else body["link"]["gb_s"]
    return list(rows[0]), rows


def devices_grid(known: tuple[Ceilings, ...]) -> Grid:
    """The device table; a star marks what was measured."""

    def said(c: Ceilings, key: str, value: float | None) -> str:
        return ABSENT if value is None else f"{value:,.5g}" + ("*" if key in c.measured else "")

    rows = tuple(
        (
            c.name, said(c, "dram_gb_s", c.dram_gb_s), said(c, "read_gb_s", c.read_gb_s),
            ABSENT if c.l2_bytes is None else f"{c.l2_bytes / (1 << 20):g}", said(c, "l2_gb_s", c.l2_gb_s),
            said(c, "sms", c.sms),
            *(said(c, k, c.rates.get(k)) for k in RATES),
            ABSENT if c.link is None else f"{c.link.gb_s:,.5g}" + ("*" if c.link.measured else ""),
        )
        for c in known
    )  # fmt: skip
    headers = (
        "GPU",
        "DRAM GB/s",
        "reading GB/s",
        "L2 MiB",
        "L2 GB/s",
        "SMs",
        *(f"{k} TFLOP/s" for k in RATES),
        "link GB/s",
    )
    notes = (
        "* measured; everything else is the vendor's figure, dense",
        *(f"{c.name}: {c.source}" for c in known),
    )
    return Grid(f"{len(known)} GPUs", headers, rows, notes=notes)
