"""Shipped traces are read and classified once a test process, however many tests and commands ask for them.

Reading and classifying one takes about a second, and the suite asks some hundred times. What is handed out is a copy of
every table, so that no test sees what another did to its own. Only the plain case is remembered: a shipped trace, the
bundled rules, nothing salvaged. All else is read as ever, and so is everything in processes that tests start.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.runs import loading
from hta_dsv4.runs.run import Run
from hta_dsv4.shipped import label_of, traces_dir

KEPT = 24  # runs, of about 40 MB each


def _stamp(path: Path) -> tuple[object, ...]:
    """A path, and what says that its file, or those of its folder, are the same as before."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return (str(path), *((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files))


def _shipped(path: Any) -> bool:
    try:
        return path != "" and Path(path).exists() and Path(path).resolve().is_relative_to(traces_dir())
    except (OSError, ValueError):  # no name of a file: load() says so
        return False


def _copy(run: Run, label: str) -> Run:
    """The same run with tables of its own, whose steps and classes are known."""
    beside = None if run.companion is None else _copy(run.companion, run.companion.label)  # type: ignore[arg-type]
    traces = tuple(replace(t, activities=t.activities.copy(), events=t.events.copy()) for t in run.traces)
    mine = Run(label, traces, run.rules, companion=beside)
    steps = (replace(s, table=s.table.copy(), of_activity=s.of_activity.copy()) for s in run.steps)
    mine.__dict__["steps"] = tuple(steps)
    mine.__dict__["_attributed"] = tuple((table.copy(), fit) for table, fit in run._attributed)
    return mine


def remembering(load: Callable[..., Run]) -> Callable[..., Run]:
    """A function that loads as ``load`` does, but each shipped trace once."""
    known: OrderedDict[tuple[object, ...], Run] = OrderedDict()

    @wraps(load)
    def load_once(path: Any, **options: Any) -> Run:
        companion, frames = options.get("companion"), bool(options.get("frames"))
        plain = not options.get("salvage") and options.get("rules") in (None, default_rules())
        if not (plain and _shipped(path) and (companion is None or _shipped(companion))):
            return load(path, **options)
        key = (_stamp(Path(path)), None if companion is None else _stamp(Path(companion)), frames)
        if key not in known:
            known[key] = load(path, companion=companion, frames=frames)
            if len(known) > KEPT:
                known.popitem(last=False)
        known.move_to_end(key)
        return _copy(known[key], options.get("label") or label_of(Path(path)))

    return load_once


def install() -> None:
    """Put it where commands and tests take :func:`~hta_dsv4.runs.loading.load` from, before they do."""
    if not hasattr(loading.load, "__wrapped__"):
        loading.load = remembering(loading.load)  # type: ignore[assignment]
