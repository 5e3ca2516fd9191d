"""How long can this regular expression take? A trace may hold any name, and Python's ``re`` cannot be stopped.

Read from the parsed pattern. **Exponential** (:func:`explosive`): what is repeated without a bound must not hold
another repeat, nor a choice whose alternatives may begin alike; either lets one text be split in exponentially many
ways.
**Polynomial** (:func:`degree`): each part of any length that could end at many places multiplies the work by the length
of the text, up to 2,048 characters of a name. Some harmless patterns are refused with them.

Measured on 2,048 letters that fit all but the end: ``a.*x`` 0.01 s, ``a.*a.*x`` 5 s, one more part hours. So
:data:`MOST_DEGREE` is 3. The time of users' rules is limited besides (:mod:`hta_dsv4.classify.timed_regex`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
else:
    import sre_parse as parser

MANY = 8
"""A repeat of at most this many times is no repeat here: 2^8 ways are few."""
MOST_DEGREE = 3
"""A search may take time that grows with the third power of the text, and not more."""
_KINDS: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdigit, "SPACE": str.isspace, "WORD": lambda c: c.isalnum() or c == "_",
}  # fmt: skip
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def degree(regex: str) -> int:
    """The power of a text's length that bounds the time of a search for a pattern that is not :func:`explosive`.

    Parts of any length count one each where the character behind them could be one of theirs, and so does the search
    for a beginning; not the last part of all, which takes what it gets.

    Args:
        regex: a pattern that compiles.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        items = list(parser.parse(regex))
    while items and str(items[-1][0]) in _REPEATS and items[-1][1][0] == 0:
        items.pop()  # a search ends at the first fit
    anchored = bool(items) and str(items[0][0]) == "AT" and "BEGINNING" in str(items[0][1])
    return _degree(items) + (not anchored)


def _degree(items: Iterable[tuple[Any, Any]]) -> int:
    items, total = list(items), 0
    for at, (op, value) in enumerate(items):
        kind = str(op)
        if kind in _REPEATS:
            low, high, body = value
            if int(high) > MANY and low != high:
                total += not _stops(body, items[at + 1 :])
            else:
                total += min(int(high), MANY) * _degree(body)
        elif kind == "BRANCH":
            total += max(map(_degree, value[1]), default=0)
        elif kind == "SUBPATTERN":
            total += _degree(value[-1])
        elif kind in ("ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"):
            total += _degree(value if kind == "ATOMIC_GROUP" else value[1])
        elif kind == "GROUPREF_EXISTS":
            total += max(_degree(part) for part in value[1:] if part)
    return total


def _stops(body: Any, behind: list[tuple[Any, Any]]) -> bool:
    """Whether a repeat of one kind of character ends where it must: at a character that is none of that kind."""
    body = list(body)
    if len(body) != 1 or not behind or str(behind[0][0]) != "LITERAL":
        return False
    op, value = body[0]
    ends = chr(behind[0][1])
    if str(op) == "LITERAL":
        return chr(value) != ends
    if str(op) == "NOT_LITERAL":
        return chr(value) == ends
    if str(op) != "IN":
        return False
    negated = str(value[0][0]) == "NEGATE"
    inside = any(_is_of(ends, kind, what) for kind, what in value)
    return inside if negated else not inside


def _is_of(character: str, op: Any, value: Any) -> bool:
    """Whether a character is of one part of a set; where in doubt it is."""
    kind = str(op)
    if kind == "NEGATE":
        return False
    if kind == "LITERAL":
        return bool(ord(character) == value)
    if kind == "RANGE":
        return bool(value[0] <= ord(character) <= value[1])
    name = str(value).removeprefix("CATEGORY_")
    test = _KINDS.get(name.removeprefix("NOT_"))
    return True if test is None else test(character) != name.startswith("NOT_")


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
        if kind in _REPEATS:
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
