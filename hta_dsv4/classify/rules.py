"""A kernel's name -> bucket and role, by rules that are data (:mod:`hta_dsv4.classify.rules_file`).

A rule asks for *words* (:mod:`hta_dsv4.classify.names`), not for vendors: what the kernel does decides. Rules
are tried by falling priority and the first that matches wins; :meth:`RuleSet.explain` shows the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.classify.lexicon import Lexicon
from hta_dsv4.classify.names import normalise
from hta_dsv4.classify.results import Candidate, Conflict, Explanation, Match, RulesReport
from hta_dsv4.classify.rule import BUCKETS, VIEWS, Rule, shorten
from hta_dsv4.trace import activities as col

UNKNOWN = "unknown"
# A rule, its view, and the groups it must and must not meet: by single words, and by phrases
_Step = tuple[Rule, int, frozenset[int], tuple[int, ...], frozenset[int], tuple[int, ...]]


class RuleSet:
    """Rules in the order they are tried. :mod:`~hta_dsv4.classify.rules_file` loads one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Order the rules: highest priority first, then the later layer, then the file's order."""
        self.rules: tuple[Rule, ...] = tuple(sorted(rules, key=lambda r: (-r.priority, -r.layer)))
        self._lexicon = lexicon = Lexicon(g for rule in self.rules for g in (*rule.words, *rule.without))
        self._plan: list[_Step] = []
        for rule in self.rules:
            must = [lexicon.numbers[group] for group in rule.words]
            never = [lexicon.numbers[group] for group in rule.without]
            self._plan.append(
                (
                    rule,
                    VIEWS.index(rule.where),
                    frozenset(n for n in must if not lexicon.has_phrases(n)),
                    tuple(n for n in must if lexicon.has_phrases(n)),
                    frozenset(never),
                    tuple(n for n in never if lexicon.has_phrases(n)),
                )
            )
        self._cache: dict[str, Match] = {}

    def _matching(self, name: str) -> Iterator[Rule]:
        """The rules that match a name, in the order they are tried; lazy, because most callers want one."""
        words = normalise(name)
        phrase = self._lexicon.phrase
        views = [words.function, words.path, ""]
        met: list[set[int] | None] = [None] * len(VIEWS)
        spoken = [False] * len(VIEWS)  # whether a view holds any phrase
        for rule, at, must, must_phrases, never, never_phrases in self._plan:
            have = met[at]
            if have is None:
                views[at] = getattr(words, VIEWS[at])  # the full view is made only when a rule asks for it
                have = met[at] = self._lexicon.meets(views[at])
                spoken[at] = self._lexicon.any_phrase(views[at])
            if not must <= have or not never.isdisjoint(have):
                continue
            view = views[at]
            if must_phrases:
                if not spoken[at]:
                    if not have.issuperset(must_phrases):
                        continue
                elif not all(n in have or phrase(n, view) for n in must_phrases):
                    continue
            if never_phrases and spoken[at] and any(phrase(n, view) for n in never_phrases):
                continue
            if rule.pattern is None or rule.pattern.search(words.text) is not None:
                yield rule

    def classify(self, name: str, kind: str = col.KERNEL) -> Match:
        """Judge one name.

        Args:
            name: as the profiler wrote it.
            kind: ``kernel``, ``memcpy`` or ``memset``; the last two are bucket ``memory`` whatever the name.

        Returns:
            The judgement; bucket ``unknown`` where no rule matches, never an error.
        """
        if kind in (col.MEMCPY, col.MEMSET):
            return Match("memory", kind, "kind")
        known = self._cache.get(name)
        if known is None:
            rule = next(self._matching(name), None)
            known = (
                Match(UNKNOWN, UNKNOWN, "none", "no rule knows these words")
                if rule is None
                else Match(rule.bucket, rule.role, rule.name, rule.ambiguous)
            )
            if len(self._cache) < 200_000:
                self._cache[name] = known
        return known

    def explain(self, name: str) -> Explanation:
        """Why a name is where it is: the rule that won and every other rule that matches.

        Args:
            name: as the profiler wrote it.
        """
        matching = tuple(self._matching(name))
        match = self.classify(name)
        return Explanation(
            name=name,
            bucket=match.bucket,
            role=match.role,
            rule=match.rule,
            candidates=tuple(Candidate(r.name, r.bucket, r.role, r.priority) for r in matching),
            ambiguous=match.why,
            words=tuple(w for w in normalise(name).path.split("_") if w),
            comment=matching[0].comment if matching else "",
        )

    def classify_frame(self, activities: pd.DataFrame) -> pd.DataFrame:
        """Add the columns bucket, role and rule to an activity table.

        Each distinct (kind, name) is judged once, whatever the number of rows.

        Args:
            activities: a table with at least ``name`` and ``kind``
                (:mod:`hta_dsv4.trace.activities`); it is not modified.

        Returns:
            A new frame with the categorical columns ``bucket`` (categories: :data:`BUCKETS`), ``role`` and
            ``rule``. A missing name is ``unknown``.
        """
        names = activities[col.NAME].astype("category")
        kinds = activities[col.KIND].astype("category")
        kind_labels = [str(k) for k in kinds.cat.categories]
        width = len(kind_labels) + 1
        # -1 is the code of a missing value: shifted by one, so that the pair fits one integer
        pair = (names.cat.codes.to_numpy(np.int64) + 1) * width + kinds.cat.codes.to_numpy(np.int64) + 1
        distinct, inverse = np.unique(pair, return_inverse=True)
        name_labels = names.cat.categories
        judged: list[Match] = []
        for code in distinct.tolist():
            name_code, kind_code = code // width - 1, code % width - 1
            kind = kind_labels[kind_code] if kind_code >= 0 else col.KERNEL
            label = "" if name_code < 0 else str(name_labels[name_code])
            judged.append(self.classify(label, kind))
        out = activities.copy(deep=False)
        out[col.BUCKET] = _categorical([m.bucket for m in judged], inverse, BUCKETS, activities.index)
        out[col.ROLE] = _categorical([m.role for m in judged], inverse, None, activities.index)
        out[col.RULE] = _categorical([m.rule for m in judged], inverse, None, activities.index)
        return out

    def report(self, names_with_time: Mapping[str, float] | Iterable[tuple[str, float]]) -> RulesReport:
        """Dead rules, conflicts and the unknown share on a set of kernels.

        Args:
            names_with_time: kernel name -> weight (summed duration in ns, or 1), or such pairs; a name given
                twice is summed.
        """
        pairs = names_with_time.items() if isinstance(names_with_time, Mapping) else names_with_time
        weights: dict[str, float] = {}
        for name, weight in pairs:
            weights[name] = weights.get(name, 0) + weight
        won: set[str] = set()
        conflicts: list[Conflict] = []
        unknown: list[tuple[str, float]] = []
        doubtful: float = 0
        for name, weight in weights.items():
            matching = tuple(self._matching(name))
            if not matching:
                unknown.append((name, weight))
                continue
            first = matching[0]
            won.add(first.name)
            if first.ambiguous is not None:
                doubtful += weight
            peers = [r for r in matching if r.priority == first.priority and r.layer == first.layer]
            if any(r.bucket != first.bucket for r in peers):
                conflicts.append(
                    Conflict(
                        name, first.priority, tuple(r.name for r in peers), tuple(r.bucket for r in peers)
                    )
                )
        unknown.sort(key=lambda pair: (-pair[1], pair[0]))
        return RulesReport(
            dead=tuple(r.name for r in self.rules if r.name not in won),
            conflicts=tuple(conflicts),
            total=sum(weights.values()),
            unknown=sum(weight for _, weight in unknown),
            unknown_names=tuple(unknown),
            ambiguous=doubtful,
        )

    def failures(self, layer: int | None = None) -> list[tuple[Rule, str]]:
        """Rules whose examples do not hold.

        Args:
            layer: only rules of this layer; ``None`` for all.

        Returns:
            (rule, what is wrong) pairs, empty when every example and counter-example holds.
        """
        wrong: list[tuple[Rule, str]] = []
        for rule in self.rules:
            if layer is not None and rule.layer != layer:
                continue
            for example in rule.examples:
                match = self.classify(example)
                if match.rule != rule.name:
                    wrong.append((rule, f"example {shorten(example)!r} is won by {match.rule!r}"))
            for example in rule.counter_examples:
                if self.classify(example).rule == rule.name:
                    wrong.append((rule, f"counter-example {shorten(example)!r} is won by this very rule"))
        return wrong


def _categorical(
    values: list[str], inverse: np.ndarray[Any, Any], order: tuple[str, ...] | None, index: pd.Index[Any]
) -> pd.Series[Any]:
    """One label per distinct value, spread over the rows."""
    categories = list(order) if order is not None else sorted(set(values))
    position = {label: at for at, label in enumerate(categories)}
    codes = np.array([position[v] for v in values], dtype=np.int64)
    spread = codes[inverse] if len(values) else np.array([], dtype=np.int64)
    return pd.Series(pd.Categorical.from_codes(spread, categories=pd.Index(categories)), index=index)
