"""Are the captured steps decode steps of the batch that was asked for? Told from the engine's own step annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hta_dsv4.trace.markers import BATCH, DECODE, LABEL, MIXED, PREFILL, engine_steps, marker_phase
from hta_dsv4.trace.model import Trace


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """What the steps of one rank's trace are.

    Attributes:
        rank: whose.
        concurrency: the batch asked for.
        kinds: kind of step -> how many, the asked one first, e.g. ``{"decode of 32": 9, "prefill": 1}``.
    """

    rank: int
    concurrency: int
    kinds: Mapping[str, int]

    @property
    def steps(self) -> int:
        """Steps annotated in the trace."""
        return sum(self.kinds.values())

    @property
    def good(self) -> int:
        """Those that decode the batch asked for and nothing else."""
        return self.kinds.get(_kind(DECODE, self.concurrency), 0)

    @property
    def ok(self) -> bool:
        """Every step does, and there is one."""
        return 0 < self.good == self.steps

    @property
    def sentence(self) -> str:
        """The result in one sentence, without a full stop."""
        if not self.steps:
            return (
                f"rank {self.rank}: the trace annotates no step, so nothing in it tells whether it shows decode steps "
                f"of {self.concurrency} requests"
            )
        if self.ok:
            many = f"all {self.steps} captured steps are" if self.steps > 1 else "the captured step is a"
            return (
                f"rank {self.rank}: {many} decode step{'s' * (self.steps > 1)} of {self.concurrency} requests"
            )
        said = ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())
        return (
            f"rank {self.rank}: {self.good} of {self.steps} captured steps decode {self.concurrency} requests and "
            f"nothing else ({said})"
        )


def check_decode(trace: Trace, concurrency: int, rank: int = 0) -> DecodeCheck:
    """Count a trace's steps by what they do.

    Args:
        trace: read with its CPU side.
        concurrency: the batch each step should decode.
        rank: whose trace it is, for messages.
    """
    table, _ = engine_steps(trace)
    counts: dict[str, int] = {}
    for label, batch in zip(table[LABEL], table[BATCH], strict=True):
        phase, _ = marker_phase(str(label))
        kind = _kind(phase, None if pd.isna(batch) else int(batch))
        counts[kind] = counts.get(kind, 0) + 1
    asked = _kind(DECODE, concurrency)
    return DecodeCheck(
        rank, concurrency, dict(sorted(counts.items(), key=lambda kv: (kv[0] != asked, -kv[1], kv[0])))
    )


def _kind(phase: str, batch: int | None) -> str:
    if phase == DECODE:
        return "decode" if batch is None else f"decode of {batch}"
    if phase == MIXED:
        return "prefill and decode mixed"
    return "prefill" if phase == PREFILL else "without requests"
