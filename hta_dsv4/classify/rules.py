"""A kernel's name -> bucket and role, by the rules of ``rules.toml`` and of the user's own files.

A rule asks for *words* (:mod:`hta_dsv4.classify.names`), not for vendors: what the kernel does decides. Rules
are tried by falling priority and the first that matches wins; :meth:`RuleSet.explain` shows the others.

A rules file is TOML::

    disable = ["bundled-rule-name"]      # optional: bundled rules to leave out

    [[rule]]
    name = "my-attention"                # a rule of the same name in an earlier layer is replaced
    bucket = "attention"                 # one of BUCKETS
    role = "attention_core"              # finer; any word
    priority = 1000                      # optional; bundled rules use 1..999, files of users default to 1000
    words = ["mla|mha", "decode"]        # every entry must be found; "|" separates alternatives
    without = ["reduce|combine"]         # optional: none of these may be found
    where = "path"                       # optional: function | path (default) | full
    regex = "^fused_mla"                 # optional, on the cleaned lower-case text; all conditions must hold
    ambiguous = "why the name alone cannot tell"   # optional
    comment = "why this rule exists"
    examples = ["my_mla_decode_kernel"]                  # names this rule must win
    counter_examples = ["my_mla_decode_reduce_kernel"]   # names this rule must not win

An alternative is a word (``topk``), a phrase of adjacent words (``paged_decode``) or a word with wildcards
(``*gemm*``, which never crosses a word boundary).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hta_dsv4.classify.names import Words, normalise
from hta_dsv4.errors import RulesError
from hta_dsv4.trace import activities as col

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUCKETS = (
    "attention", "fp32_simt_gemm", "fp4_moe", "glue", "indexer", "dense_gemm", "moe_other", "mhc", "kv_cache",
    "norm_act_quant", "communication", "memory", "sampling", "unknown",
)  # fmt: skip
"""Every bucket, in the order of the tables."""

UNKNOWN = "unknown"
USER_PRIORITY = 1000
_HERE = Path(__file__).parent
_VIEWS = ("function", "path", "full")
_KEYS = {
    "name", "bucket", "role", "priority", "words", "without", "where", "regex", "ambiguous", "comment", "examples",
    "counter_examples",
}  # fmt: skip
# A repeat inside a repeated group is how a regular expression becomes exponential; a trace may hold any name.
_NESTED_REPEAT = re.compile(r"\((?:[^()\\]|\\.)*[*+](?:[^()\\]|\\.)*\)\s*(?:[*+]|\{\d*,)")


@dataclass(frozen=True, slots=True)
class Match:
    """What a name was judged to be.

    Attributes:
        bucket: one of :data:`BUCKETS`.
        role: finer than the bucket.
        rule: the rule that won; ``"kind"`` for copies and sets, ``"none"`` where no rule matched.
        why: why the name alone cannot tell for certain, or ``None`` where it can.
    """

    bucket: str
    role: str
    rule: str
    why: str | None = None

    @property
    def ambiguous(self) -> bool:
        """Whether the name alone leaves doubt."""
        return self.why is not None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One rule that matches a name.

    Attributes:
        rule, bucket, role, priority: of that rule.
    """

    rule: str
    bucket: str
    role: str
    priority: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a name is in its bucket.

    Attributes:
        name: as given.
        bucket, role, rule: the judgement, as in :class:`Match`.
        candidates: every rule that matches, the winner first.
        ambiguous: why the name alone cannot tell, or ``None``.
        words: the words the rules looked at (namespaces and function).
        comment: why the winning rule exists; empty where none matched.
    """

    name: str
    bucket: str
    role: str
    rule: str
    candidates: tuple[Candidate, ...]
    ambiguous: str | None
    words: tuple[str, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two rules of one priority that put one name in different buckets; the earlier in the file won.

    Attributes:
        name: the kernel.
        priority: of both rules.
        rules: the rules' names, the winner first.
        buckets: their buckets, in the same order.
    """

    name: str
    priority: int
    rules: tuple[str, ...]
    buckets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RulesReport:
    """How a rule set fares on a set of names.

    Attributes:
        dead: rules that won no name, in priority order.
        conflicts: see :class:`Conflict`.
        total: sum of the weights given.
        unknown: sum of the weights of names that no rule matched.
        unknown_names: those names with their weights, heaviest first.
        ambiguous: sum of the weights of names judged with a doubt.
    """

    dead: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    total: float
    unknown: float
    unknown_names: tuple[tuple[str, float], ...]
    ambiguous: float

    @property
    def unknown_share(self) -> float:
        """``unknown / total``; 0 when there is nothing."""
        return self.unknown / self.total if self.total else 0.0


