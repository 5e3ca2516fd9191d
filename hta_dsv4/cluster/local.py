"""Workers on this machine: out of reach of the terminal's Ctrl-C, and gone at once where the command is interrupted.

A terminal sends Ctrl-C to every process of a command. A worker of Dask's would answer with a traceback, so workers are
started from a thread in which such signals are blocked, which processes inherit; who asked for them ends them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")

_NAME = "Dask Worker process"
"""How the processes are named that Dask starts."""
_LONGEST_S, _LOOK_S = 10.0, 0.05
"""How long Dask may take to see that its workers are dead, and how often they are looked for."""


@contextmanager
def local_workers(count: int) -> Iterator[Any]:
    """Processes of one thread each, and their scheduler.

    Args:
        count: how many processes.

    Yields:
        A ``LocalCluster`` of Dask distributed.

    Raises:
        OSError, RuntimeError, TimeoutError: the processes cannot be started.
    """
    cluster = import_module("distributed").LocalCluster
    before = {process.pid for process in multiprocessing.active_children()}
    if os.name == "posix":
        with _held():
            resource_tracker.ensure_running()  # here, as its start lets through what is blocked in its thread
    with (
        tempfile.TemporaryDirectory(prefix="hta-dsv4-", ignore_cleanup_errors=True) as folder,
        import_module("dask").config.set({"temporary-directory": folder}),
    ):
        started = _aside(
            lambda: cluster(
                n_workers=count, threads_per_worker=1, processes=True, silence_logs=logging.CRITICAL,
                local_directory=folder,
                # its HTTP server is always started: at any free port, as the usual one may be another scheduler's
                scheduler_kwargs={"dashboard": False}, dashboard_address="127.0.0.1:0",
            )
        )  # fmt: skip
        at_once = True
        try:
            yield started.result()
            at_once = False
        except Exception:
            at_once = False
            raise
        finally:
            _end(started, before, at_once)


def _end(started: Future[Any], before: set[int | None], at_once: bool) -> None:
    """Close what was started, also where it is still being started.

    Args:
        started: will have it.
        before: processes that are none of it.
        at_once: kill the workers, in whatever they are; also done where waiting for them is interrupted.
    """
    ended = _aside(lambda: started.result().close())
    try:
        if not at_once:
            wait([ended])
    finally:
        until = time.monotonic() + _LONGEST_S
        # again and again: one that was being started as the others were killed appears later
        while not ended.done() and time.monotonic() < until:
            for process in multiprocessing.active_children():
                if process.pid not in before and process.name.startswith(_NAME):
                    process.kill()
            wait([ended], _LOOK_S)


def _aside(work: Callable[[], T]) -> Future[T]:
    """Do something in a thread that no signal reaches, nor any thread or process started there."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            with _held():
                future.set_result(work())
        except BaseException as error:  # whoever waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="hta-dsv4-workers", daemon=True).start()
    return future


@contextmanager
def _held() -> Iterator[None]:
    """Signals by which a terminal or a polite kill ends processes are blocked in this thread, and what it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
