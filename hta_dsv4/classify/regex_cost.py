"""Can this regular expression take exponential time? A trace may hold any name, and Python's ``re`` cannot be stopped.

Read from the parsed pattern: what is repeated without a bound must not hold another repeat, nor a choice whose
alternatives may begin alike; either lets one text be split in exponentially many ways. Some harmless patterns are
refused with them. What is left takes at most polynomial time in the 2,048 characters of a name that are looked at.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

MANY = 8
"""A repeat of at most this many times is no repeat here: 2^8 ways are few."""


def explosive(regex: str) -> str | None:
    """Why a pattern may take exponential time; ``None`` where it cannot.

    Args:
        regex: a pattern that compiles.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it is compiled
        try:
            return _walk(parser.parse(regex), inside=False)
        except RecursionError:
            return "is nested too deeply"


def _walk(items: Iterable[tuple[Any, Any]], inside: bool) -> str | None:
    items = list(items)
    for at, (op, value) in enumerate(items):
        kind = str(op)
        why: str | None = None
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, body = value
            most = int(high)
            if inside and low != high and (most > 1 or not _tells_apart(body, items, at)):
                return "repeats a repeat"
            # What is possessive is never tried another way.
            why = _walk(body, kind != "POSSESSIVE_REPEAT" and (inside or (most > MANY and low != high)))
        elif kind == "BRANCH":
            first = [_first(alternative) for alternative in value[1]]
            if inside and (None in first or len(set(first)) < len(first)):
                return "repeats a choice whose alternatives may begin alike"
            why = next((w for w in (_walk(a, inside) for a in value[1]) if w), None)
        elif kind == "SUBPATTERN":
            why = _walk(value[-1], inside)
        elif kind in ("ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            why = _walk(value if kind == "ATOMIC_GROUP" else value[1], False)
        elif kind == "GROUPREF_EXISTS":
            why = next((w for w in (_walk(part, inside) for part in value[1:] if part) if w), None)
        if why:
            return why
    return None


def _first(items: Any) -> int | None:
    """The one character that a sequence begins with; ``None`` where it may be several, or none."""
    for op, value in items:
        if str(op) == "SUBPATTERN":
            return _first(value[-1])
        return int(value) if str(op) == "LITERAL" else None
    return None


def _tells_apart(body: Any, items: list[tuple[Any, Any]], at: int) -> bool:
    """Whether an optional character is none that could stand elsewhere in the repeated sequence around it."""
    mine = _first(body)
    others = [value if str(op) == "LITERAL" else None for i, (op, value) in enumerate(items) if i != at]
    return mine is not None and bool(others) and None not in others and mine not in others
