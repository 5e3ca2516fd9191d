"""Where are the workers? With a scheduler that runs already, or started here; a line where neither can be."""

from __future__ import annotations

import contextlib
import logging
import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hta_dsv4.cluster.local import local_workers
from hta_dsv4.errors import HtaDsv4Error

LOCAL = "local"
CONNECT_S, WORKERS_S, HURRY_S = 15, 60, 2
"""How long a scheduler may take to answer, its first worker to be there, and a goodbye when interrupted."""
FAILURES = 3
"""A trace whose workers die this often is given up: it is the trace's doing, mostly memory."""


def connect(where: str, workers: int | None, stack: contextlib.ExitStack) -> Any:
    """Connect to a scheduler, or start processes on this machine.

    Args:
        where: ``local``, or a scheduler's address.
        workers: how many local processes; one per core by default.
        stack: gets what is to be ended again, client and processes.

    Returns:
        A client of Dask distributed, which has at least one worker.

    Raises:
        HtaDsv4Error: the extra is not installed, no scheduler answers there, or it has no worker.
    """
    if not installed():
        raise HtaDsv4Error(
            f"--cluster {where}: Dask distributed is not installed; pip install 'hta-dsv4[cluster]'"
        )
    distributed = _distributed()
    # a dead worker is our business, not the terminal's
    for name in ("", ".client", ".nanny", ".scheduler", ".worker"):
        logging.getLogger(f"distributed{name}").setLevel(logging.CRITICAL)
    stack.enter_context(
        import_module("dask").config.set({"distributed.scheduler.allowed-failures": FAILURES - 1})
    )
    address: Any = where
    if where == LOCAL:
        try:
            address = stack.enter_context(local_workers(workers or cores()))
        except (OSError, RuntimeError, TimeoutError) as error:
            raise HtaDsv4Error(f"--cluster local: processes cannot be started ({error})") from error
    tls = where.startswith(("tls://", "wss://"))
    if tls and distributed.Security().get_connection_args("client").get("ssl_context") is None:
        raise HtaDsv4Error(
            f"--cluster {where}: no certificates for it; name them in Dask's configuration "
            "(distributed.comm.tls), as for dask scheduler"
        )
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise HtaDsv4Error(
            f"--cluster {where}: no Dask scheduler answers there; start one with: dask scheduler"
        ) from error
    stack.push(lambda kind, *_: _leave(client, kind))
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        raise HtaDsv4Error(
            f"--cluster {where}: the scheduler has no worker; start some with: dask worker {where}"
        ) from error
    return client


def _leave(client: Any, ended_by: type[BaseException] | None) -> None:
    """Say goodbye to the scheduler; hardly wait for that where an interrupt ended the work."""
    interrupted = ended_by is not None and not issubclass(ended_by, Exception)
    with contextlib.suppress(Exception):  # a scheduler that is gone cannot be said goodbye to
        client.close(timeout=HURRY_S if interrupted else CONNECT_S)


def installed() -> bool:
    """Whether Dask distributed is there."""
    return find_spec("distributed") is not None


def _distributed() -> Any:
    """Dask distributed, which has no type information."""
    return import_module("distributed")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
