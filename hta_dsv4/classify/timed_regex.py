"""Regular expressions of users, searched with a time limit: a name may be made to keep a regex busy for hours.

What :mod:`hta_dsv4.classify.regex_cost` reads from a pattern refuses most of these when a rule is read, but not all:
fixed counts of short choices, ``^(?:a|aa){40}x``, pass. The standard library cannot stop a search that runs; the
package ``regex`` can. It knows more syntax than ``re``, so a pattern is compiled by ``re`` first, and what the two read
differently is refused.
"""

from __future__ import annotations

import re
import time
from typing import Any

import regex as timed

from hta_dsv4.errors import RulesError

MOST_EACH_S = 0.5
"""What one search may take."""
MOST_S = 10.0
"""What the regex of one rule may take in all."""
# To re any other brace is text; to regex it may allow errors: a{e<=1}
_COUNT = re.compile(r"\{(?:\d+(?:,\d*)?|,\d+)\}")
_POSIX = re.compile(r"\[:\^?\w+:\]")


class TimedRegex:
    """A pattern whose searches may take :data:`MOST_EACH_S` each and :data:`MOST_S` in all.

    Args:
        pattern: as the user wrote it; ``re`` must have compiled it.
        where: file and rule, for the messages.

    Raises:
        RulesError: the pattern means something else to ``regex`` than to ``re``.
    """

    def __init__(self, pattern: str, where: str) -> None:
        odd = "a { that begins no count; write \\{" if _loose_brace(pattern) else None
        if _POSIX.search(pattern):
            odd = "a [:class:]; write its characters"
        try:
            self._pattern: Any = timed.compile(pattern, timed.V0)
        except (timed.error, OverflowError, RecursionError, ValueError, MemoryError) as error:
            odd = f"{error}; write it more plainly" if odd is None else odd
        if odd is not None:
            raise RulesError(f"{where}: its regex can be read in two ways: {odd}")
        self._where, self._took = where, 0.0

    def search(self, text: str) -> Any:
        """As of a pattern of ``re``: a match or ``None``.

        Raises:
            RulesError: time is over.
        """
        began = time.perf_counter()
        try:
            found = self._pattern.search(text, timeout=MOST_EACH_S)
        except TimeoutError:
            raise RulesError(
                f"{self._where}: its regex took over {MOST_EACH_S:g} s on one name, {text[:40]!r}...; "
                "write it without nested or repeated choices, or ask for words = [...]"
            ) from None
        self._took += time.perf_counter() - began
        if self._took > MOST_S:
            raise RulesError(
                f"{self._where}: its regex took {self._took:.0f} s on the names of this trace, the last of them "
                f"{text[:40]!r}...; begin it with ^ or ask for words = [...]"
            )
        return found


def _loose_brace(pattern: str) -> bool:
    """Whether an opening brace outside sets begins no count of repeats."""
    at, end = 0, len(pattern)
    while at < end:
        character = pattern[at]
        if character == "\\":
            at += 2
        elif character == "[":
            at += 1 + pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at)  # a first ] is text
            while at < end and pattern[at] != "]":
                at += 2 if pattern[at] == "\\" else 1
            at += 1
        elif character == "{" and not _COUNT.match(pattern, at):
            return True
        else:
            at += 1
    return False
