"""A trace reduced to small tables, and a run made of reduced traces that answers as one of whole traces does.

Reading and classifying are the cost; what a share table or a comparison needs of a trace are some kilobytes. So traces
can be read elsewhere, one at a time, and only the tables brought together: :mod:`hta_dsv4.cluster.client` does.

:class:`ReducedRun` is a :class:`~hta_dsv4.runs.run.Run`: shares, ranks, info and comparisons use the very same code on
the same integers, and the activities of the one rank that stands for the variant are fetched where they are asked for.
What needs the activities of every rank says so instead of answering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pandas as pd

from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.info import Info
from hta_dsv4.analysis.places import place_notes
from hta_dsv4.analysis.rank_gpus import mixed_gpus_note
from hta_dsv4.analysis.shares import SHARE, SHARE_KEYS, RankShares, Shares, parse_by
from hta_dsv4.classify.architecture import Reading
from hta_dsv4.classify.graphs import Fit
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.notes import origin_notes, share_notes, why_empty
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.link import is_graph_launch
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.ranks import is_capture_call
from hta_dsv4.trace.reader import read_trace
from hta_dsv4.trace.run_files import rank_by_name
from hta_dsv4.trace.steps import Steps

if TYPE_CHECKING:
    from hta_dsv4.analysis.communication import Communication
    from hta_dsv4.trace.hta import HtaView

ALWAYS = "bucket"
"""Shares by this are always made: the median rank is chosen by them."""


@dataclass(frozen=True)
class Job:
    """One file to be read.

    Attributes:
        name: of the file, or of the member of a zip.
        path: absolute.
        member: of a zip with several.
        size: bytes of the file, by which a worker knows that it sees the same one.
        rank_in_name: whether the rank may be taken from the name: one of several files.
        salvage, frames: as for :func:`hta_dsv4.runs.run.load`.
        by: the share tables wanted, each a tuple of keys.
        info: whether a description of the trace is wanted, which takes a fifth of the time.
    """

    name: str
    path: Path
    member: str | None = None
    size: int = 0
    rank_in_name: bool = False
    salvage: bool = False
    frames: bool = False
    by: tuple[tuple[str, ...], ...] = ((ALWAYS,),)
    info: bool = False


@dataclass(frozen=True)
class Reduced:
    """What is kept of one trace.

    Attributes:
        job: how it was read.
        trace: metadata and warnings; of its tables one row, and of the names what tells ranks from other files.
        steps: the step table, without the step of each activity.
        shares: keys -> one table per rank.
        ranks: ranks that have activities.
        architecture, fit, info: as of a run; the last only where wanted.
        notes: what a share table says of this trace.
        origins: summed durations by ``origin_method`` and ``launch_name``, in the activity table's columns.
    """

    job: Job
    trace: Trace
    steps: Steps
    shares: dict[tuple[str, ...], tuple[RankShares, ...]]
    ranks: tuple[int, ...]
    architecture: Reading | None
    fit: Fit | None
    info: Info | None
    notes: tuple[str, ...]
    origins: pd.DataFrame


def read_job(job: Job, rules: RuleSet) -> Run:
    """Read one file, as a run of it alone.

    Raises:
        TraceError: as :func:`~hta_dsv4.trace.reader.read_trace`.
    """
    trace = read_trace(job.path, python_frames=job.frames, salvage=job.salvage, member=job.member)
    return Run(job.name, (rank_by_name(job.name, trace) if job.rank_in_name else trace,), rules)


def reduce_trace(job: Job, rules: RuleSet) -> Reduced:
    """Read, classify and reduce one file.

    Args:
        job: what to read.
        rules: to classify with.

    Raises:
        TraceError: as :func:`~hta_dsv4.trace.reader.read_trace`.
    """
    run = read_job(job, rules)
    (trace,), (steps,), (table,) = run.traces, run.steps, run.classified
    some = bool(len(trace.activities))
    shares = {keys: run.shares(keys).ranks if some else () for keys in dict.fromkeys((*job.by, (ALWAYS,)))}
    return Reduced(
        job=job,
        trace=_slim(trace),
        steps=replace(steps, of_activity=steps.of_activity.iloc[:0]),
        shares=shares,
        ranks=run.ranks,
        architecture=run.architecture[0],
        fit=run.fits[0],
        info=run.info()[0] if job.info else None,
        notes=share_notes([trace], [steps], []),
        origins=_origin_sums(table),
    )


def counted_part(job: Job, rules: RuleSet, rank: int) -> Counted:
    """The counted steps of one rank, classified: what a comparison looks at.

    Args:
        job: the file that holds the rank.
        rules: to classify with.
        rank: of the variant.
    """
    from hta_dsv4.analysis.counted import counted

    run = read_job(job, rules)
    return counted(run.classified[0], run.steps[0], rank)


Fetch = Callable[[Job, int], Counted]
"""Brings the counted part of one rank of one file."""


@dataclass(frozen=True)
class ReducedRun(Run):
    """A run of which only small tables are here.

    Attributes:
        reduced: one per trace, in the order of ``traces``.
        fetch: brings the activities of one rank.
    """

    reduced: tuple[Reduced, ...] = ()
    fetch: Fetch = field(default=lambda job, rank: _unfetched(job), repr=False)

    @cached_property
    def steps(self) -> tuple[Steps, ...]:
        """The decode steps of each trace; their activities are not here."""
        return tuple(r.steps for r in self.reduced)

    @property
    def fits(self) -> tuple[Fit | None, ...]:
        """How well a companion fits: there is none."""
        return tuple(r.fit for r in self.reduced)

    @cached_property
    def _attributed(self) -> NoReturn:
        raise HtaDsv4Error(
            f"{self.label}: this needs the activities of every rank, and they are with the workers; run it without a "
            "cluster"
        )

    @cached_property
    def architecture(self) -> tuple[Reading | None, ...]:
        """What each trace's launch counts say about the model."""
        return tuple(r.architecture for r in self.reduced)

    @cached_property
    def hta(self) -> HtaView:
        """Not here: HTA's objects hold every activity."""
        self._attributed  # noqa: B018  # raises, with the reason
        raise AssertionError

    def collectives(self) -> Communication:
        """Not here: collectives are aligned activity by activity."""
        self._attributed  # noqa: B018  # raises, with the reason
        raise AssertionError

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that has activities, in order."""
        return tuple(sorted({r for one in self.reduced for r in one.ranks}))

    def shares(self, by: str | Sequence[str] = "bucket") -> Shares:
        """Where the GPU time goes; as :meth:`Run.shares`, for keys that were asked for as traces were reduced.

        Raises:
            HtaDsv4Error: unknown or other ``by``, or no GPU activity in any trace.
        """
        keys = parse_by(by, SHARE_KEYS)
        if not any(r.ranks for r in self.reduced):
            raise HtaDsv4Error(f"{self._where}: {why_empty(self.traces)}")
        if lacking := [r for r in self.reduced if keys not in r.shares]:
            have = "; ".join(",".join(k) for k in lacking[0].shares)
            raise HtaDsv4Error(
                f"{self.label}: shares by {','.join(keys)} were not made by the workers, only by {have}"
            )
        tables = [t for r in self.reduced for t in r.shares[keys]]
        notes = [*mixed_gpus_note(self.traces)]
        for trace, one in zip(self.traces, self.reduced, strict=True):
            where = f"{trace.path.name}: " if len(self.traces) > 1 else ""
            # what was found as the ranks were put together is said last, as the trace's own warnings are
            notes += [where + n for n in (*one.notes, *trace.warnings[len(one.trace.warnings) :])]
        notes += share_notes([], [], tables)
        notes += self.origin_notes if "origin" in keys else ()
        notes += dict.fromkeys(n for t in tables for n in place_notes(self.label, keys, t.table, SHARE))
        return Shares(self.label, keys, tuple(sorted(tables, key=lambda t: t.rank)), tuple(notes))

    @property
    def origin_notes(self) -> tuple[str, ...]:
        """What part of the sum has no origin, and what would tell it."""
        return origin_notes(self.label, self.traces, pd.concat([r.origins for r in self.reduced]), self.fits)

    @property
    def _counted_at(self) -> int:
        rank = self.shares(ALWAYS).median_rank.rank
        return next(i for i, r in enumerate(self.reduced) if rank in r.ranks)

    def counted_of(self, rank: int) -> Counted:
        """The counted steps of one rank, fetched.

        Args:
            rank: one of :attr:`ranks`.
        """
        return self.fetch(next(r for r in self.reduced if rank in r.ranks).job, rank)

    def info(self) -> tuple[Info, ...]:
        """What each trace is, has and lacks; where it was asked for as traces were reduced.

        Raises:
            HtaDsv4Error: it was not.
        """
        out = []
        for one, trace in zip(self.reduced, self.traces, strict=True):
            if one.info is None:
                raise HtaDsv4Error(
                    f"{self.label}: descriptions were not made by the workers; load with info=True"
                )
            out.append(replace(one.info, path=str(trace.path), warnings=trace.warnings))
        return tuple(out)


def _slim(trace: Trace) -> Trace:
    """The trace with a row of each table: enough to tell whether it has any, and whether it captures graphs only."""
    activities, events = trace.activities.iloc[:1].copy(), trace.events.iloc[:1].copy()
    for table, keep in ((activities, ()), (events, (col.NAME, col.CATEGORY))):
        for name in table.columns:
            if isinstance(table[name].dtype, pd.CategoricalDtype) and name not in keep:
                table[name] = table[name].cat.remove_unused_categories()
    if len(events):
        names = events[col.NAME].cat
        here = set(events[col.NAME].astype(str))
        other = [
            n for n in names.categories
            if str(n) not in here and not is_graph_launch(str(n)) and not is_capture_call(str(n))
        ]  # fmt: skip
        events[col.NAME] = names.remove_categories(other)
    return replace(trace, activities=activities, events=events)


def _origin_sums(table: pd.DataFrame) -> pd.DataFrame:
    keys = [col.ORIGIN_METHOD, col.LAUNCH_NAME]
    if not len(table):
        return table.reindex(columns=[*keys, col.DUR_NS]).iloc[:0]
    sums = table.groupby(keys, observed=True, dropna=False)[col.DUR_NS].sum().reset_index()
    # plain text, as tables of several traces are put together, whose categories differ
    return sums.astype(dict.fromkeys(keys, "object"))


def _unfetched(job: Job) -> NoReturn:
    raise HtaDsv4Error(f"{job.path}: the activities of this trace were not asked for")
