"""How is a sweep made? Which values of C, in which order, and what is left of one that came to a stop."""

from __future__ import annotations

from collections.abc import Sequence

from hta_dsv4.analysis.sweep import Sweep
from hta_dsv4.errors import HtaDsv4Error


class SweepStoppedError(Exception):
    """A measurement came to a stop before its end; what was whole until then is kept.

    Attributes:
        sweep: what was measured.
        cause: an interrupt, or the error that the command ends with.
    """

    def __init__(self, sweep: Sweep, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.sweep, self.cause = sweep, cause


def rounds(concurrency: Sequence[int], repeats: int) -> list[tuple[int, int]]:
    """In which order to measure: every round goes over all values of C, one up, the next down.

    A server or GPU that drifts then shows as scatter of the repeats, not as a slope over C.

    Args:
        concurrency: the values, increasing.
        repeats: how many rounds.

    Returns:
        (repeat from 1, C) in order.
    """
    up = list(concurrency)
    return [(r, c) for r in range(1, repeats + 1) for c in (up if r % 2 else up[::-1])]


def levels_of(text: str) -> tuple[int, ...]:
    """Values of C as a user writes them: ``1,4,16,64``.

    Args:
        text: whole numbers with commas; order and doubles do not matter.

    Returns:
        Increasing, each once.

    Raises:
        HtaDsv4Error: a word that is no whole number of at least 1, or none.
    """
    found = set()
    for word in text.split(","):
        try:
            value = int(word)
        except ValueError:
            value = 0
        if value < 1:
            raise HtaDsv4Error(
                f"--concurrency {text}: {word.strip()!r} is no whole number of at least 1; write 1,4,16"
            )
        found.add(value)
    return tuple(sorted(found))
