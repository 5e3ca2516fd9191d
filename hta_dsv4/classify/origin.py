"""Which part of the model asked for each activity: the innermost telling thing around its launch -> origin.

Bucket and role say what a kernel *is*, by its name; the origin says who *wanted* it. A copy is glue whoever asks, but
only the origin tells that most copies of a step serve the indexer. What tells is, from strong to weak: a range named
with ``record_function``, a module or a Python function (where stacks were recorded), the CPU op; the rules are in
``origins.toml``. Where nothing around the launch tells, a kernel that only one part of the model uses tells by its
role, and is marked as inferred. What has no origin says ``unknown``: nothing is guessed silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.classify.origin_columns import (
    CONFIDENCE,
    FRAME,
    KERNEL,
    METHODS,
    MODULE,
    NONE,
    OP,
    SCOPE,
    UNKNOWN,
    Origins,
    replayed,
)
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.labels import where_label
from hta_dsv4.trace.link import MODULE_PREFIX, paths_around
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.sequences import encode

_FRAME = re.compile(r"^(?P<file>[^()]*?)\(\d+\): (?P<function>.+)$")
_MODULE_NUMBER = re.compile(r"_\d+$")
_COLUMNS = [col.ORIGIN, col.ORIGIN_METHOD, col.ORIGIN_CONFIDENCE]
KINDS = (SCOPE, MODULE, FRAME, OP)


@dataclass(frozen=True, slots=True)
class OriginRule:
    """One rule; the fields are those of ``origins.toml``."""

    name: str
    origin: str
    priority: int
    on: tuple[str, ...]
    pattern: re.Pattern[str]
    inside: re.Pattern[str] | None
    comment: str
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """One judgement.

    Attributes:
        origin: one of :data:`ORIGINS`.
        method: one of :data:`METHODS`.
        confidence: 0 to 1, see :data:`CONFIDENCE`.
        rule: the rule that won, or ``"none"``.
        element: the part of the path that told, as recorded; empty where none did.
    """

    origin: str
    method: str
    confidence: float
    rule: str
    element: str = ""


_MOST_JUDGED = 100_000
NOWHERE = Origin(UNKNOWN, NONE, 0.0, "none")


class OriginRules:
    """Rules in the order they are tried. :mod:`~hta_dsv4.classify.origins_file` loads one."""

    def __init__(
        self,
        rules: Sequence[OriginRule],
        kernel_roles: Mapping[str, str],
        kernel_names: Sequence[tuple[str, re.Pattern[str], str]] = (),
    ) -> None:
        """Order the rules, highest priority first.

        Args:
            rules: as read.
            kernel_roles: role -> origin, for roles that one part of the model alone uses.
            kernel_names: (role, pattern, origin), for kernels of a shared role whose names say for whom they are.
        """
        self.kernel_names = tuple(kernel_names)
        self.rules = tuple(sorted(rules, key=lambda r: -r.priority))
        self.kernel_roles = dict(kernel_roles)
        # Variants of one model launch from the same few thousand places: judged once, found again in each.
        self._judged: dict[tuple[str | None, str | None], Origin] = {}

    def of_path(self, path: Sequence[str], op: str | None = None) -> Origin:
        """Judge what stood around a launch.

        Args:
            path: scopes, modules and Python functions around it as recorded, outermost first.
            op: the CPU op, innermost of all.

        Returns:
            The origin; ``unknown`` with method ``none`` where nothing tells.
        """
        parts = [(*element(p), p) for p in path] + ([(OP, op, op)] if op else [])
        for _, equals in groupby(self.rules, key=lambda r: r.priority):
            found = [(depth, rule) for rule in equals if (depth := _deepest(rule, parts)) is not None]
            if found:
                depth, rule = max(found, key=lambda pair: pair[0])
                kind, _, recorded = parts[depth]
                return Origin(rule.origin, kind, CONFIDENCE[kind], rule.name, recorded)
        return NOWHERE

    def _of_launch(self, path: str | None, op: str | None) -> Origin:
        """As :meth:`of_path`, of a path as a table has it, remembered."""
        found = self._judged.get((path, op))
        if found is None:
            if len(self._judged) >= _MOST_JUDGED:  # a trace whose names are all different
                self._judged.clear()
            found = self._judged[path, op] = self.of_path(path.split(col.SCOPE_SEP) if path else [], op)
        return found

    def of_kernel(self, role: str, name: str = "") -> Origin:
        """What a kernel's role, or its name within the role, says of itself."""
        named = (o for r, pattern, o in self.kernel_names if r == role and pattern.search(name))
        origin = next(named, None) or self.kernel_roles.get(role)
        return NOWHERE if origin is None else Origin(origin, KERNEL, CONFIDENCE[KERNEL], f"role {role}")

    def knows(self, recorded: str) -> bool:
        """Whether a scope, module or Python function says something to any rule, also as what encloses another."""
        kind, text = element(recorded)
        return any(
            (kind in r.on and r.pattern.search(text)) or (r.inside is not None and r.inside.search(text))
            for r in self.rules
        )

    def failures(self) -> list[str]:
        """Examples that do not hold, one sentence each; a path is written with `` > `` between its elements."""
        wrong = []
        for rule in self.rules:
            for want, texts in ((True, rule.examples), (False, rule.counter_examples)):
                for text in texts:
                    found = self._of_example(text)
                    if (found.rule == rule.name) is not want:
                        what = "is won by" if want else "should not be won by"
                        wrong.append(f"rule {rule.name!r}: {text!r} {what} {found.rule!r}")
        return wrong

    def _of_example(self, text: str) -> Origin:
        parts = text.split(col.SCOPE_SEP)
        if len(parts) == 1 and "::" in text:
            return self.of_path((), text)
        if len(parts) == 1 and text.startswith(("nccl:", "gloo:")):
            return self.of_path((), text)
        return self.of_path([_as_recorded(p) for p in parts])

    def classify_frame(self, trace: Trace, activities: pd.DataFrame) -> pd.DataFrame:
        """Add origin, its method and its confidence to an activity table.

        Args:
            trace: the trace of the table; its events are asked for Python functions, where it has them.
            activities: with links; with ``role`` the role is asked where nothing else tells. Not modified.

        Returns:
            A new frame with ``origin`` and ``origin_method`` (category) and ``origin_confidence`` (float32).
        """
        paths = self._paths(trace, activities)
        ops = activities[col.OP] if col.OP in activities else _missing(activities)
        roles = activities[col.ROLE] if col.ROLE in activities else _missing(activities)
        names = activities[col.NAME].astype("category")
        columns = (paths, ops, roles, names)
        codes = [c.cat.codes.to_numpy().astype(np.int64) for c in columns]
        # what stands around a replay is not what asked for the kernel
        codes[0] = np.where(replayed(activities), -1, codes[0])
        special = {role for role, _, _ in self.kernel_names}
        codes[3] = np.where(where_label(roles, special.__contains__), codes[3], -1)  # few roles ask for names
        back = encode(codes)
        first = np.unique(back, return_index=True)[1]
        texts = []
        for column, code in zip(columns, codes, strict=True):
            labels = column.cat.categories.tolist()
            texts.append([str(labels[c]) if c >= 0 else None for c in code[first].tolist()])
        judged = []
        for path, op, role, name in zip(*texts, strict=True):
            found = self._of_launch(path, op)
            if found is NOWHERE and role is not None:
                found = self.of_kernel(role, name or "")
            judged.append(found)
        out = activities.copy(deep=False)
        origins = Origins(activities.drop(columns=_COLUMNS, errors="ignore"))
        origins.origin = np.array([origins.code(o.origin) for o in judged], dtype=np.int64)[back]
        origins.method = np.array([METHODS.index(o.method) for o in judged], dtype=np.int64)[back]
        origins.confidence = np.array([o.confidence for o in judged], dtype=np.float32)[back]
        return origins.write(out)

    def _paths(self, trace: Trace, activities: pd.DataFrame) -> pd.Series[Any]:
        """The path around each launch: the scope column, or a finer one where Python functions were read."""
        events = trace.events
        functions = len(events) > 0 and bool((events[col.CATEGORY] == "python_function").any())
        if functions and col.LAUNCH_INDEX in activities:
            return paths_around(activities, events, self.knows)
        return activities[col.SCOPE] if col.SCOPE in activities else _missing(activities)


