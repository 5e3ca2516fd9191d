"""Which groups of alternatives the words of a name meet.

A rule asks for groups such as ``"topk|*softmax*|paged_decode"``: a word, a word with wildcards, a phrase of
adjacent words. Kernels share a small vocabulary, so each word is compared with all groups once and the answer is
kept; judging a name is then a union of small sets, however many rules there are. Only phrases are looked for in
the name itself, and only when a rule comes down to one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_VOCABULARY = 50_000


class Lexicon:
    """All groups of a rule set, numbered, and the words met so far."""

    def __init__(self, groups: Iterable[str]) -> None:
        """Number the groups.

        Args:
            groups: group texts, alternatives separated by ``|``; equal texts share a number.
        """
        self.numbers: dict[str, int] = {text: n for n, text in enumerate(dict.fromkeys(groups))}
        self._plain: dict[str, set[int]] = {}
        self._wild: list[tuple[int, re.Pattern[str]]] = []
        self._phrases: dict[int, re.Pattern[str]] = {}
        self._met: dict[str, frozenset[int]] = {}
        spoken: list[str] = []
        for text, number in self.numbers.items():
            wild: list[str] = []
            phrases: list[str] = []
            for alternative in text.split("|"):
                word = alternative.strip().lower()
                pattern = "[^_]*".join(re.escape(part) for part in word.split("*"))
                if "_" in word:
                    phrases.append(pattern)
                elif "*" in word:
                    wild.append(pattern)
                else:
                    self._plain.setdefault(word, set()).add(number)
            if wild:
                self._wild.append((number, re.compile("|".join(wild))))
            if phrases:
                self._phrases[number] = re.compile("_(?:" + "|".join(phrases) + ")(?=_)")
                spoken += phrases
        every = "|".join(dict.fromkeys(spoken))
        self._any_phrase = re.compile(f"_(?:{every})(?=_)") if spoken else None

    def meets(self, view: str) -> set[int]:
        """Numbers of the groups that some single word of a view meets.

        Args:
            view: words framed and joined by ``_``.
        """
        met: set[int] = set()
        for word in set(view.split("_")):
            known = self._met.get(word)
            if known is None:
                known = self._meet(word)
            met |= known
        return met

    def _meet(self, word: str) -> frozenset[int]:
        found = {number for number, pattern in self._wild if pattern.fullmatch(word)} if word else set()
        known = frozenset(found | self._plain.get(word, set()))
        if len(self._met) >= _MAX_VOCABULARY:  # a trace of random names must not fill the memory
            self._met.clear()
        self._met[word] = known
        return known

    def phrase(self, number: int, view: str) -> bool:
        """Whether a view holds one of the phrases of a group."""
        pattern = self._phrases.get(number)
        return pattern is not None and pattern.search(view) is not None

    def any_phrase(self, view: str) -> bool:
        """Whether a view holds a phrase of any group; most hold none, so that no group need be asked."""
        return self._any_phrase is not None and self._any_phrase.search(view) is not None

    def has_phrases(self, number: int) -> bool:
        """Whether a group has any phrase."""
        return number in self._phrases
