"""Are the captured steps decode steps of the batch that was asked for? Told from the engine's own step annotations.

With data parallelism the requests are divided over groups of ranks, and each rank's steps decode its group's part.
Speculative decoding adds forward passes of the draft model, which are counted apart and are no fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from hta_dsv4.trace.markers import BATCH, DECODE, LABEL, MIXED, PREFILL, engine_steps, marker_phase
from hta_dsv4.trace.model import Trace

SPECULATION = "of the draft model"
_DRAFT = re.compile(r"^step\[[A-Z_]*DRAFT")
_VERIFY = re.compile(r"^step\[TARGET_VERIFY")


@dataclass(frozen=True, slots=True)
class DecodeCheck:
    """What the steps of one rank's trace are.

    Attributes:
        rank: whose.
        concurrency: requests decoded together, as asked.
        kinds: kind of step -> how many, the asked one first, e.g. ``{"decode of 32": 9, "prefill": 1}``.
        groups: data-parallel groups that the requests are divided over.
        speculative: drafts are verified, so that a step gives a request more than one token.
    """

    rank: int
    concurrency: int
    kinds: Mapping[str, int]
    groups: int = 1
    speculative: bool = False

    @property
    def parts(self) -> tuple[int, ...]:
        """Batches that a rank should decode: C, or what falls to a group where C does not divide evenly."""
        least, more = divmod(self.concurrency, self.groups)
        return (least, least + 1) if more else (least,)

    @property
    def steps(self) -> int:
        """Steps annotated in the trace."""
        return sum(self.kinds.values())

    @property
    def good(self) -> int:
        """Those that decode the batch asked for and nothing else."""
        return sum(self.kinds.get(f"decode of {part}", 0) for part in self.parts)

    @property
    def ok(self) -> bool:
        """Every step does, but for the draft model's, and there is one."""
        return 0 < self.good == self.steps - self.kinds.get(SPECULATION, 0)

    @property
    def sentence(self) -> str:
        """The result in one sentence, without a full stop."""
        asked = f"{self.concurrency} requests"
        if self.groups > 1:
            share = " or ".join(map(str, self.parts))
            asked = f"{share} of {asked}, divided over {self.groups} data-parallel groups,"
        if not self.steps:
            return (
                f"rank {self.rank}: the trace annotates no step, so nothing in it tells whether it shows decode steps "
                f"of {asked}"
            ).rstrip(",")
        said = ", ".join(f"{n} {kind}" for kind, n in self.kinds.items())
        if not self.ok:
            few = f"{self.good} of {self.steps} captured steps decode"
            return f"rank {self.rank}: {few} {asked} and nothing else ({said})"
        many = f"all {self.good} captured steps are" if self.good > 1 else "the captured step is a"
        drafts = self.kinds.get(SPECULATION, 0)
        return f"rank {self.rank}: {many} decode step{'s' * (self.good > 1)} of {asked}".rstrip(",") + (
            f", with {drafts} of the draft model" if drafts else ""
        )


def check_decode(trace: Trace, concurrency: int, rank: int = 0, groups: int = 1) -> DecodeCheck:
    """Count a trace's steps by what they do.

    Args:
        trace: read with its CPU side.
        concurrency: requests decoded together.
        rank: whose trace it is, for messages.
        groups: data-parallel groups.
    """
    table, _ = engine_steps(trace)
    counts: dict[str, int] = {}
    speculative = False
    for label, batch in zip(table[LABEL], table[BATCH], strict=True):
        kind = _kind(str(label), None if pd.isna(batch) else int(batch))
        counts[kind] = counts.get(kind, 0) + 1
        speculative |= kind == SPECULATION or bool(_VERIFY.match(str(label)))
    check = DecodeCheck(rank, concurrency, counts, groups, speculative)
    asked = {f"decode of {part}" for part in check.parts}
    order = sorted(counts.items(), key=lambda kv: (kv[0] not in asked, -kv[1], kv[0]))
    return DecodeCheck(rank, concurrency, dict(order), groups, speculative)


def _kind(label: str, batch: int | None) -> str:
    if _DRAFT.match(label):
        return SPECULATION
    phase, _ = marker_phase(label)
    if phase == DECODE:
        return "decode" if batch is None else f"decode of {batch}"
    if phase == MIXED:
        return "prefill and decode mixed"
    return "prefill" if phase == PREFILL else "without requests"
