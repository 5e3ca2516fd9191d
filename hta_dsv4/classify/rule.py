"""One rule: its fields, how it is checked when it is read, and what a well-formed one is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hta_dsv4.classify.regex_cost import MOST_DEGREE, degree, explosive
from hta_dsv4.classify.timed_regex import TimedRegex
from hta_dsv4.errors import RulesError

BUCKETS = (
    "attention", "fp32_simt_gemm", "fp4_moe", "glue", "indexer", "dense_gemm", "moe_other", "mhc", "kv_cache",
    "norm_act_quant", "communication", "memory", "sampling", "unknown",
)  # fmt: skip
"""Every bucket, in the order of the tables."""

USER_PRIORITY = 1000
VIEWS = ("function", "path", "full")
_KEYS = {
    "name", "bucket", "role", "priority", "words", "without", "where", "regex", "ambiguous", "comment", "examples",
    "counter_examples",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; see the module's text for the meaning of the fields.

    Attributes:
        pattern: ``regex``, compiled.
        source: the file it came from.
        layer: 0 for bundled rules, 1 for an engine's, 2 and up for the user's files.
    """

    name: str
    bucket: str
    role: str
    priority: int
    words: tuple[str, ...]
    without: tuple[str, ...]
    where: str
    regex: str | None
    ambiguous: str | None
    comment: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]
    source: Path
    layer: int
    pattern: re.Pattern[str] | TimedRegex | None = field(default=None, repr=False, compare=False)


def shorten(text: str) -> str:
    """A name or pattern cut to what fits an error line."""
    return text if len(text) <= 80 else text[:77] + "..."


def texts(entry: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    """The list of strings under a key; raises RulesError naming the place ``at`` when it is something else."""
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise RulesError(f'{at}: {key} must be a list of non-empty strings, e.g. {key} = ["mla|mha"]')
    return tuple(value)


def parse_rule(entry: Any, number: int, path: Path, layer: int) -> Rule:
    """Check and build one ``[[rule]]``; raises RulesError naming file, rule and remedy."""
    if not isinstance(entry, dict):
        raise RulesError(f"{path}: rule {number}: not a table; write [[rule]] above its keys")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise RulesError(f'{path}: rule {number}: has no name; add name = "..."')
    at = f"{path}: rule {name!r}"
    for key in entry:
        if key not in _KEYS:
            raise RulesError(f"{at}: unknown key {key!r}; known keys are {', '.join(sorted(_KEYS))}")
    bucket = entry.get("bucket")
    if bucket not in BUCKETS:
        raise RulesError(f"{at}: unknown bucket {bucket!r}; use one of {', '.join(BUCKETS)}")
    for key in ("role", "comment"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise RulesError(f'{at}: needs {key} = "..."')
    for key in ("regex", "ambiguous"):
        if key in entry and (not isinstance(entry[key], str) or not entry[key]):
            raise RulesError(f"{at}: {key} must be a non-empty string")
    priority = entry.get("priority", USER_PRIORITY if layer >= 2 else None)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RulesError(f"{at}: priority must be a whole number, e.g. priority = {USER_PRIORITY}")
    where = entry.get("where", "path")
    if where not in VIEWS:
        raise RulesError(f"{at}: where = {where!r} is not a view; use one of {', '.join(VIEWS)}")
    must, never = texts(entry, "words", at), texts(entry, "without", at)
    for group in (*must, *never):
        for alternative in group.split("|"):
            if not alternative.strip("* \t"):
                raise RulesError(f"{at}: {group!r} has an alternative that matches anything; name a word")
    regex = entry.get("regex")
    if not must and regex is None:
        raise RulesError(f"{at}: needs words = [...] or regex = '...' to match by")
    pattern: re.Pattern[str] | TimedRegex | None = None
    if regex is not None:
        try:
            pattern = re.compile(regex)
        except (re.error, OverflowError, RecursionError) as error:
            raise RulesError(f"{at}: bad regex {shorten(regex)!r}: {error}; correct it") from None
        if why := explosive(regex):
            raise RulesError(
                f"{at}: regex {shorten(regex)!r} {why}, which can take exponential time; flatten it"
            )
        if (power := degree(regex)) > MOST_DEGREE:
            raise RulesError(
                f"{at}: regex {shorten(regex)!r} has too many parts of any length in a row: on a long name its time "
                f"grows with the power {power}; leave out a leading .*, begin it with ^, or ask for words = [...]"
            )
        if layer >= 2:  # the user's own
            pattern = TimedRegex(regex, at)
    examples, counter = texts(entry, "examples", at), texts(entry, "counter_examples", at)
    if not examples or not counter:
        missing = "examples" if not examples else "counter_examples"
        raise RulesError(f"{at}: needs at least one name in {missing}; they are the rule's tests")
    return Rule(
        name=name, bucket=bucket, role=entry["role"], priority=priority, words=must, without=never, where=where,
        regex=regex, ambiguous=entry.get("ambiguous"), comment=entry["comment"], examples=examples,
        counter_examples=counter, source=path, layer=layer, pattern=pattern,
    )  # fmt: skip
