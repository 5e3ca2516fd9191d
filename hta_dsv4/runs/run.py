"""What can be asked of one variant. What a notebook and the command line stand on.

>>> import hta_dsv4
>>> run = hta_dsv4.load("traces/h200_probe.trace.json.gz")  # doctest: +SKIP
>>> run.shares(by="bucket").table  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from hta_dsv4.analysis.change import Change
from hta_dsv4.analysis.collective_speed import CollectiveSpeeds, collective_speeds
from hta_dsv4.analysis.communication import Communication, communication
from hta_dsv4.analysis.costs.workload import Workload, workload
from hta_dsv4.analysis.counted import Counted, counted
from hta_dsv4.analysis.coverage import Coverage
from hta_dsv4.analysis.coverage import coverage as find_coverage
from hta_dsv4.analysis.devices import Ceilings, ceilings
from hta_dsv4.analysis.fill import Fill
from hta_dsv4.analysis.fill import fill as find_fill
from hta_dsv4.analysis.findings import MATERIAL, Findings, find, subject
from hta_dsv4.analysis.floors import launch_floors
from hta_dsv4.analysis.info import Info, trace_info
from hta_dsv4.analysis.launch_bound import IdleTime, idle_time
from hta_dsv4.analysis.places import place_notes
from hta_dsv4.analysis.rank_gpus import mixed_gpus_note
from hta_dsv4.analysis.rank_parts import rank_parts
from hta_dsv4.analysis.ranks import RankTable, rank_table_of
from hta_dsv4.analysis.roofline import Roofline
from hta_dsv4.analysis.roofline import roofline as roofline_of
from hta_dsv4.analysis.scaling import Scaling
from hta_dsv4.analysis.shares import SHARE, SHARE_KEYS, Shares, median_of, parse_by, rank_shares
from hta_dsv4.analysis.whatif import WhatIf, what_if
from hta_dsv4.analysis.window import Window, window
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.classified import Classified
from hta_dsv4.runs.companion_file import companion_option
from hta_dsv4.runs.notes import origin_notes, share_notes, why_empty
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.manifest import manifest_entry
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.ranks import missing_ranks, world_size


class Run(Classified):
    """One variant, and what can be asked of it; attributes as :class:`~hta_dsv4.runs.classified.Classified`."""

    def shares(self, by: str | Sequence[str] = "bucket") -> Shares:
        """Where the GPU time goes.

        Args:
            by: ``bucket``, ``role``, ``origin``, ``kernel``, ``step``, ``layer``, ``scope``, or several of them.

        Returns:
            The share tables, one per rank.

        Raises:
            HtaDsv4Error: unknown ``by``, no GPU activity in any trace, or none whose step, layer or scope is known.
        """
        keys = parse_by(by, SHARE_KEYS)
        if not any(len(t.activities) for t in self.traces):
            raise HtaDsv4Error(f"{self._where}: {why_empty(self.traces)}")
        tables = []
        for table, steps in zip(self.classified, self.steps, strict=True):
            tables += [rank_shares(table, steps, int(r), keys) for r in sorted(table[col.RANK].unique())]
        notes = mixed_gpus_note(self.traces) + share_notes(self.traces, self.steps, tables)
        notes += self.origin_notes if "origin" in keys else ()
        notes += tuple(
            dict.fromkeys(n for t in tables for n in place_notes(self.label, keys, t.table, SHARE))
        )
        return Shares(self.label, keys, tuple(sorted(tables, key=lambda t: t.rank)), notes)

    def ranks_table(self, by: str | Sequence[str] = "bucket") -> RankTable:
        """The ranks side by side: sum, busy, idle, wall and times by key of each, spread, slowest rank.

        Args:
            by: ``bucket``, ``role``, ``origin``, ``kernel``, or several of them.

        Raises:
            HtaDsv4Error: unknown ``by``, or no GPU activity in any trace.
        """
        return rank_table_of(self.shares(by), self.shares("bucket"), self.traces)

    def collectives(self) -> Communication:
        """Collectives aligned across the ranks: transfer, waits, clocks, and late ranks that are to blame.

        Raises:
            HtaDsv4Error: no GPU activity in any trace.
        """
        notes = self.shares("bucket").notes
        return communication(self.label, rank_parts(self.traces, self.classified, self.steps), notes)

    def collective_speeds(
        self,
        communication: Communication | None = None,
        *,
        device: str | None = None,
        workload: Workload | None = None,
    ) -> CollectiveSpeeds:
        """What collectives carry, how near their link's speed they are, and whether latency or bandwidth bounds them.

        Args:
            communication: :meth:`collectives`, where they are known already.
            device: as for :meth:`roofline`.
            workload: as for :meth:`roofline`.

        Raises:
            HtaDsv4Error: unknown ``device``, no GPU activity in any trace, or a broken manifest.
        """
        said = communication if communication is not None else self.collectives()
        found, name = self.ceilings(device)
        apart = self._hosts > 1
        why = f"the ranks are on {self._hosts} hosts: what joins them is not in the device table" if apart else (
            f"{name or 'the GPU'}: nothing is known of its links; python -m benchmarks.links measures them"
        )  # fmt: skip
        return collective_speeds(
            said, rank_parts(self.traces, self.classified, self.steps),
            workload or self.workload(),
            None if found is None else found.link, missing=bool(missing_ranks(self.traces)), no_link=why,
        )  # fmt: skip

    @property
    def _hosts(self) -> int:
        """Different hosts that the traces name."""
        named = {t.meta.extra.get("host_name") for t in self.traces}
        return len({h for h in named if isinstance(h, str) and h})

    @cached_property
    def counted(self) -> Counted:
        """The counted steps of the rank that stands for the variant (the median one)."""
        return self.counted_of(self.shares("bucket").median_rank.rank)

    def counted_of(self, rank: int) -> Counted:
        """The counted steps of one rank.

        Args:
            rank: one of :attr:`ranks`.
        """
        at = next(i for i, t in enumerate(self.classified) if (t[col.RANK] == rank).any())
        return counted(self.classified[at], self.steps[at], rank)

    def fill(self, by: str | Sequence[str] = "kernel") -> Fill:
        """How full each launch could make the GPU: underfilled launches, CTAs per SM, waves, tail.

        Args:
            by: ``kernel``, ``role``, ``bucket``, ``origin``, or several of them.

        Raises:
            HtaDsv4Error: unknown ``by``, or no GPU activity in any trace.
        """
        at, part = self._window
        return find_fill(self.label, part, self.traces[at].meta, by, self._window_notes(by))

    def coverage(self, by: str | Sequence[str] = ("bucket", "origin")) -> Coverage:
        """How many SMs have work over time, an upper bound, and who owns the empty SM-time.

        Args:
            by: what a row of the table of owners is.

        Raises:
            HtaDsv4Error: unknown ``by``, no kernel, or the trace does not say how many SMs the GPU has.
        """
        at, part = self._window
        notes = self._window_notes(by)
        return find_coverage(self.label, part, self.traces[at].meta, by, notes, str(self.traces[at].path))

    def idle(
        self, by: str | Sequence[str] = "bucket", *, unprofiled_step_ns: float | None = None
    ) -> IdleTime:
        """Idle time by cause, the cost of launching, short kernels, and what a CUDA graph would save.

        Args:
            by: what a row of "idle in front of what" is.
            unprofiled_step_ns: time of a step without the profiler, where known.

        Raises:
            HtaDsv4Error: unknown ``by``, or no GPU activity in any trace.
        """
        at, part = self._window
        return idle_time(
            self.label, part, self.traces[at].events, by, unprofiled_step_ns=unprofiled_step_ns,
            notes=self._window_notes(by),
        )  # fmt: skip

    @cached_property
    def _window(self) -> tuple[int, Window]:
        """Which trace holds the rank that stands for the variant, and what is looked at of it."""
        rank = self.shares("bucket").median_rank.rank
        at = next(i for i, t in enumerate(self.classified) if (t[col.RANK] == rank).any())
        return at, window(self.classified[at], self.steps[at], rank)

    def _window_notes(self, by: str | Sequence[str]) -> tuple[str, ...]:
        many = len(self.ranks)
        chosen = (
            (f"rank {self._window[1].rank}, the {median_of(many)}, stands for the variant",)
            if many > 1
            else ()
        )
        return (
            *chosen,
            *self.shares("bucket").notes,
            *(self.origin_notes if "origin" in parse_by(by) else ()),
        )

    @property
    def _counted_at(self) -> int:
        """Which trace the counted steps are of."""
        return next(i for i, t in enumerate(self.classified) if (t[col.RANK] == self.counted.rank).any())

    @property
    def counted_trace(self) -> Trace:
        """The trace that holds the rank which stands for the variant."""
        return self.traces[self._counted_at]

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the manifest beside the counted trace says of it, as written; empty where there is none.

        Raises:
            HtaDsv4Error: a broken manifest.
        """
        return manifest_entry(self.traces[self._counted_at].path)[0] or {}

    def workload(
        self, *, batch: int | None = None, context: float | None = None, max_context: int | None = None
    ) -> Workload:
        """What was decoded: as said here, else by the manifest beside the trace, else as the trace shows it.

        Args:
            batch: requests decoded together.
            context: tokens each request has seen, on average.
            max_context: the static maximum that padded widths follow.

        Raises:
            HtaDsv4Error: a size that is not positive, or a broken manifest.
        """
        at = self._counted_at
        return workload(
            self.traces[at].path, self.counted.activities, self.architecture[at],
            batch=batch, context=context, max_context=max_context, ranks=world_size(self.traces),
        )  # fmt: skip

    def ceilings(self, device: str | None = None) -> tuple[Ceilings | None, str | None]:
        """What the GPU can do at best, and its name: as said here, else as the trace names it.

        Args:
            device: a GPU's name, or enough of it.

        Raises:
            HtaDsv4Error: a ``device`` that the table does not know.
        """
        if device is None:
            names = [d.name for d in self.traces[self._counted_at].meta.devices if d.name]
            return self._on_hosts(ceilings(names[0] if names else None)), names[0] if names else None
        found = self._on_hosts(ceilings(device))
        if found is None:
            raise HtaDsv4Error(
                f"--device {device}: not in the device table; hta-dsv4 roofline --devices lists it"
            )
        return found, device

    def _on_hosts(self, found: Ceilings | None) -> Ceilings | None:
        """Ceilings without a link where the ranks are on several hosts: the table's is within one."""
        return found if found is None or self._hosts < 2 else replace(found, link=None)

    def roofline(
        self,
        by: str | Sequence[str] = "bucket",
        *,
        device: str | None = None,
        workload: Workload | None = None,
    ) -> Roofline:
        """How far each kernel is from what the hardware permits: floor, headroom, achieved bandwidth and rate.

        Args:
            by: ``bucket``, ``role``, ``origin``, ``kernel``, or several of them.
            device: the GPU, where the trace does not name it or another's ceilings are wanted.
            workload: what was decoded; :meth:`workload` by default.

        Raises:
            HtaDsv4Error: unknown ``by`` or ``device``, or no GPU activity.
        """
        keys = parse_by(by)
        found, name = self.ceilings(device)
        return roofline_of(self.label, self.counted, workload or self.workload(), found, name, keys)

    def whatif(
        self,
        changes: Sequence[Change],
        *,
        graph: bool = False,
        device: str | None = None,
        workload: Workload | None = None,
    ) -> WhatIf:
        """What a step would take under changes; see :mod:`hta_dsv4.analysis.change` for how to write them.

        Args:
            changes: applied in this order.
            graph: launch each step as one CUDA graph.
            device: as for :meth:`roofline`; floors need ceilings.
            workload: as for :meth:`roofline`.

        Raises:
            HtaDsv4Error: no steps, a change that names no launch, or a floor that is not known.
        """
        w = workload or self.workload()
        unprofiled = self.manifest.get("timing", {}).get("unprofiled_step_ms")
        return what_if(
            self.label, self.counted, changes, floors=launch_floors(self.counted, w, self.ceilings(device)[0]),
            batch=w.batch, graph=graph, unprofiled_ns=None if unprofiled is None else float(unprofiled) * 1e6,
        )  # fmt: skip

    def findings(
        self,
        *,
        device: str | None = None,
        workload: Workload | None = None,
        sweep: Scaling | None = None,
        material: float = MATERIAL,
    ) -> Findings:
        """What to attack next, best first, and what to leave alone.

        Args:
            device: as for :meth:`roofline`.
            workload: as for :meth:`roofline`.
            sweep: time over the static maximum context by origin (:func:`scaling`), this run at its largest value.
            material: part of the step below which a finding is not listed.

        Raises:
            HtaDsv4Error: unknown ``device``, or no GPU activity.
        """
        timing = self.manifest.get("timing", {})
        plain = timing.get("unprofiled_step_ms")
        trace = self.traces[self._counted_at]
        said = self.collectives() if len(self.ranks) > 1 else None
        return find(
            subject(
                self.label, self.counted, workload or self.workload(), self.ceilings(device)[0], trace.meta,
                idle=self.idle(unprofiled_step_ns=None if plain is None else float(plain) * 1e6), timing=timing,
                shapes_recorded=bool(self.counted.activities[col.OP_SHAPES].notna().any())
                if col.OP_SHAPES in self.counted.activities
                else False,
                sweep=sweep, communication=said,
                companion=companion_option(self.label, self.traces) if self.companion is None else None,
                speeds=None if said is None else self.collective_speeds(said, device=device, workload=workload),
            ),
            material=material,
        )  # fmt: skip

    def info(self) -> tuple[Info, ...]:
        """What each trace is, has and lacks."""
        return tuple(trace_info(t, s) for t, s in zip(self.traces, self.steps, strict=True))

    @property
    def origin_notes(self) -> tuple[str, ...]:
        """What part of the sum has no origin, and what would tell it."""
        return origin_notes(self.label, self.traces, self.activities, self.fits)
