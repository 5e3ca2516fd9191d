"""What the rules say about a name: the judgement, its explanation, and how a rule set fares on many names."""

from __future__ import annotations

from dataclasses import dataclass


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
