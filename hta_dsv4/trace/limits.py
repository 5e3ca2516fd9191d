"""How much is too much? Sizes that no trace has, so that a hostile or broken file is refused early; all can be raised.

Each limit is an environment variable, because it is wanted once in years and by every command alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hta_dsv4.errors import HtaDsv4Error

RATIO_VARIABLE = "HTA_DSV4_MAX_RATIO"
"""A file may unpack to this many times its size: 400. Kineto's JSON packs 10 to 40 times smaller."""
EVENT_VARIABLE = "HTA_DSV4_MAX_EVENT_MB"
"""One event, or the text before or after the events, may have this many MB: 64."""
NESTING_VARIABLE = "HTA_DSV4_MAX_NESTING"
"""JSON may be nested this deep: about 900, what Python gives; traces have 5. At most 5000, for the stack's sake."""
MOST_NESTING = 5000


def max_ratio() -> float:
    """Unpacked to packed bytes beyond which a file is refused."""
    return _number(RATIO_VARIABLE, 400.0)


def max_event_bytes() -> int:
    """Bytes of one event, or of the text around the events, beyond which a file is refused."""
    return int(_number(EVENT_VARIABLE, 64.0) * (1 << 20))


@contextmanager
def nesting() -> Iterator[None]:
    """Let JSON be nested as deep as the variable says, where Python's own limit is lower."""
    wanted = min(int(_number(NESTING_VARIABLE, 0.0)), MOST_NESTING)
    before = sys.getrecursionlimit()
    if wanted:
        sys.setrecursionlimit(max(before, wanted + 200))
    try:
        yield
    finally:
        if wanted:
            sys.setrecursionlimit(before)


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e15:
        raise HtaDsv4Error(f"{variable}={text!r:.60}: not a positive number; unset it for {default or 900:g}")
    return value
