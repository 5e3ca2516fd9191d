"""Copies that only change the dtype: let the producer write, or the consumer read, the other one."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.costs.cost import MEASURED as COUNTED
from hta_dsv4.analysis.costs.shapes import operands
from hta_dsv4.analysis.findings.finding import ATTACK, MODELLED, Evidence, Finding, claim, percent, said
from hta_dsv4.analysis.findings.subject import Subject

RULE = "casts"


def casts(s: Subject) -> list[Finding]:
    """One finding per origin and pair of dtypes."""
    kinds = {}
    copies = np.isin(s.op, ["aten::copy_"]) & (s.floors.known == COUNTED)
    texts = sorted({(str(a), str(b)) for a, b in zip(s.shapes[copies], s.dtypes[copies], strict=True)})
    for shapes, dtypes in texts:
        both = [o for o in operands(shapes, dtypes)[:2] if o is not None]
        if len(both) == 2 and both[0].dtype != both[1].dtype and all(o.size for o in both):
            kinds[shapes, dtypes] = (_short(both[1].dtype), _short(both[0].dtype))
    pair = np.array(
        [kinds.get((str(a), str(b)), ("", "")) if c else ("", "") for a, b, c in zip(
            s.shapes, s.dtypes, copies, strict=True)], dtype=object
    ).reshape(len(s.dur), 2)  # fmt: skip
    out = []
    groups = sorted({(str(o), str(a), str(b)) for o, (a, b) in zip(s.origin, pair, strict=True) if a})
    for origin, source, target in groups:
        rows = np.flatnonzero((s.origin == origin) & (pair[:, 0] == source) & (pair[:, 1] == target))
        dur, read, written = s.dur[rows], s.floors.of("read")[rows], s.floors.of("written")[rows]
        time = float(dur.sum())
        if not time:  # no duration was recorded
            continue
        # Fused into its consumer the copy writes nothing, but what it read is still read there.
        still = dur * np.nan_to_num(read / (read + written), nan=1.0)
        out.append(
            Finding(
                RULE, ATTACK,
                f"{origin}: {len(rows) / s.steps:,.0f} copies a step turn {source} into {target}, "
                f"{said(time / s.steps)} ({percent(time / s.steps, s.own_ns)} of the GPU time, "
                f"{(read + written).sum() / time:,.0f} GB/s)",
                (
                    Evidence("time", time / s.steps, "ns"),
                    Evidence("copies per step", len(rows) / s.steps, "launches"),
                    Evidence("bytes written per step", written.sum() / s.steps, "bytes"),
                    Evidence("bandwidth", (read + written).sum() / time, "GB/s"),
                ),
                **s.about(rows), **s.saved(claim(rows, dur, still, still / 2, np.zeros(len(rows)))),
                label=MODELLED, confidence=0.7,
                because="dtypes and bytes are the op's; that the consumer can read the other dtype is assumed",
                check=f'hta-dsv4 whatif TRACE --remove "role:copy_cast+origin:{origin}"',
                action=f"let what reads the {target} read {source} and widen in registers, or let the producer write "
                f"{target} at once",
                stop="when no copy between these dtypes is left, or they are under 1 % of the step",
            )
        )  # fmt: skip
    return out


def _short(dtype: str) -> str:
    """Kineto's spelling without its namespace."""
    return dtype.removeprefix("c10::")