class _Group:
    """Alternatives of which one must be found in a word string."""

    __slots__ = ("phrases", "plain", "wild")

    def __init__(self, text: str) -> None:
        plain: set[str] = set()
        phrases: list[str] = []
        wild: list[str] = []
        for alternative in text.split("|"):
            word = alternative.strip().lower()
            if "*" in word:
                wild.append("[^_]*".join(re.escape(part) for part in word.split("*")))
            elif "_" in word:
                phrases.append(f"_{word}_")
            else:
                plain.add(word)
        self.plain = frozenset(plain)
        self.phrases = tuple(phrases)
        self.wild = re.compile("_(?:" + "|".join(wild) + ")(?=_)") if wild else None

    def found(self, view: str, tokens: frozenset[str]) -> bool:
        if not self.plain.isdisjoint(tokens):
            return True
        for phrase in self.phrases:
            if phrase in view:
                return True
        return self.wild is not None and self.wild.search(view) is not None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; see the module's text for the meaning of the fields.

    Attributes:
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
    _must: tuple[_Group, ...] = field(default=(), repr=False, compare=False)
    _never: tuple[_Group, ...] = field(default=(), repr=False, compare=False)
    _pattern: re.Pattern[str] | None = field(default=None, repr=False, compare=False)

    def matches(self, name: Words, tokens: Mapping[str, frozenset[str]]) -> bool:
        """Whether every condition holds for a normalised name.

        Args:
            name: from :func:`hta_dsv4.classify.names.normalise`.
            tokens: view name -> the set of that view's words.
        """
        view: str = getattr(name, self.where)
        have = tokens[self.where]
        for group in self._must:
            if not group.found(view, have):
                return False
        for group in self._never:
            if group.found(view, have):
                return False
        return self._pattern is None or self._pattern.search(name.text) is not None


class RuleSet:
    """Rules in the order they are tried. Build one with :func:`load_rules` or :func:`default_rules`."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Order the rules: highest priority first, then the later layer, then the file's order."""
        self.rules: tuple[Rule, ...] = tuple(sorted(rules, key=lambda r: (-r.priority, -r.layer)))
        self._cache: dict[str, Match] = {}

    def _matching(self, name: str) -> Iterable[Rule]:
        words = normalise(name)
        tokens = {view: frozenset(getattr(words, view).split("_")) for view in _VIEWS}
        return (rule for rule in self.rules if rule.matches(words, tokens))

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
            rule = next(iter(self._matching(name)), None)
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
                    wrong.append((rule, f"example {_short(example)!r} is won by {match.rule!r}"))
            for example in rule.counter_examples:
                if self.classify(example).rule == rule.name:
                    wrong.append((rule, f"counter-example {_short(example)!r} is won by this very rule"))
        return wrong


def _categorical(
    values: list[str], inverse: np.ndarray[Any, Any], order: tuple[str, ...] | None, index: pd.Index[Any]
) -> pd.Series[Any]:
    """One label per distinct value, spread over the rows."""
    categories = list(order) if order is not None else sorted(set(values))
    position = {label: at for at, label in enumerate(categories)}
    codes = np.array([position[v] for v in values], dtype=np.int64)
    spread = codes[inverse] if len(values) else np.array([], dtype=np.int64)
    return pd.Series(pd.Categorical.from_codes(spread, categories=categories), index=index)


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise RulesError(f"{path}: no such rules file; check the path") from None
    except OSError as error:
        raise RulesError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise RulesError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise RulesError(f"{path}: not valid TOML: {error}; correct it there") from None


