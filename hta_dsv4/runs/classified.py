"""One variant, read: its traces, their decode steps, and every activity with its bucket, role and origin."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.classify.architecture import Reading, read_activities
from hta_dsv4.classify.graphs import Fit, from_companion
from hta_dsv4.classify.inference import infer
from hta_dsv4.classify.origin import OriginRules
from hta_dsv4.classify.origins_file import default_origins
from hta_dsv4.classify.rules import RuleSet
from hta_dsv4.shipped import presentable
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import Steps, find_steps

if TYPE_CHECKING:
    from hta_dsv4.trace.hta import HtaView


@dataclass(frozen=True)
class Classified:
    """One variant: a label and its traces, one per rank (or several ranks in one merged file), classified.

    Attributes:
        label: the variant's name.
        traces: as read.
        rules: the rules its activities are classified with.
        origins: the rules that tell which part of the model asked for each.
        companion: an eager or capture run of the same program, from which kernels in graph replays take op, scope and
            origin.
    """

    label: str
    traces: tuple[Trace, ...]
    rules: RuleSet
    origins: OriginRules = field(default_factory=default_origins)
    companion: Classified | None = None

    def __post_init__(self) -> None:
        """Make the label text that every table and file can hold (a command line may give bytes that are none)."""
        object.__setattr__(self, "label", presentable(self.label))

    @cached_property
    def steps(self) -> tuple[Steps, ...]:
        """The decode steps of each trace."""
        return tuple(find_steps(t) for t in self.traces)

    @property
    def classified(self) -> tuple[pd.DataFrame, ...]:
        """Each trace's activity table with ``step, own_ns, bucket, role, rule, origin``, its method and confidence."""
        return tuple(table for table, _ in self._attributed)

    @property
    def fits(self) -> tuple[Fit | None, ...]:
        """How well the companion fits each trace; ``None`` without one."""
        return tuple(fit for _, fit in self._attributed)

    @cached_property
    def _attributed(self) -> tuple[tuple[pd.DataFrame, Fit | None], ...]:
        out = []
        for i, (trace, steps) in enumerate(zip(self.traces, self.steps, strict=True)):
            table = self.rules.classify_frame(trace.activities)
            table[col.STEP] = steps.of_activity
            table[col.OWN_NS] = own_ns(table)
            table, fit = self.origins.classify_frame(trace, table), None
            if self.companion is not None and len(table):
                at = i if len(self.companion.traces) == len(self.traces) else 0
                table, fit = from_companion(
                    table, steps, self.companion.classified[at], self.companion.steps[at]
                )
            out.append((infer(table, steps, read_activities(table, steps)), fit))
        return tuple(out)

    @cached_property
    def architecture(self) -> tuple[Reading | None, ...]:
        """What each trace's launch counts say about the model; ``None`` where they fit no known one."""
        return tuple(read_activities(t.activities, s) for t, s in zip(self.traces, self.steps, strict=True))

    @property
    def activities(self) -> pd.DataFrame:
        """The classified activity table of all ranks, one below the other (filter by ``rank``)."""
        return (
            self.classified[0] if len(self.classified) == 1 else pd.concat(self.classified, ignore_index=True)
        )

    @cached_property
    def hta(self) -> HtaView:
        """The same traces as HTA's own objects (``run.hta.analysis`` is its ``TraceAnalysis``)."""
        from hta_dsv4.trace.hta import to_hta  # heavy import, wanted by few

        return to_hta(self.traces)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that has activities, in order."""
        return tuple(sorted({int(r) for t in self.traces for r in t.activities[col.RANK].unique()}))

    @property
    def _where(self) -> str:
        return str(self.traces[0].path) if len(self.traces) == 1 else self.label
