"""Chains of small ops that repeat in every layer: fuse them, with the launches and bytes that this saves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    ATTAINABLE,
    MODELLED,
    Evidence,
    Finding,
    Ints,
    claim,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import Subject
from hta_dsv4.classify.origin_columns import UNKNOWN

RULE = "glue_chains"
LEAST = 4
"""Launches in a row from which they are a chain."""
REPEATS = 2
"""Chains per step from which they repeat."""
LOOP = 40
"""Launches of a chain from which it is likely a loop unrolled."""
COMPILED = "inductor_fused"
"""Role of kernels that torch.compile made: what they have not been fused with, it could not or would not fuse."""


@dataclass(frozen=True)
class Chains:
    """Chains of one origin.

    Attributes:
        rows: int64 [k], positions of their launches.
        chain: int64 [k], which chain each belongs to, 0..n-1.
        n: number of chains over all steps.
    """

    rows: Ints
    chain: Ints
    n: int


def chains(s: Subject) -> dict[str, Chains]:
    """Maximal runs of glue of one origin, one step and one stream with nothing between: origin -> its chains."""
    stream = s.part.activities["stream"].to_numpy(dtype=np.int64, na_value=-1)
    order = np.lexsort((np.arange(len(stream)), stream, s.part.step))
    glue = (s.bucket == "glue")[order]
    origin, step = s.origin[order], s.part.step[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (
        (origin[1:] != origin[:-1])
        | (step[1:] != step[:-1])
        | (stream[order][1:] != stream[order][:-1])
        | (glue[1:] != glue[:-1])
    )
    run = np.cumsum(new) - 1
    length = np.bincount(run)[run] if len(run) else run
    out = {}
    for who in sorted(set(origin[glue & (length >= LEAST)])):
        mine = glue & (length >= LEAST) & (origin == who)
        chain = np.unique(run[mine], return_inverse=True)[1].reshape(-1)
        out[str(who)] = Chains(order[mine], chain.astype(np.int64), int(chain.max()) + 1)
    return out


def repeated(s: Subject) -> dict[str, Chains]:
    """Origin -> its chains, where they repeat within a step."""
    return {who: found for who, found in chains(s).items() if found.n >= REPEATS * s.steps}


def fused(s: Subject) -> Ints:
    """Launches that this rule asks to be fused: int64 [k], their positions."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *(found.rows for found in repeated(s).values())])


def glue_chains(s: Subject) -> list[Finding]:
    """One finding per origin whose chains repeat within a step."""
    return [_finding(s, who, found) for who, found in repeated(s).items()]


def _finding(s: Subject, who: str, found: Chains) -> Finding:
    rows, chain, n = found.rows, found.chain, found.n
    dur, nothing = s.dur[rows], s.floors.launch_ns
    total = np.bincount(chain, weights=dur)
    count = np.bincount(chain)
    first = np.flatnonzero(np.append(True, chain[1:] != chain[:-1]))
    last = np.append(first[1:], len(rows)) - 1
    read, written, moved = (s.floors.of(f)[rows] for f in ("read", "written", "moved"))
    outside = np.nan_to_num(read[first]) + np.nan_to_num(written[last])
    memory = np.array(
        [0.0 if s.device is None else s.device.memory_ns(r, w) for r, w in zip(
            np.nan_to_num(read[first]), np.nan_to_num(written[last]), strict=True)]
    )  # fmt: skip
    # At best one launch at its floor that reads what the first reads and writes what the last writes; more likely one
    # at the usual part of it, or as long as two small launches of this trace. Where bytes are not known, as long as the
    # longest launch of the chain, which one pass over its tensors takes. At least the launches that are gone save what
    # a launch that does nothing takes.
    told = ~np.isnan(read[first] + written[last]) & (s.device is not None)
    longest = np.zeros(n)
    np.maximum.at(longest, chain, dur)
    best = np.minimum(np.where(told, np.maximum(memory, nothing), total / count), total)
    likely = np.where(told, best / ATTAINABLE[1], longest)
    likely = np.minimum(np.maximum(likely, 2 * s.small_ns), total)
    cautious = np.maximum(total - (count - 1) * nothing, likely)
    share = dur / np.maximum(total[chain], 1e-9)
    made = claim(rows, dur, cautious[chain] * share, likely[chain] * share, best[chain] * share)
    launches, time = len(rows) / s.steps, float(dur.sum()) / s.steps
    gone = (len(rows) - n) / s.steps
    evidence = [
        Evidence("launches in chains per step", launches, "launches"),
        Evidence("chains per step", n / s.steps, "chains"),
        Evidence("launches of a chain, median", float(np.median(count)), "launches"),
        Evidence("time", time, "ns"),
        Evidence("launches saved per step, one left of each chain", gone, "launches", MODELLED),
    ]
    known = ~np.isnan(moved)
    if known.any():
        inner = max(float(moved[known].sum() - outside.sum()), 0.0) / s.steps
        evidence.append(
            Evidence("bytes between them that a fused kernel keeps on chip", inner, "bytes", MODELLED)
        )
    host = s.idle.cadence_ns if s.idle is not None and s.idle.launch_bound else None
    if host is not None:
        evidence.append(
            Evidence("host time of these launches while launching binds", gone * host, "ns", MODELLED)
        )
    generated = float(dur[s.role[rows] == COMPILED].sum()) > 0.5 * float(dur.sum())
    per = f"{n / s.steps:,.0f} chains of {np.median(count):,.0f}"
    return Finding(
        RULE, ATTACK,
        f"{who if who != UNKNOWN else 'origin not known'}: {launches:,.0f} glue launches a step in {per}, "
        f"{said(time)} ({percent(time, s.own_ns)} of the GPU time): fused, {gone:,.0f} launches fewer",
        tuple(evidence), **s.about(rows), **s.saved(made), label=MODELLED, confidence=0.8 if told.all() else 0.6,
        because=f"launch counts are the trace's; at least {said(nothing)} saved for each launch that is gone; likely "
        f"two small launches ({said(2 * s.small_ns)}) or {100 * ATTAINABLE[1]:.0f} % of bandwidth in place of a chain"
        + ("" if told.all() else "; where its bytes are not known, its longest launch"),
        check=f'hta-dsv4 whatif TRACE --set "bucket:glue+origin:{who}={max(round(n / s.steps), 1)}x5us"',
        action=_action(generated, float(np.median(count))),
        stop="when a chain is one or two launches, or is under 1 % of the step",
        needs="" if told.all() else "op shapes (record_shapes=True), for the bytes",
    )  # fmt: skip


def _action(generated: bool, launches: float) -> str:
    if generated:
        how = "one kernel per chain, written by hand: these launches are what torch.compile left"
    else:
        how = (
            "one kernel per chain, written by hand, or torch.compile over that part alone, which keeps intermediate "
            "results in registers"
        )
    return how + ("; iterations of a loop belong in it" if launches > LOOP else "")
