"""What a what-if changes, in words: which launches, and what becomes of them.

``SELECTOR=floor``, ``SELECTOR=12.5us`` (each launch), ``SELECTOR=43x25us`` (43 launches a step in place of all of
them), ``SELECTOR*0.1``, ``SELECTOR/2``. A selector is terms joined by ``+``, all of which must hold: ``bucket:glue``,
``role:copy_cast``, ``origin:indexer``, ``kernel:TEXT`` and ``scope:TEXT`` (a part of the name, of the scope). A bare
word is an origin if the trace knows it as one, else a bucket, else a role, else a part of the kernel's name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col

FLOOR, EACH, REPLACE, SCALE, HALVE_BYTES, REMOVE = (
    "floor",
    "each",
    "replace",
    "scale",
    "halve bytes",
    "remove",
)
_EXACT_KEYS = {"bucket": col.BUCKET, "role": col.ROLE, "origin": col.ORIGIN}
_PART_KEYS = {"kernel": col.NAME, "scope": col.SCOPE}
_KEYS = (*_EXACT_KEYS, *_PART_KEYS)
_JOIN = re.compile(rf"\+(?=(?:{'|'.join(_KEYS)}):)")
_TIME = re.compile(r"^(?:(\d+)\s*x\s*)?([0-9]*\.?[0-9]+(?:e[-+]?\d+)?)\s*(ns|us|ms|s)$", re.I)
_UNIT = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        text: as given.
        selector: which launches.
        kind: FLOOR, EACH, REPLACE, SCALE, HALVE_BYTES or REMOVE.
        value: ns of a launch (EACH, REPLACE) or the factor (SCALE).
        count: launches per step (REPLACE).
    """

    text: str
    selector: str
    kind: str
    value: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector means in a trace.

    Attributes:
        rows: bool [activities].
        meaning: how it was read, in words.
    """

    rows: np.ndarray
    meaning: str


def parse_set(text: str) -> Change:
    """Read ``SELECTOR=...``, ``SELECTOR*FACTOR`` or ``SELECTOR/DIVISOR``.

    Raises:
        HtaDsv4Error: not of that form, or a value that is not a time or a positive factor.
    """
    at = max(text.rfind("="), text.rfind("*"), text.rfind("/"))
    selector, sign, value = text[:at].strip(), text[at : at + 1], text[at + 1 :].strip()
    if at <= 0 or not selector or not value:
        raise _bad(text, "no change in it")
    if sign != "=":
        factor = _number(text, value)
        if sign == "/" and factor == 0:
            raise _bad(text, "division by 0")
        return Change(text, selector, SCALE, 1 / factor if sign == "/" else factor)
    if value.lower() == "floor":
        return Change(text, selector, FLOOR)
    found = _TIME.match(value)
    if found is None:
        raise _bad(text, f"{value!r} is neither floor nor a time with its unit")
    ns = float(found[2]) * _UNIT[found[3].lower()]
    if found[1] is None:
        return Change(text, selector, EACH, ns)
    if int(found[1]) == 0:
        raise _bad(text, "0 launches; write it as --remove")
    return Change(text, selector, REPLACE, ns, int(found[1]))


def remove(selector: str) -> Change:
    """The launches of a selector gone."""
    return Change(f"remove {selector}", selector, REMOVE)


def halve_bytes(selector: str) -> Change:
    """The launches of a selector with half the bytes to move."""
    return Change(f"halve the bytes of {selector}", selector, HALVE_BYTES)


def select(activities: pd.DataFrame, selector: str) -> Selection:
    """The launches a selector means.

    Args:
        activities: classified activities of the counted steps.
        selector: terms joined by ``+``.

    Raises:
        HtaDsv4Error: nothing matches, naming what the trace has.
    """
    rows = np.ones(len(activities), dtype=bool)
    meanings = []
    for term in _JOIN.split(selector):
        mine, meaning = _term(activities, term.strip(), selector)
        rows &= mine
        meanings.append(meaning)
    if not rows.any():
        raise HtaDsv4Error(f"{selector!r}: each term matches launches, but none matches all of them")
    return Selection(rows, " and ".join(meanings))


def _term(activities: pd.DataFrame, term: str, whole: str) -> tuple[np.ndarray, str]:
    key, colon, value = term.partition(":")
    if colon and key in _EXACT_KEYS:
        mine = _equal(activities, key, value)
        if not mine.any():
            raise HtaDsv4Error(
                f"{whole!r}: no {key} {value!r} in the counted steps; there are {_has(activities, key)}"
            )
        return mine, f"{key} {value}"
    if colon and key in _PART_KEYS:
        mine = _holds(activities, key, value)
        if not value or not mine.any():
            look = "kernel" if key == "kernel" else "origin"
            raise HtaDsv4Error(
                f"{whole!r}: no {key} holds {value!r} in the counted steps; see hta-dsv4 shares --by {look}"
            )
        return mine, f"{key} with {value!r}"
    for kind in ("origin", "bucket", "role"):
        mine = _equal(activities, kind, term)
        if mine.any():
            return mine, f"{kind} {term}"
    mine = _holds(activities, "kernel", term)
    if not term or not mine.any():
        raise HtaDsv4Error(
            f"{whole!r}: {term!r} is no origin, bucket, role or part of a kernel's name here; "
            f"buckets: {_has(activities, 'bucket')}; origins: {_has(activities, 'origin')}"
        )
    return mine, f"kernel with {term!r}"


def _equal(activities: pd.DataFrame, key: str, value: str) -> np.ndarray:
    column = _EXACT_KEYS[key]
    if column not in activities:
        return np.zeros(len(activities), dtype=bool)
    out: np.ndarray = (activities[column].astype(str) == value).to_numpy()
    return out


def _holds(activities: pd.DataFrame, key: str, value: str) -> np.ndarray:
    column = _PART_KEYS[key]
    if column not in activities:
        return np.zeros(len(activities), dtype=bool)
    text = activities[column].astype(object)
    out: np.ndarray = (
        text.where(text.notna(), "").astype(str).str.contains(value, regex=False).to_numpy(dtype=bool)
    )
    return out


def _has(activities: pd.DataFrame, key: str) -> str:
    column = _EXACT_KEYS[key]
    return ", ".join(sorted(activities[column].astype(str).unique())) if column in activities else "none"


def _number(text: str, value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        raise _bad(text, f"{value!r} is not a number") from None
    if not math.isfinite(factor) or factor < 0:
        raise _bad(text, f"{value} is not a factor of 0 or more")
    return factor


def _bad(text: str, why: str) -> HtaDsv4Error:
    return HtaDsv4Error(f"--set {text!r}: {why}; write SELECTOR=floor, =12.5us, =43x25us, *0.1 or /2")
