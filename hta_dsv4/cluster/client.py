"""Many traces read by many processes, on this machine or on others: Dask distributed does the sending.

A worker reads one trace at a time, classifies it and sends back tables of some kilobytes
(:mod:`hta_dsv4.cluster.reduction`); they are put together here by the code that a single process uses, in the order of
the files, so the numbers are the same to the nanosecond however many workers there are and in whatever order they
finish. A trace whose worker dies is read again by another. Needs the extra ``cluster``.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.shares import SHARE_KEYS, parse_by
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.cluster.connect import CONNECT_S, LOCAL, connect
from hta_dsv4.cluster.reduction import ALWAYS, Job, Reduced, ReducedRun
from hta_dsv4.cluster.work import (
    Outcome,
    by_value,
    count_job,
    guarded,
    reduce_job,
    source_digest,
    unpack_and_run,
)
from hta_dsv4.errors import HtaDsv4Error, TraceError
from hta_dsv4.shipped import label_of
from hta_dsv4.trace.run_files import assemble_ranks, is_no_trace, rank_files

POLL_S, ALONE_S = 2, 60
"""How often is looked whether any worker is left, and how long none may be: one that died is replaced in seconds."""


class Cluster:
    """Workers to read traces with; use it in a ``with`` statement.

    >>> with Cluster("local") as cluster:  # doctest: +SKIP
    ...     run = cluster.load("ranks/", by=["bucket", "origin"])
    ...     run.shares("origin").table
    """

    def __init__(
        self, where: str = LOCAL, *, workers: int | None = None, rules: RuleSet | None = None
    ) -> None:
        """Connect to a scheduler, or start processes on this machine.

        Args:
            where: ``local``, or a scheduler's address: ``tcp://host:8786``, ``tls://...``.
            workers: how many local processes; one per core by default.
            rules: to classify with; the bundled ones by default.

        Raises:
            HtaDsv4Error: the extra is not installed, or no scheduler answers there.
        """
        self.where = where
        self.rules = rules or default_rules()
        # workers have the bundled rules themselves; others travel with each job
        self._sent = None if rules is None or rules is default_rules() else rules
        with contextlib.ExitStack() as stack:  # an interrupt while workers start ends them
            self._client = connect(where, workers, stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def load(
        self,
        path: str | Path,
        *,
        label: str | None = None,
        by: Sequence[str | Sequence[str]] = (ALWAYS,),
        salvage: bool = False,
        frames: bool = False,
        info: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> ReducedRun:
        """Load one variant, its files read by the workers: as :func:`hta_dsv4.load`, where tables are enough.

        Args:
            path: a trace, or a folder of ranks; the workers must see it under the same absolute path.
            label: the variant's name.
            by: the share tables that will be asked for.
            salvage: read what is whole of cut files.
            frames: read Python frames for the origin.
            info: make what :meth:`ReducedRun.info` tells.
            progress: called with files done and files in all.

        Returns:
            The run: shares, ranks, info and comparisons; other analyses say that they need all activities.

        Raises:
            HtaDsv4Error: as :func:`hta_dsv4.load`; a worker that does not see the file, or has another version.
        """
        path = Path(path)
        keys = tuple(dict.fromkeys(parse_by(k, SHARE_KEYS) for k in by))
        files = rank_files(path)
        job = partial(Job, salvage=salvage, frames=frames, by=keys, info=info)
        several = files is not None
        jobs = [
            job(name, file.resolve(), member, _size(file), several)
            for name, file, member in (files if files is not None else [(path.name, path, None)])
        ]
        found = self._reduced(jobs, several, progress)
        skipped = [j.name for j in jobs if j.name not in {r.job.name for r in found}]
        if several and len(found) == 1:  # alone after all, a trace is not told its rank by its name
            found = self._reduced([replace(found[0].job, rank_in_name=False)], False, None)
        paths = {j.name: file for j, (_, file, _) in zip(jobs, files, strict=True)} if files else {}
        shown = [replace(r, trace=replace(r.trace, path=paths.get(r.job.name, path))) for r in found]
        traces = (
            assemble_ranks(path, [(r.job.name, r.trace) for r in shown], skipped)
            if several
            else [r.trace for r in shown]
        )
        order = [next(r for r in shown if _same(r, t)) for t in traces]
        return ReducedRun(
            label or label_of(path), tuple(traces), self.rules, reduced=tuple(order), fetch=self._fetch
        )

    def workers(self, ask: Callable[[], Any]) -> list[Any]:
        """What a function says on each worker, e.g. ``os.getpid``.

        Args:
            ask: called on every worker, which must be able to import it.
        """
        return list(self._client.run(ask).values())

    def _reduced(
        self, jobs: Sequence[Job], several: bool, progress: Callable[[int, int], object] | None
    ) -> list[Reduced]:
        """The files that are traces, in order."""
        out: list[Reduced] = []
        tasks = [partial(reduce_job, job, self._sent) for job in jobs]
        for outcome in self._run(tasks, [str(j.path) for j in jobs], progress):
            if not outcome.error:
                out.append(outcome.value)
                continue
            error = TraceError(outcome.error) if outcome.is_trace_error else HtaDsv4Error(outcome.error)
            if not (several and isinstance(error, TraceError) and is_no_trace(error)):
                raise error
        return out

    def _fetch(self, job: Job, rank: int) -> Counted:
        (outcome,) = self._run([partial(count_job, job, rank, self._sent)], [str(job.path)], None)
        if outcome.error:
            raise HtaDsv4Error(outcome.error)
        part: Counted = outcome.value
        return part

    def _run(
        self,
        tasks: Sequence[Callable[[], Outcome]],
        names: Sequence[str],
        progress: Callable[[int, int], object] | None,
    ) -> list[Outcome]:
        """Outcomes in the order of the tasks, whatever the order they end in."""
        digest = source_digest()
        run = by_value(unpack_and_run)
        work = [pickle.dumps(partial(guarded, task, digest)) for task in tasks]
        try:
            futures = [self._client.submit(run, packed, pure=False) for packed in work]
        except Exception as error:  # the client is closed where the scheduler went away before
            raise self._said(error, names[0]) from error
        place = {f.key: i for i, f in enumerate(futures)}
        ended: SimpleQueue[Any] = SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)
        out: list[Outcome | None] = [None] * len(futures)
        try:
            for done in range(1, len(futures) + 1):
                future = self._next(ended)
                at = place[future.key]
                try:
                    out[at] = future.result()
                except (Exception, CancelledError) as error:  # what a machine or network may raise has no end
                    raise self._said(error, names[at]) from error
                future.release()
                if progress is not None:
                    progress(done, len(futures))
        finally:
            with contextlib.suppress(Exception):  # nobody to be told, where the scheduler is gone
                self._client.cancel([f for f in futures if not f.done()])
        return [o for o in out if o is not None]

    def _next(self, ended: SimpleQueue[Any]) -> Any:
        """The next task that has ended; not for ever, where nobody is left to end one."""
        alone_since: float | None = None
        while True:
            try:
                return ended.get(timeout=POLL_S)
            except Empty:
                if self._anyone():
                    alone_since = None
                    continue
            now = time.monotonic()
            alone_since = now if alone_since is None else alone_since
            if now - alone_since > ALONE_S:
                raise HtaDsv4Error(
                    f"--cluster {self.where}: no worker is left, for {ALONE_S} s now; start some and try again"
                )

    def _anyone(self) -> bool:
        """Whether there is a worker; none where the scheduler does not answer."""
        with contextlib.suppress(Exception):
            return self._client.status == "running" and bool(
                self._client.nthreads(callback_timeout=CONNECT_S)
            )
        return False

    def _said(self, error: Exception, name: str) -> HtaDsv4Error:
        kind = type(error).__name__
        if kind == "KilledWorker":
            return HtaDsv4Error(
                f"{name}: its workers died, one after another; it is likely larger than their memory: start fewer a "
                "machine, or on larger ones"
            )
        if isinstance(error, ImportError):
            return HtaDsv4Error(
                f"--cluster {self.where}: a worker lacks what it needs ({error}); install hta-dsv4 "
                f"{metadata.version('hta-dsv4')} where workers run"
            )
        if isinstance(error, CancelledError) or kind in ("ClosedClientError", "CommClosedError"):
            return HtaDsv4Error(f"--cluster {self.where}: the scheduler is gone; {name} was not read")
        return HtaDsv4Error(f"--cluster {self.where}: {name} was not read ({kind}: {str(error)[:200]})")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise TraceError(f"{file}: cannot be looked at ({error.strerror}); check the path") from error


def _same(one: Reduced, trace: Any) -> bool:
    return bool(one.trace.path == trace.path and one.trace.activities is trace.activities)