def _texts(entry: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise RulesError(f'{at}: {key} must be a list of non-empty strings, e.g. {key} = ["mla|mha"]')
    return tuple(value)


def _rule(entry: Any, number: int, path: Path, layer: int) -> Rule:
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
    if where not in _VIEWS:
        raise RulesError(f"{at}: where = {where!r} is not a view; use one of {', '.join(_VIEWS)}")
    must, never = _texts(entry, "words", at), _texts(entry, "without", at)
    for group in (*must, *never):
        for alternative in group.split("|"):
            if not alternative.strip("* \t"):
                raise RulesError(f"{at}: {group!r} has an alternative that matches anything; name a word")
    regex = entry.get("regex")
    if not must and regex is None:
        raise RulesError(f"{at}: needs words = [...] or regex = '...' to match by")
    pattern = None
    if regex is not None:
        if _NESTED_REPEAT.search(regex):
            raise RulesError(
                f"{at}: regex {_short(regex)!r} repeats a repeat, which can take exponential time; flatten it"
            )
        try:
            pattern = re.compile(regex)
        except (re.error, OverflowError) as error:
            raise RulesError(f"{at}: bad regex {_short(regex)!r}: {error}; correct it") from None
    examples, counter = _texts(entry, "examples", at), _texts(entry, "counter_examples", at)
    if not examples or not counter:
        missing = "examples" if not examples else "counter_examples"
        raise RulesError(f"{at}: needs at least one name in {missing}; they are the rule's tests")
    return Rule(
        name=name, bucket=bucket, role=entry["role"], priority=priority, words=must, without=never, where=where,
        regex=regex, ambiguous=entry.get("ambiguous"), comment=entry["comment"], examples=examples,
        counter_examples=counter, source=path, layer=layer, _must=tuple(_Group(g) for g in must),
        _never=tuple(_Group(g) for g in never), _pattern=pattern,
    )  # fmt: skip


def _layer(path: Path, layer: int) -> tuple[list[Rule], tuple[str, ...]]:
    """The rules of one file and the names it disables."""
    document = _read(path)
    for key in document:
        if key not in ("rule", "disable"):
            raise RulesError(f"{path}: unknown key {key!r}; a rules file holds [[rule]] tables and disable = [...]")
    entries = document.get("rule", [])
    if not isinstance(entries, list):
        raise RulesError(f"{path}: rule must be an array of tables; write [[rule]], with two brackets")
    rules = [_rule(entry, number, path, layer) for number, entry in enumerate(entries, 1)]
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise RulesError(f"{path}: rule {rule.name!r} is there twice; give each rule its own name")
        seen.add(rule.name)
    return rules, _texts(document, "disable", str(path))


def engines() -> tuple[str, ...]:
    """Names of the bundled engine layers, e.g. ``("sglang", "vllm")``."""
    return tuple(sorted(path.stem for path in (_HERE / "engines").glob("*.toml")))


def load_rules(*user_files: Path | str, engine: str | None = None) -> RuleSet:
    """Load the bundled rules, an engine's layer and the user's files, in this order.

    A later layer replaces rules of the same name and, at equal priority, is tried first. The examples of the
    engine's and the user's rules are checked here.

    Args:
        user_files: TOML files, the last one strongest.
        engine: one of :func:`engines` (names so generic that only the engine tells them), or ``None``.

    Returns:
        The rule set.

    Raises:
        RulesError: a file is missing or not TOML, a rule is malformed, or an example does not hold; the
            message names file, rule and remedy.
    """
    paths = [(_HERE / "rules.toml", 0)]
    if engine is not None:
        if engine not in engines():
            raise RulesError(f"no rules for engine {engine!r}; use one of {', '.join(engines())}, or none")
        paths.append((_HERE / "engines" / f"{engine}.toml", 1))
    paths += [(Path(path), number) for number, path in enumerate(user_files, 2)]
    merged: dict[str, Rule] = {}
    for path, layer in paths:
        rules, disabled = _layer(path, layer)
        for name in disabled:
            if merged.pop(name, None) is None:
                raise RulesError(f"{path}: disable names {name!r}, which is no rule of an earlier layer; drop it")
        for rule in rules:
            merged.pop(rule.name, None)
            merged[rule.name] = rule
    result = RuleSet(merged.values())
    for _, layer in paths[1:]:
        for rule, problem in result.failures(layer):
            raise RulesError(
                f"{rule.source}: rule {rule.name!r}: {problem}; correct the rule, the example or the priority"
            )
    return result


@lru_cache(maxsize=1)
def default_rules() -> RuleSet:
    """The bundled rules alone, loaded once."""
    return load_rules()
