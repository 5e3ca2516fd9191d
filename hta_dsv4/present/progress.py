"""A progress bar on stderr for reads that take over a second; silent when stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_PATIENCE_S = 1.0


@contextmanager
def reading(name: str) -> Iterator[Callable[[int, int], None]]:
    """A callback ``(bytes read, total bytes)`` that draws a bar once a read has taken over a second.

    Args:
        name: the file's name.

    Yields:
        The callback.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    bar = Progress(
        TextColumn("reading {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task = bar.add_task(name, total=None)
    began = time.monotonic()

    def update(done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - began > _PATIENCE_S:
            bar.start()
        bar.update(task, completed=done, total=total or None)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