def _deepest(rule: OriginRule, parts: Sequence[tuple[str, str, str]]) -> int | None:
    """The innermost element a rule matches, or ``None``."""
    for depth in range(len(parts) - 1, -1, -1):
        kind, text, _ = parts[depth]
        if kind not in rule.on or not rule.pattern.search(text):
            continue
        if rule.inside is None or any(rule.inside.search(outer) for _, outer, _ in parts[:depth]):
            return depth
    return None


def element(recorded: str) -> tuple[str, str]:
    """Kind and text of a path element, as rules see it.

    Args:
        recorded: e.g. ``nn.Module: C4Indexer_7`` or ``.../python/sglang/srt/models/deepseek_v4.py(1884): hc_pre``.

    Returns:
        (kind, text), e.g. ``("module", "C4Indexer")``, ``("frame", "sglang/srt/models/deepseek_v4.py: hc_pre")``.
    """
    if recorded.startswith(MODULE_PREFIX):
        return MODULE, _MODULE_NUMBER.sub("", recorded[len(MODULE_PREFIX) :])
    if found := _FRAME.match(recorded):
        return (
            FRAME,
            f"{found['file'].rpartition('/python/')[2].rpartition('site-packages/')[2]}: {found['function']}",
        )
    return SCOPE, recorded


def _as_recorded(example: str) -> str:
    """An example's element in the spelling of a trace."""
    if re.fullmatch(r"[A-Z]\w*", example):
        return f"{MODULE_PREFIX}{example}_0"
    if found := re.fullmatch(r"(\S+\.py): (\S+)", example):
        return f"{found[1]}(1): {found[2]}"
    return example


def _missing(activities: pd.DataFrame) -> pd.Series[Any]:
    return pd.Series(pd.Categorical([None] * len(activities), categories=[]), index=activities.index)
