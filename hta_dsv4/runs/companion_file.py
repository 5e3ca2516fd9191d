"""The eager companion that a manifest names, as what to type: ``--companion LABEL=TRACE``."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hta_dsv4 import shipped
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace.manifest import manifest_entry
from hta_dsv4.trace.model import Trace


def companion_option(label: str, traces: Sequence[Trace]) -> str | None:
    """The option that gives a variant its eager companion, as one thing to copy into a shell.

    Args:
        label: the variant's name.
        traces: of the variant, one per rank or a merged one.

    Returns:
        E.g. ``--companion fp8_split=fp8_split_eager``: the name of a shipped trace, else the path. ``None`` where no
        manifest names a companion of every trace, or what it names is not there.
    """
    found = [_companion_of(trace.path) for trace in traces]
    files = [path for path in found if path is not None]
    if not files or len(files) < len(found):
        return None
    path = files[0]
    if len(files) > 1:
        path = path.parent
        # a folder is one run: one that also holds these traces, or not all of the companions, cannot be given
        if {f.parent for f in files} != {path} or path in {t.path.parent for t in traces}:
            return None
    text = _shipped_name(path) or str(path)
    if "=" not in label:
        text = f"{label}={text}"
    return f"--companion {shlex.quote(text)}" if text.isprintable() else None


def _companion_of(trace: Path) -> Path | None:
    """The companion that the manifest of a trace names, where it is there."""
    with contextlib.suppress(
        HtaDsv4Error, OSError, ValueError
    ):  # a hint is no place for a broken manifest's error
        entry, _ = manifest_entry(trace)
        named = (entry or {}).get("companion")
        if isinstance(named, str) and named:
            path = trace.parent / named
            short = Path(os.path.normpath(path))
            if path.is_file():
                return short if short.is_file() and short.samefile(path) else path
    return None


def _shipped_name(path: Path) -> str | None:
    """What a shipped trace is called on the command line; ``None`` for another file, or where one here is called so."""
    with contextlib.suppress(HtaDsv4Error):
        for name, file in shipped.traces().items():
            if file.exists() and file.samefile(path):
                return name if shipped.resolve(name)[1].samefile(path) else None
    return None
