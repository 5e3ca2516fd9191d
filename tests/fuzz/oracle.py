"""Did the reader do right by this input? Checks against the slow reader, and of one way of reading against another."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd

from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import cache, cache_folder
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.reader import read_trace
from tests.fuzz import reference
from tests.fuzz.mutate import Input, seeds

SECONDS = 20.0
"""Wall time that one call may take; inputs are at most a megabyte, and machines may be busy."""
# Well-formed files that are refused all the same, each with a line that says why.
REFUSED = re.compile(
    r"last over a year in all|nested more deeply|packed more than|zip holds 2 files|no list of events|list of no events"
    r"|zip inside another container|unpacks to more than"
)
_NUMBER = re.compile(r"\d+ decompressed bytes")
# What must be said when the slow reader counts something odd.
SAID = {
    "no object": "are no objects", "no complete event": "not counted", "no phase": "without a phase",
    "no start": "without a usable start time",
    "no category": "without a category", "no duration": "without duration", "negative duration": "negative duration",
    "impossible duration": "impossible duration",
    "second list": 'second "traceEvents"', "after the end": "after the end", "literal": "",
}  # fmt: skip


class Find(AssertionError):  # noqa: N818  # what a fuzzer calls it
    """The reader did wrong."""


class Hang(BaseException):
    """A call took longer than it may."""


@contextmanager
def limit(seconds: float = SECONDS) -> Iterator[None]:
    """Stop what runs longer, where the system can."""

    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(path: Path, **how: Any) -> Trace | str:
    """The trace, or the line of the error; anything else is a find."""
    how.setdefault("cache", False)
    try:
        with limit():
            return read_trace(path, **how)
    except HtaDsv4Error as error:
        line = str(error)
        if "\n" in line or not line.startswith(str(path)):
            raise Find(f"an error that is not one line about the file: {line!r:.300}") from None
        return line
    except Hang:
        raise Find(f"over {SECONDS:g} s with {how}") from None
    except Exception as error:
        raise Find(f"{type(error).__name__} with {how}: {error!s:.300}") from error


def check(item: Input, path: Path, rng: Random) -> Counter[str]:
    """Read one input in several ways.

    Args:
        item: the input.
        path: where to write it.
        rng: chooses which of the dearer checks are made.

    Returns:
        What happened, for statistics.

    Raises:
        Find: something wrong.
    """
    path.write_bytes(item.data)
    seen: Counter[str] = Counter()
    try:
        truth = reference.read(item.data)
    except reference.Unreadable:
        truth = None
    plain = attempt(path)
    seen["refused" if isinstance(plain, str) else "read"] += 1
    if truth is not None:
        seen["well-formed"] += 1
        if isinstance(plain, str):
            if not REFUSED.search(plain):
                raise Find(f"well-formed but refused: {plain}")
        else:
            compare(plain, truth)
    elif not isinstance(plain, str):
        if plain.partial:
            raise Find("partial without salvage")
        if not plain.warnings:
            raise Find("damaged, and read without a word")
        seen["repaired"] += 1
        undamaged(item, plain)

    salvaged = attempt(path, salvage=True)
    if not isinstance(plain, str):
        same(plain, salvaged, "salvage of a file that can be read")
    elif not isinstance(salvaged, str):
        seen["salvaged"] += 1
        if not salvaged.partial:
            raise Find(f"salvaged, not marked partial; else: {plain}")
        prefix(item, salvaged)

    chunk = rng.choice((64, 200, 1000, 1000, 5000, 5000, 30_000, 30_000))
    again = attempt(path, chunk=chunk)
    same(plain, again, f"chunk {chunk}")
    gpu = attempt(path, cpu=False)
    if isinstance(gpu, str) != isinstance(plain, str):
        raise Find(f"cpu=False: {gpu!s:.200}; else {plain!s:.200}")
    if isinstance(gpu, Trace) and isinstance(plain, Trace):
        shared = [c for c in plain.activities.columns if c in gpu.activities]
        if not gpu.activities.equals(plain.activities[shared]):
            raise Find("cpu=False gives other activities")
    if rng.random() < 0.15:
        seen["cache"] += 1
        attempt(path, cache=True)
        same(plain, attempt(path, cache=True), "the second read through the cache", exactly=True)
    if rng.random() < 0.02:
        seen["processes"] += 1
        same(again, attempt(path, chunk=chunk, workers=2), "two processes", exactly=True)
    if not isinstance(plain, str) and rng.random() < 0.06:
        seen["analysed"] += 1
        analyse(plain)
    return seen


def compare(trace: Trace, truth: reference.Reading) -> None:
    """The tables against what the slow reader read."""
    a = trace.activities
    said = " | ".join(trace.warnings)
    total = int(a["dur_ns"].sum())
    if (len(a), total) != (len(truth.rows), truth.total):
        raise Find(
            f"{len(a)} activities, {total} ns; truly {len(truth.rows)}, {truth.total} ns; said: {said:.400}"
        )
    columns = [
        a[c].tolist() for c in ("event_index", "start_ns", "dur_ns", "name", "kind", "stream", "correlation")
    ]
    for row, index, start, dur, name, kind, stream, correlation in zip(truth.rows, *columns, strict=True):
        if (index, start, dur, kind) != (row.index, row.start, row.dur, row.kind):
            raise Find(f"row {(index, start, dur, kind)}; truly {row}")
        if row.name is not None and name.replace("\ufffd", "?") != row.name.replace("\ufffd", "?"):
            raise Find(f"name {name!r:.100}; truly {row.name!r:.100}")
        for mine, theirs in ((stream, row.stream), (correlation, row.correlation)):
            if theirs != "?" and (None if _missing(mine) else mine) != theirs:
                raise Find(f"id {mine!r}; truly {theirs!r} of {row}")
    if len(trace.events) != truth.cpu_rows:
        raise Find(f"{len(trace.events)} events; truly {truth.cpu_rows}")
    for what in truth.odd:
        if SAID[what] not in said:
            raise Find(f"nothing said of {truth.odd[what]} {what}; said: {said:.400}")


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value != value


def undamaged(item: Input, trace: Trace) -> None:
    """One fault in the bytes, repaired: all else must be as it was, or it must be said that it is not."""
    if len(item.how) != 1 or item.how[0] not in (
        "flip",
        "lose",
        "gain",
        "drop_token",
        "double_token",
        "space",
        "nest",
    ):
        return
    truth = reference.read(seeds()[item.base])
    rows = len(trace.activities), int(trace.activities["dur_ns"].sum())
    about = (
        "not counted", "without duration", "usable start", "negative", "impossible", "without a phase",
        "without a category", "unknown categor", "are no objects",
    )  # fmt: skip
    if rows != (len(truth.rows), truth.total) and not any(w in " ".join(trace.warnings) for w in about):
        raise Find(
            f"{rows} after a repair; was {len(truth.rows)}, {truth.total} ns; said: {trace.warnings!s:.600}"
        )


def prefix(item: Input, trace: Trace) -> None:
    """Salvage of a file that was only cut: nothing but what the whole file says."""
    if item.how not in (("truncate",), ("gz, cut",), ("zst, cut",)):
        return
    whole = {r.index: (r.start, r.dur) for r in reference.read(seeds()[item.base]).rows}
    a = trace.activities
    for index, start, dur in zip(a["event_index"], a["start_ns"], a["dur_ns"], strict=True):
        if whole.get(index) != (start, dur):
            raise Find(
                f"salvaged an activity that is not in the file: {index, start, dur}; there {whole.get(index)}"
            )


def same(one: Trace | str, two: Trace | str, what: str, exactly: bool = False) -> None:
    """Two ways of reading one file give one answer."""
    if isinstance(one, str) or isinstance(two, str):
        # Where in packed data a checksum is found wrong depends on how much was asked for at once.
        if isinstance(one, str) != isinstance(two, str) or (
            exactly and _NUMBER.sub("", one) != _NUMBER.sub("", two)
        ):
            raise Find(f"{what}: {_shown(two)}; else {_shown(one)}")
        return
    for name in ("activities", "events"):
        mine, theirs = getattr(one, name), getattr(two, name)
        if not mine.equals(theirs) and not (
            len(mine) == len(theirs)
            and all(mine[c].astype(object).equals(theirs[c].astype(object)) for c in mine)
        ):
            raise Find(f"{what}: other {name}: {_shown(two)}; else {_shown(one)}")
    if exactly and (
        one.warnings != two.warnings or not _equal(one.meta, two.meta) or one.partial != two.partial
    ):
        raise Find(f"{what}: other warnings or metadata: {two.warnings!s:.300}; else {one.warnings!s:.300}")


def _equal(one: Any, two: Any) -> bool:
    return bool(one == two) or repr(one) == repr(two)  # NaN is not equal to itself


def _shown(result: Trace | str) -> str:
    if isinstance(result, str):
        return result
    total = int(result.activities["dur_ns"].sum())
    return f"{len(result.activities)} activities, {total} ns, {' | '.join(result.warnings):.300}"


def analyse(trace: Trace) -> None:
    """What is asked of every trace: an answer, or a line why there is none."""
    run = Run("fuzz", (trace,), default_rules())
    for ask in (
        lambda: run.shares("bucket,origin"),
        run.info,
        run.idle,
        run.fill,
        run.collectives,
        lambda: run.roofline("kernel"),
        run.findings,
    ):
        try:
            with limit():
                ask()
        except HtaDsv4Error as error:
            if "\n" in str(error):
                raise Find(f"an error of several lines: {error}") from None
            continue
        except Hang:
            raise Find(f"over {SECONDS:g} s in an analysis") from None
        except Exception as error:
            raise Find(f"{type(error).__name__} in an analysis: {error!s:.300}") from error


def keep_everything(
    folder: Path,
    put: Callable[[object, str, Any], None] = setattr,
    environ: Callable[[str, str], None] = os.environ.__setitem__,
) -> None:
    """Let the cache keep small files too.

    Args:
        folder: where to.
        put: sets an attribute; pytest's undoes it.
        environ: sets a variable.
    """
    environ(cache_folder.VARIABLE, str(folder))
    environ(cache_folder.LIMIT_VARIABLE, "0.01")
    put(cache, "MIN_JSON_BYTES", 0)
    put(cache, "MIN_FILE_BYTES", 0)
