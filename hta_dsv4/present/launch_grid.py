"""Changed launch configurations as grids of text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from hta_dsv4.analysis import launch_config as c
from hta_dsv4.analysis.launch_changes import Alike, LaunchChange, LaunchChanges
from hta_dsv4.analysis.launch_config import Config, Room
from hta_dsv4.classify.names import short
from hta_dsv4.present.diff_words import signed
from hta_dsv4.present.grid import ABSENT, Grid, us

SHOWN = 8
SPEEDS = 3
WORTH_STEP = 0.001
WORTH_KERNEL = 0.02
"""A kernel launched alike is worth a line when its change is these parts of the longer step and of its own time."""
FEW = 0.5
"""A change of the mean that the median step shows less than this part of comes from a few steps."""

_Cell = Callable[[Config, Room], str]


def launch_grid(found: LaunchChanges, full: bool = False) -> Grid:
    """One change: a row per kernel and pair of configurations, ``before -> after`` in each cell that differs.

    Args:
        found: the launches of two variants.
        full: all rows; else the :data:`SHOWN` with most time.

    Returns:
        The grid; columns in which no row differs are left out.
    """
    shown = found.changes if full else found.changes[:SHOWN]
    cells = {title: [_both(change, cell) for change in shown] for title, cell in _COLUMNS.items()}
    kept = {title: column for title, column in cells.items() if any(" -> " in text for text in column)}
    origins = any(change.origin for change in shown)
    rows = [
        (
            change.kernel, *((change.origin or ABSENT,) if origins else ()),
            _pair(f"{change.base_launches:g}", f"{change.other_launches:g}"),
            us(change.base_ns), us(change.other_ns), *(column[i] for column in kept.values()),
        )
        for i, change in enumerate(shown)
    ]  # fmt: skip
    if len(found.changes) > len(shown):
        rest = found.changes[len(shown) :]
        times = (us(sum(x.base_ns for x in rest)), us(sum(x.other_ns for x in rest)))
        blank = ("",) * (1 + origins)
        rows.append((f"({len(rest)} more: --full)", *blank, *times, *("" for _ in kept)))
    headers = ("kernel", *(("origin",) if origins else ()), "n/step", "own us/step", "other", *kept)
    title = f"launch configurations that changed, {found.base} -> {found.other}"
    if not found.changes:
        return Grid(title, (), (), notes=_notes(found, full), left=0)
    return Grid(title, headers, tuple(rows), notes=_notes(found, full), left=1 + origins)


def _notes(found: LaunchChanges, full: bool) -> tuple[str, ...]:
    if found.notes:
        return found.notes
    lines = []
    if not found.changes:
        lines.append("none: every kernel that both variants have is launched alike")
    before, after = found.alike_ns
    if before:
        ratio = found.alike_ratio()
        typical = f"; median by time {100 * (ratio - 1):+.1f} %" if ratio is not None else ""
        lines.append(
            f"launched alike in both: {us(before)} -> {us(after)} us/step "
            f"({100 * (after / before - 1):+.1f} %{typical})"
        )
        if found.same_work and (speed := found.speed) is not None:
            lines.append(
                f"nearly all kernels launched alike take {100 * (speed - 1):+.1f} %: look at clocks and at what shares "
                "the GPU before any kernel"
            )
    others = _other_speed(found)
    for one in others if full else others[:SPEEDS]:
        lines.append(
            f"{short(one.kernel)} is launched alike and takes {signed(one.other_ns - one.base_ns)} us/step "
            f"({_ratio(one)}{_which_steps(one)}): not its configuration: shapes, data, a cache, a clock or a neighbour"
        )
    if not full and len(others) > SPEEDS:
        lines.append(f"({len(others) - SPEEDS} more launched alike at another speed: --full)")
    return tuple(lines)


def _ratio(one: Alike) -> str:
    return f"{one.ratio:.2f} times" if one.base_ns else "from nothing"


def _which_steps(one: Alike) -> str:
    """Whether a change is that of the median step, or made by a few steps."""
    if _few(one):
        return f"; in some steps only: the median step {signed(one.other_median_ns - one.base_median_ns)}"
    return ", in every step" if one.apart else ""


def _few(one: Alike) -> bool:
    return abs(one.other_median_ns - one.base_median_ns) < FEW * abs(one.other_ns - one.base_ns)


def _other_speed(found: LaunchChanges) -> list[Alike]:
    """Kernels launched alike whose time changed by enough, in every step or by a few alone; largest change first."""
    step = max(found.base_step_ns, found.other_step_ns)

    def worth(one: Alike) -> bool:
        size = abs(one.other_ns - one.base_ns)
        return size >= max(WORTH_STEP * step, WORTH_KERNEL * one.base_ns) and (
            one.apart is not False or _few(one)
        )

    return sorted(filter(worth, found.alike), key=lambda a: -abs(a.other_ns - a.base_ns))


def _both(change: LaunchChange, cell: _Cell) -> str:
    before = ABSENT if change.base is None else cell(change.base, change.base_room or Room())
    after = ABSENT if change.other is None else cell(change.other, change.other_room or Room())
    return _pair(before, after)


def _pair(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _dims(dims: tuple[int, int, int] | None) -> str:
    """``32x192`` for (32, 192, 1)."""
    if dims is None:
        return ABSENT
    x, y, z = (str(d) for d in dims)
    return "x".join((x, y, z) if z != "1" else (x, y) if y != "1" else (x,))


def _number(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


_COLUMNS: dict[str, _Cell] = {
    "grid": lambda config, _: _dims(config.grid),
    "block": lambda config, _: _dims(config.block),
    "regs": lambda config, _: _number(config.registers),
    "shared B": lambda config, _: _number(config.shared_mem),
    "copied B": lambda config, _: _number(config.bytes),
    "CTAs/SM": lambda _, room: _number(room.resident),
    "occupancy %": lambda _, room: ABSENT if room.occupancy is None else f"{100 * room.occupancy:.0f}",
    "waves": lambda _, room: ABSENT if room.waves is None else f"{room.waves:.2f}",
}


def launch_bodies(found: Sequence[LaunchChanges]) -> list[dict[str, Any]]:
    """``launches`` of ``diff --json``: one entry a change (docs/json.md)."""
    return [_body(one) for one in found]


def _body(found: LaunchChanges) -> dict[str, Any]:
    before, after = found.alike_ns
    return {
        "base": found.base, "other": found.other, "time": "own",
        "changes": [_change(change) for change in found.changes],
        "alike": {
            "base_ns": before, "other_ns": after, "median_ratio": found.alike_ratio(),
            "kernels": [
                {**asdict(one), "origin": one.origin or None, "ratio": one.ratio if one.base_ns else None}
                for one in found.alike
            ],
        },
        "notes": list(found.notes),
    }  # fmt: skip


def _change(change: LaunchChange) -> dict[str, Any]:
    return {
        "kernel": change.kernel, "role": change.role, "origin": change.origin or None,
        "changed": list(change.changed), "paired_by": change.paired,
        "base": _launch(change.base, change.base_room, change.base_launches, change.base_ns),
        "other": _launch(change.other, change.other_room, change.other_launches, change.other_ns),
    }  # fmt: skip


def _launch(config: Config | None, room: Room | None, launches: float, ns: int) -> dict[str, Any] | None:
    if config is None:
        return None
    room = room or Room()
    return {
        "launches_per_step": launches, "own_ns_per_step": ns,
        **{name: getattr(config, name) for name in c.FIELDS},
        **asdict(room), "limited_by": room.limited_by or None,
    }  # fmt: skip
