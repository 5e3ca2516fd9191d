"""A file of budgets (TOML) -> checked :class:`~hta_dsv4.analysis.budgets.Budgets`, or one line: what is wrong, where.

Nothing is ignored: an unknown key is an error, as a misspelt limit guards nothing.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hta_dsv4.analysis.budgets import (
    BUCKET,
    LEAST_SHARE_PERCENT,
    LIMITS,
    MAX_LAUNCHES,
    MAX_SHARE,
    MAX_US,
    MEASURES,
    MORE_LAUNCHES,
    MORE_PERCENT,
    MORE_US,
    RELATIVE,
    ROWS,
    STEP,
    Budget,
    Budgets,
)  # fmt: skip
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.toml_text import from_toml

_LEVEL, _NOISE, _CAPTURES, _STRICT, _OVERHEAD = (
    "level", "noise_percent", "min_captures", "strict", "max_profiler_overhead_percent",
)  # fmt: skip
_GATE = (_LEVEL, _NOISE, _CAPTURES, _STRICT, _OVERHEAD)
_COMPARABILITY = ("may_differ", "must_be_known", "conditions")
_LONGEST = 4 << 20  # bytes
_TOP = ("schema", "gate", "comparability", STEP, *ROWS, "each", "unknown")


def read_budgets(path: Path) -> Budgets:
    """Read a file of budgets.

    Args:
        path: TOML, UTF-8.

    Raises:
        HtaDsv4Error: not readable, not TOML, an unknown key, a value of another kind, or no budget in it: one line
            with file, line and remedy.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:  # a device, or something else by mistake
            raise HtaDsv4Error(f"{path}: longer than any budget file; give the budget file with --budget")
        text = content.decode("utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise HtaDsv4Error(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise HtaDsv4Error(f"{path}: cannot be read ({said}); give the budget file with --budget") from error
    try:
        data = from_toml(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError of its own
        raise HtaDsv4Error(f"{path}: not TOML: {error}; see docs/gate.md for the form") from error
    return _Reader(str(path), text).budgets(data)


class _Reader:
    """Checks what TOML gave, knowing where in the text each key stands."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.lines = path, _lines(text)

    def budgets(self, data: Mapping[str, Any]) -> Budgets:
        self.known((), data, _TOP)
        if data.get("schema", 1) != 1 or isinstance(data.get("schema"), bool):
            raise self.bad(
                ("schema",), f"schema {data['schema']!r} is not known; this version reads schema 1"
            )
        found: list[Budget] = []
        for kind in (STEP, *ROWS):
            for name, body in self.table((kind,), data).items():
                nameless = name in LIMITS and not isinstance(body, dict)
                if kind == STEP and name not in MEASURES and not nameless:
                    raise self.bad(
                        (kind, name), f"a step has no {name!r}{_meant(name, MEASURES)}; [step.sum] etc."
                    )
                found.append(self.budget(kind, str(name), (kind, name), body))
        if "unknown" in data:
            found.append(self.budget(BUCKET, "unknown", ("unknown",), data["unknown"], optional=True))
        each = self.table(("each",), data)
        self.known(("each",), each, ROWS)
        found += [self.budget(kind, "", ("each", kind), body) for kind, body in each.items()]
        if not found:
            raise HtaDsv4Error(f"{self.path}: no budget in it; write one, such as [step.sum] max_us = 50_000")
        named = [(b.kind, b.name) for b in found]
        if len(set(named)) < len(named):  # [unknown] beside [bucket.unknown]
            raise self.bad(("unknown",), "says the same as [bucket.unknown]; keep one of the two")
        gate = self.table(("gate",), data)
        self.known(("gate",), gate, _GATE)
        other = self.table(("comparability",), data)
        self.known(("comparability",), other, _COMPARABILITY)
        level = self.number(("gate", _LEVEL), gate, 0.95, 0.5, 0.9999)
        captures = self.number(("gate", _CAPTURES), gate, 1, 1, 1e6)
        if captures != int(captures):
            raise self.bad(("gate", _CAPTURES), f"{captures} is no number of captures; write a whole one")
        return Budgets(
            self.path,
            tuple(found),
            level=level,
            noise_percent=self.number(("gate", _NOISE), gate, 0.0, 0.0, 1e6),
            min_captures=int(captures),
            strict=self.flag(("gate", _STRICT), gate),
            max_overhead_percent=self.number(("gate", _OVERHEAD), gate, 10.0, 0.0, 1e9),
            may_differ=self.words(("comparability", "may_differ"), other),
            must_be_known=self.words(("comparability", "must_be_known"), other),
            conditions=self.conditions(other),
        )

    def budget(
        self, kind: str, name: str, path: tuple[str, ...], body: object, optional: bool = False
    ) -> Budget:
        if not isinstance(body, dict):
            nameless = len(path) == 2 and name in LIMITS
            table = (
                f"{kind}.{'sum' if kind == STEP else 'NAME'}" if nameless else ".".join(map(_quoted, path))
            )
            raise self.bad(
                path, f"a budget is a table; write [{table}] and below it {LIMITS[0]} = ... or the like"
            )
        allowed = _limits(kind, name)
        extra = (
            ("least_share_percent", "why") if not name else ("optional", "why") if kind != STEP else ("why",)
        )
        self.known(path, body, (*allowed, *extra), LIMITS)
        limits = {}
        for key in allowed:
            if key in body:
                low, high = (-100.0 if key == MORE_PERCENT else -1e15) if key in RELATIVE else 0.0, 1e15
                limits[key] = self.number((*path, key), body, 0.0, low, 100.0 if key == MAX_SHARE else high)
        if not limits:
            raise self.bad(path, f"no limit in it; give one of {', '.join(allowed)}")
        why = body.get("why", "")
        if not isinstance(why, str):
            raise self.bad((*path, "why"), 'is text; write why = "..."')
        least = self.number(
            (*path, "least_share_percent"), body, 0.0 if name else LEAST_SHARE_PERCENT, 0.0, 100.0
        )
        optional = self.flag((*path, "optional"), body) or optional
        return Budget(kind, name, limits, optional, least, why, self.place(path))

    def conditions(self, other: Mapping[str, Any]) -> dict[str, str | int | float]:
        path = ("comparability", "conditions")
        out: dict[str, str | int | float] = {}
        for key, value in _flat(self.table(path, other)).items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise self.bad((*path, key), f"{value!r} is neither text nor a number")
            out[key] = value
        return out

    def table(self, path: tuple[str, ...], data: Mapping[str, Any]) -> dict[str, Any]:
        value = data.get(path[-1], {})
        if not isinstance(value, dict):
            raise self.bad(path, f"is a table; write [{'.'.join(path)}]")
        return value

    def known(
        self,
        path: tuple[str, ...],
        body: Mapping[str, Any],
        allowed: Sequence[str],
        elsewhere: Sequence[str] = (),
    ) -> None:
        for key in body:
            if key not in allowed:
                what = "makes no sense here" if key in elsewhere else "is not known"
                hint = _meant(key, allowed) or f"; choose from {', '.join(allowed)}"
                raise self.bad((*path, key), f"{what}{hint}")

    def number(
        self, path: tuple[str, ...], body: Mapping[str, Any], default: float, low: float, high: float
    ) -> float:
        value = body.get(path[-1], default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(path, f"{value!r} is not a number; write it without unit or quotes")
        if not low <= value <= high:
            raise self.bad(path, f"{value!r} is not within {low:g} to {high:g}")
        return value

    def flag(self, path: tuple[str, ...], body: Mapping[str, Any]) -> bool:
        value = body.get(path[-1], False)
        if not isinstance(value, bool):
            raise self.bad(path, f"{value!r} is neither true nor false")
        return value

    def words(self, path: tuple[str, ...], body: Mapping[str, Any]) -> tuple[str, ...]:
        value = body.get(path[-1], [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.bad(path, 'is a list of names; write ["gpu", "switches.*"]')
        return tuple(value)

    def place(self, path: tuple[str, ...]) -> str:
        """``file:line`` of a key; of the nearest table around it that has a line of its own, else the file."""
        for n in range(len(path), 0, -1):
            if path[:n] in self.lines:
                return f"{self.path}:{self.lines[path[:n]]}"
        return self.path

    def bad(self, path: tuple[str, ...], what: str) -> HtaDsv4Error:
        return HtaDsv4Error(f"{self.place(path)}: {'.'.join(map(_quoted, path))}: {what}")


def _limits(kind: str, name: str) -> tuple[str, ...]:
    if kind != STEP:
        return LIMITS
    whole = (MAX_US, MORE_US, MORE_PERCENT)
    return (*whole, MAX_LAUNCHES, MORE_LAUNCHES) if name == "sum" else whole


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Path of each key -> the line it first stands in.

    What looks like a key inside a value of several lines may be taken for one; the line is for a person to look at.
    """
    out: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        head = line.strip().startswith("[")
        if not head and "=" not in line:
            continue
        try:
            # only the key matters; the value may go on in the next line
            found = from_toml(line if head else line.partition("=")[0] + "= 0")
        except (ValueError, RecursionError):
            continue
        keys = _only_path(found)
        path = keys if head else (*table, *keys)
        table = keys if head else table
        for n in range(1, len(path) + 1):
            out.setdefault(path[:n], number)
    return out


def _only_path(value: object) -> tuple[str, ...]:
    keys: tuple[str, ...] = ()
    while isinstance(value, list | dict) and value:
        if isinstance(value, list):
            value = value[0]
            continue
        key = next(iter(value))
        keys, value = (*keys, key), value[key]
    return keys


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return out


def _meant(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_.-]+", key) else f'"{key}"'
