"""What the floors say about single kernels, in sentences an engineer can act on."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hta_dsv4.analysis.costs.cost import Cost
from hta_dsv4.analysis.counted import Counted
from hta_dsv4.analysis.devices import Ceilings
from hta_dsv4.analysis.floors import Launches, compute_ns
from hta_dsv4.trace import activities as col

# A launch that takes more than twice what both its sides need is bound by neither.
_NEAR = 0.5
_WORTH_SAYING = 0.005  # of the step's time


def product_verdicts(part: Counted, found: Launches, device: Ceilings) -> tuple[str, ...]:
    """What faster arithmetic would do for the products on ordinary cores, heaviest first.

    Args:
        part: classified activities.
        found: their floors.
        device: the GPU's ceilings.
    """
    acts = part.activities
    role = acts[col.ROLE].astype(str).to_numpy()
    wide = np.array([c.arithmetic == "fp32" and c.flops > 0 for c in found.costs])[found.code]
    rows = np.flatnonzero((role == "gemm_fp32_simt") & wide)
    origin = acts[col.ORIGIN].astype(str).to_numpy() if col.ORIGIN in acts else np.full(len(acts), "")
    out = []
    total = found.duration.sum()
    frame = pd.DataFrame({"code": found.code[rows], "origin": origin[rows]})
    groups = [
        (rows[i], origin[rows[i[0]]], found.code[rows[i[0]]])
        for i in frame.groupby(["code", "origin"]).indices.values()
    ]
    for at, who, code in sorted(groups, key=lambda g: -found.duration[g[0]].sum()):
        if found.duration[at].sum() < _WORTH_SAYING * total:
            break
        out.append(
            product_verdict(found.costs[int(code)], float(np.median(found.duration[at])), device, str(who))
        )
    return tuple(out)


def product_verdict(cost: Cost, time_ns: float, device: Ceilings, origin: str = "") -> str:
    """Would tensor cores help this FP32 product? By which side bounds it.

    Args:
        cost: of one launch.
        time_ns: what it took.
        device: the GPU's ceilings.
        origin: what asked for it.
    """
    memory = device.memory_ns(cost.read, cost.written)
    compute = compute_ns(device, cost.flops, cost.arithmetic)
    tensor = compute_ns(device, cost.flops, "bf16")
    who = f" of {origin}" if origin and origin != "unknown" else ""
    head = (
        f"FP32 product{who}: {cost.moved / 1e9:.2f} GB and {cost.flops / 1e9:,.1f} GFLOP in {time_ns / 1e3:,.1f} us = "
        f"{cost.moved / time_ns / 1e3:.2f} TB/s, {cost.flops / time_ns / 1e3:.1f} TFLOP/s"
    )
    sides = f"bytes alone {memory / 1e3:,.1f} us, FP32 operations alone {compute / 1e3:,.1f} us"
    if max(memory, compute) < _NEAR * time_ns:
        return f"{head}: far from both ceilings ({sides}); neither bytes nor arithmetic bound it, look at its grid"
    if memory >= compute:
        return (
            f"{head}: DRAM-bound ({100 * memory / time_ns:.0f} % of the bandwidth; {sides}); bf16 tensor cores are not "
            f"the answer, as the bytes stay; move fewer of them, or none"
        )
    return (
        f"{head}: bound by FP32 arithmetic ({100 * compute / time_ns:.0f} % of the rate; {sides}); on bf16 tensor "
        f"cores ({tensor / 1e3:,.1f} us) the same bytes would bound it at {memory / 1e3:,.1f} us, and below that only "
        f"fewer bytes help"
    )
