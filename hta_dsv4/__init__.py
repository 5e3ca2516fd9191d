"""Profile-driven bottleneck analysis for DeepSeek-V4 decode.

>>> import hta_dsv4
>>> run = hta_dsv4.load("decode.pt.trace.json.gz")  # doctest: +SKIP
>>> run.shares(by="bucket").table  # doctest: +SKIP
>>> hta_dsv4.compare({"original": "a.json.gz", "split_k": "b.json.gz"}).table  # doctest: +SKIP
>>> hta_dsv4.why({"original": "a.json.gz", "split_k": "b.json.gz"}).pairs[0].rows  # doctest: +SKIP

Names are imported on first use, so that ``hta_dsv4.capture`` runs where only torch is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hta_dsv4.errors import HtaDsv4Error
    from hta_dsv4.runs.comparing import compare, scaling, why
    from hta_dsv4.runs.loading import load
    from hta_dsv4.runs.run import Run
    from hta_dsv4.shipped import traces

__all__ = ["HtaDsv4Error", "Run", "compare", "load", "scaling", "traces", "why"]

_HOME = {
    "HtaDsv4Error": "hta_dsv4.errors",
    "Run": "hta_dsv4.runs.run",
    "compare": "hta_dsv4.runs.comparing",
    "load": "hta_dsv4.runs.loading",
    "scaling": "hta_dsv4.runs.comparing",
    "traces": "hta_dsv4.shipped",
    "why": "hta_dsv4.runs.comparing",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
