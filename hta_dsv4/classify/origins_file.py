"""Where origin rules come from: ``origins.toml``, or a file in its form, with the examples that test each rule."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from hta_dsv4.classify.origin import KINDS, OriginRule, OriginRules
from hta_dsv4.errors import RulesError
from hta_dsv4.trace.toml_text import from_toml


def load_origins(path: Path | None = None) -> OriginRules:
    """Read origin rules.

    Args:
        path: a TOML file in the form of ``origins.toml``; by default that one.

    Returns:
        The rules.

    Raises:
        RulesError: missing, not TOML, a malformed rule, or an example that does not hold: file, rule and remedy.
    """
    path = path or Path(__file__).with_name("origins.toml")
    try:
        document = from_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise RulesError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits and 5,000 brackets too
        raise RulesError(f"{path}: not valid TOML: {error}; correct it there") from None
    unknown = set(document) - {"rule", "kernel_roles", "kernel_name"}
    if unknown:
        raise RulesError(
            f"{path}: unknown key {min(unknown)!r}; origin rules hold [[rule]], [kernel_roles] and [[kernel_name]]"
        )
    rules = OriginRules(
        [_rule(entry, number, path) for number, entry in enumerate(document.get("rule", []), 1)],
        document.get("kernel_roles", {}),
        [_kernel_name(entry, path) for entry in document.get("kernel_name", [])],
    )
    for problem in rules.failures():
        raise RulesError(f"{path}: {problem}; correct the rule, the example or the priority")
    return rules


def _rule(entry: Any, number: int, path: Path) -> OriginRule:
    at = f"{path}: rule {entry.get('name', number) if isinstance(entry, dict) else number!r}"
    if not isinstance(entry, dict):
        raise RulesError(f"{at}: not a table; write [[rule]] above its keys")
    allowed = {
        "name",
        "origin",
        "priority",
        "on",
        "pattern",
        "inside",
        "comment",
        "examples",
        "counter_examples",
    }
    for key in entry:
        if key not in allowed:
            raise RulesError(f"{at}: unknown key {key!r}; known keys are {', '.join(sorted(allowed))}")
    for key in ("name", "origin", "pattern", "comment"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise RulesError(f'{at}: needs {key} = "..."')
    on = entry.get("on", list(KINDS))
    if not isinstance(on, list) or not set(on) <= set(KINDS):
        raise RulesError(f"{at}: on = {on!r}; use some of {', '.join(KINDS)}")
    if not isinstance(entry.get("priority"), int):
        raise RulesError(f"{at}: needs priority, a whole number")
    for key in ("examples", "counter_examples"):
        if not entry.get(key):
            raise RulesError(f"{at}: needs at least one entry in {key}; they are the rule's tests")
    try:
        pattern = re.compile(entry["pattern"])
        inside = re.compile(entry["inside"]) if "inside" in entry else None
    except re.error as error:
        raise RulesError(f"{at}: bad regular expression: {error}; correct it") from None
    return OriginRule(
        entry["name"], entry["origin"], entry["priority"], tuple(on), pattern, inside, entry["comment"],
        tuple(entry["examples"]), tuple(entry["counter_examples"]),
    )  # fmt: skip


def _kernel_name(entry: Any, path: Path) -> tuple[str, re.Pattern[str], str]:
    if not isinstance(entry, dict) or set(entry) != {"role", "pattern", "origin"}:
        raise RulesError(f"{path}: a [[kernel_name]] needs role, pattern and origin, and nothing else")
    try:
        return entry["role"], re.compile(entry["pattern"]), entry["origin"]
    except re.error as error:
        raise RulesError(
            f"{path}: [[kernel_name]] {entry['role']}: bad regular expression: {error}"
        ) from None


@lru_cache(maxsize=1)
def default_origins() -> OriginRules:
    """The bundled rules, loaded once."""
    return load_origins()
