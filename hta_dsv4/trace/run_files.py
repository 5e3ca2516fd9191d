"""Which files are one run, and in what order? A path -> the files that may be ranks; their traces -> ranks in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hta_dsv4.errors import TraceError
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.container import members
from hta_dsv4.trace.meta import rank_of
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.ranks import choose_ranks, missing_note

_MANIFEST = "manifest.toml"  # what a capture writes beside its traces
# vLLM writes rank0.<time>..., SGLang ...-TP-0...; a bare "tp2" is as often a world size and says nothing.
_RANK_IN_NAME = (re.compile(r"(?:^|[^A-Za-z])rank[-_]?(\d{1,6})(?!\d)"), re.compile(r"-TP-(\d{1,6})(?!\d)"))


def rank_files(path: Path) -> list[tuple[str, Path, str | None]] | None:
    """The files that may be ranks of one run: name, file, and member of a zip; ``None`` where the path is one trace.

    Args:
        path: a file, or a folder.

    Raises:
        TraceError: the path cannot be looked at.
    """
    is_folder, is_file, entries = _listing(path)
    if is_folder:
        return [(p.name, p, None) for p in entries]
    if is_file and len(names := members(path)) > 1:
        return [(n, path, n) for n in names]
    return None


def is_no_trace(error: TraceError) -> bool:
    """Whether a file of a folder is something else than a trace, rather than a broken one."""
    return any(why in str(error) for why in ("not a trace", "empty file"))


def rank_by_name(name: str, trace: Trace) -> Trace:
    """A file that does not say its rank gets the one in its name, where that has one."""
    found = next((m for p in _RANK_IN_NAME if (m := p.search(name))), None)
    if trace.meta.rank_known or not found:
        return trace
    rank = int(found.group(1))
    tables = []
    for table in (trace.activities, trace.events):
        table = table.copy(deep=False)
        table[col.RANK] = np.full(len(table), rank, np.int32)
        tables.append(table)
    note = f"the file does not say its rank; {rank} is taken from its name"
    distributed = {**trace.meta.distributed, "rank": rank}
    meta = replace(trace.meta, distributed=distributed, rank_known=True)
    return replace(trace, meta=meta, activities=tables[0], events=tables[1], warnings=(*trace.warnings, note))


def assemble_ranks(file: Path, traces: list[tuple[str, Trace]], skipped: Sequence[str] = ()) -> list[Trace]:
    """The ranks of a folder in order, with what is to be said of the others.

    Args:
        file: the folder, or the zip.
        traces: name and trace of each file that is one; several have the rank in their name already
            (:func:`rank_by_name`).
        skipped: files that are no traces.

    Raises:
        TraceError: no trace, or two files of one rank.
    """
    if not traces:
        raise TraceError(
            f"{file}: holds no trace among {len(skipped)} file{'s' * (len(skipped) != 1)}; "
            + (_folders_in(file) or "give the folder of *.json(.gz)")
        )
    notes: list[str] = []
    if len(traces) > 1:
        traces, notes = choose_ranks(traces)
        _refuse_doubled_ranks(file, traces)
    out = sorted((t for _, t in traces), key=lambda t: (_first_rank(t), str(t.path)))
    if skipped:
        shown = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        notes.append(f"{len(skipped)} files of {file} are no traces: {shown}")
    notes += missing_note(out)
    if notes:
        out[0] = replace(out[0], warnings=(*out[0].warnings, *notes))
    return out


def _listing(path: Path) -> tuple[bool, bool, list[Path]]:
    """Whether a path is a folder, whether it is a file, and the visible files of a folder, by name."""
    try:
        folder = path.is_dir()
        inside = path.iterdir() if folder else ()
        entries = sorted(p for p in inside if p.is_file() and p.name[0] != "." and p.name != _MANIFEST)
        return folder, path.is_file(), entries
    except (OSError, ValueError) as error:  # no permission, a name too long, a NUL in it
        why = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{path}: cannot be looked at ({why}); check the path and its permissions"
        ) from error


def _folders_in(path: Path) -> str:
    """What to name instead of a folder that holds runs in folders of their own; empty where it holds none."""
    try:
        found = sorted(p.name for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
    except OSError:
        return ""
    shown = ", ".join(found[:6]) + (", ..." if len(found) > 6 else "")
    return f"a folder of ranks is one run, so name one of those in it ({shown})" if found else ""


def _first_rank(trace: Trace) -> int:
    return min(trace.meta.rank_labels, default=rank_of(trace.meta))


def _refuse_doubled_ranks(folder: Path, traces: list[tuple[str, Trace]]) -> None:
    seen: dict[int, str] = {}
    for name, trace in traces:
        for rank in trace.meta.rank_labels or [rank_of(trace.meta)]:
            if rank in seen:
                known = (
                    "" if trace.meta.rank_known else " (the files do not say their rank, so both count as 0)"
                )
                raise TraceError(
                    f"{folder}: {seen[rank]} and {name} are both rank {rank}{known}; "
                    "keep one run's traces in a folder, one file a rank"
                )
            seen[rank] = name
