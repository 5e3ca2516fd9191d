"""HTA's own objects around frames it has not read: the only module here that constructs them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging import ERROR, getLogger
from typing import Any

import pandas as pd


@contextmanager
def quiet() -> Iterator[None]:
    """Without HTA's log and its deprecations.

    It logs the time of every call as a warning and a Trace without files as an error, and each of its pandas
    calls of an older style warns: nothing a caller of ours could act on.
    """
    logger = getLogger("hta")
    level = logger.level
    logger.setLevel(ERROR + 1)
    try:
        with warnings.catch_warnings():
            for category in (DeprecationWarning, FutureWarning):  # pandas 3's kind derives from the first
                warnings.simplefilter("ignore", category)
            yield
    finally:
        logger.setLevel(level)


def hta_trace(
    frames: dict[int, pd.DataFrame], symbols: Iterable[str], meta: dict[int, dict[str, Any]]
) -> Any:
    """An ``hta.common.trace.Trace`` around frames of ours.

    Args:
        frames: rank -> event frame, row labels equal to the ``index`` column.
        symbols: in the order of their ids.
        meta: rank -> metadata.
    """
    from hta.common.trace import Trace as HtaTrace
    from hta.common.trace_symbol_table import TraceSymbolTable

    table = TraceSymbolTable()
    table.add_symbols(symbols)
    trace = HtaTrace(trace_files={}, trace_dir="")
    trace.symbol_table, trace.traces, trace.meta_data, trace.is_parsed = table, frames, meta, True
    # LabeledTrace parses whatever it is given; without files that would clear is_parsed and log an error.
    trace.parse_traces = lambda *_, **__: None
    return trace


def hta_analysis(trace: Any) -> Any:
    """An ``hta.trace_analysis.TraceAnalysis`` on a given Trace."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis.__new__(TraceAnalysis)  # its __init__ always parses files
    analysis.t = trace
    return analysis
