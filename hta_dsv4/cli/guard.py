"""Does a command write over what it reads? What every command reads and writes, by the names of its parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hta_dsv4.cli.files import not_an_input
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.shipped import resolve
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, manifest_path

P = ParamSpec("P")
R = TypeVar("R")

READS = (
    "traces", "trace", "candidate", "baseline", "companion", "baseline_companion", "single", "again", "sweep", "kept",
    "more", "rules", "budget",
)  # fmt: skip
"""Parameters that name files or folders to read."""
WRITES = {
    "out": "-o", "append": "--append", "summary": "--summary", "parquet": "--parquet", "figure": "--figure",
}  # fmt: skip
"""Parameters that name a file to write, and the option for messages."""
_PAGES = (".md", ".html", ".htm", ".parquet", ".pftrace", ".pftrace.gz", ".svg", ".png", ".pdf")
"""What may lie in a folder of traces, of no trace: what the commands themselves write."""


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """A command that first looks whether it was told to write over a file that it reads.

    Args:
        command: with parameters of :data:`READS` and :data:`WRITES`, and others.

    Returns:
        The same, to the parser of the command line also.
    """

    @functools.wraps(command)
    def looked_at(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_overwriting(kwargs)
        return command(*args, **kwargs)

    return looked_at


def refuse_overwriting(given: Mapping[str, Any]) -> None:
    """Refuse an output that is one of the inputs, before anything is read, as reading takes long.

    Args:
        given: the command's parameters by name; others than :data:`READS` and :data:`WRITES` are not looked at.

    Raises:
        HtaDsv4Error: the output is a trace, a file of a folder of traces, a companion, a manifest beside one of them,
            rules, budgets or a record, by whatever name.
    """
    for name, option in WRITES.items():
        out = given.get(name)
        if isinstance(out, Path) and _stands(out):
            not_an_input(out, read_by(given), option)


def read_by(given: Mapping[str, Any]) -> Iterator[Path]:
    """Every file that a command with these parameters reads; what is not there is left for the command to say."""
    for name in READS:
        value = given.get(name)
        for word in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(word, Path):
                yield word
            elif isinstance(word, str):
                try:
                    path = resolve(word)[1]
                    yield from _with_manifests(path)
                except (HtaDsv4Error, OSError, ValueError):
                    continue


def _with_manifests(path: Path) -> Iterator[Path]:
    """A trace and its manifests; of a folder all that may be traces, also in folders of ranks in it."""
    if not path.is_dir():
        yield path
        yield manifest_path(path)
        yield path.with_name(FOLDER_MANIFEST)
        return
    for entry in path.iterdir():
        if entry.is_dir():
            yield from (p for p in entry.iterdir() if p.is_file() and not p.name.endswith(_PAGES))
        elif not entry.name.endswith(_PAGES):
            yield entry


def _stands(out: Path) -> bool:
    """Whether something would be written over; pipes and devices hold nothing."""
    try:
        return out.is_file()
    except (OSError, ValueError):
        return False
