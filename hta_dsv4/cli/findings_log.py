"""The log that engineers keep: findings with their date and their traces, added to a file and never rewritten.

An entry is written in one piece behind what is there, under a lock; what cannot be written whole is taken back.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from hta_dsv4.analysis.findings import Findings
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.findings_grid import finding_grids, findings_grid
from hta_dsv4.present.text import markdown


def trace_hash(path: Path) -> str:
    """SHA-256 of a trace file, first 16 digits.

    Raises:
        HtaDsv4Error: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as f:
            while block := f.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise HtaDsv4Error(f"{path}: cannot read ({error.strerror or error})") from error
    return digest.hexdigest()[:16]


def entry(found: Findings, traces: Sequence[Path], top: int = 0, now: datetime | None = None) -> str:
    """One entry of the log, as Markdown.

    Args:
        found: of one variant.
        traces: its files.
        top: findings in it; 0 for all.
        now: its date; the present by default.
    """
    date = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%d %H:%M UTC")
    files = ", ".join(f"`{p.name}` (sha256 {trace_hash(p)})" for p in traces)
    grids = [findings_grid(found, top), *finding_grids(found, top)]
    label = " ".join(found.label.split())
    return f"## {date}: {label}\n\nTrace: {files}\n\n" + "\n".join(markdown(g) for g in grids)


def append(path: Path, text: str) -> None:
    """Add text behind what a file holds; the file is made where there is none.

    Args:
        path: the log.
        text: what to add, without the empty line before it.

    Raises:
        HtaDsv4Error: the file cannot be opened or written; then it is as it was.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise HtaDsv4Error(f"{path}: cannot append ({error.strerror or error}); give another file") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        head = "" if size == 0 else "\n" if os.pread(descriptor, 1, size - 1) == b"\n" else "\n\n"
        data = (head + text.rstrip("\n") + "\n").encode()
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(28, "no space left on device")
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise HtaDsv4Error(
                f"{path}: cannot append ({error.strerror or error}); it is as it was"
            ) from error
    finally:
        os.close(descriptor)
