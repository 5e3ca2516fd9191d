"""FP32 products on ordinary cores: would a narrower dtype help? By which side bounds them, and for which bytes."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.findings.finding import (
    ATTACK,
    ATTAINABLE,
    LEAVE,
    MODELLED,
    Evidence,
    Finding,
    claim,
    percent,
    said,
)
from hta_dsv4.analysis.findings.subject import Subject
from hta_dsv4.analysis.floors import compute_ns

RULE = "fp32_products"
_NEAR = 0.5  # a product that takes more than twice what both its sides need is bound by neither
_WORTH = 0.01  # of the GPU time


def fp32_products(s: Subject) -> list[Finding]:
    """One finding per origin: to attack where arithmetic bounds them, to leave where bytes do."""
    if s.device is None:
        return []
    wide = np.array([c.arithmetic == "fp32" and c.flops > 0 for c in s.floors.costs], dtype=bool)[
        s.floors.code
    ]
    mine = wide & (s.role == "gemm_fp32_simt")
    tensor = np.array([compute_ns(s.device, c.flops, "bf16") for c in s.floors.costs])[s.floors.code]
    out = []
    for origin in sorted(set(s.origin[mine])):
        rows = np.flatnonzero(mine & (s.origin == origin))
        dur, memory, compute = s.dur[rows], s.floors.memory[rows], s.floors.compute[rows]
        time = float(dur.sum())
        if time / s.steps < _WORTH * s.own_ns or max(memory.sum(), compute.sum()) < _NEAR * time:
            continue
        moved, flops = s.floors.of("moved")[rows].sum(), s.floors.of("flops")[rows].sum()
        evidence = (
            Evidence("time", time / s.steps, "ns"),
            Evidence("bytes per step", moved / s.steps, "bytes"),
            Evidence("achieved bandwidth", moved / time, "GB/s"),
            Evidence("achieved rate", flops / time / 1e3, "TFLOP/s"),
            Evidence("bytes alone", memory.sum() / s.steps, "ns", MODELLED),
            Evidence("FP32 operations alone", compute.sum() / s.steps, "ns", MODELLED),
            Evidence("the operations on bf16 tensor cores", tensor[rows].sum() / s.steps, "ns", MODELLED),
        )
        head = f"FP32 product of {origin}, {said(time / s.steps)} ({percent(time / s.steps, s.own_ns)} of the GPU time)"
        if memory.sum() >= compute.sum():
            out.append(
                Finding(
                    RULE, LEAVE,
                    f"{head}: bound by bytes at {moved / time / 1e3:.2f} TB/s ({percent(float(memory.sum()), time)} of "
                    "the bandwidth): bf16 tensor cores are not the answer, they move the same bytes",
                    evidence, **s.about(rows), label=MODELLED, confidence=0.9,
                    because="bytes and operations are counted from the op's shapes",
                    check="hta-dsv4 roofline TRACE --by kernel",
                    action="move fewer bytes: narrower storage of the operands, or fewer of them: see what asks for it",
                    stop="no arithmetic is worth trying before the bytes are fewer",
                )
            )  # fmt: skip
            continue
        bytes_bind = np.maximum(memory, tensor[rows])
        narrower = np.maximum(np.maximum(memory / 2, tensor[rows]), s.floors.launch_ns)
        out.append(
            Finding(
                RULE, ATTACK,
                f"{head}: bound by FP32 arithmetic at {flops / time / 1e3:.1f} TFLOP/s "
                f"({percent(float(compute.sum()), time)} of the rate); on tensor cores its bytes bind at "
                f"{said(float(bytes_bind.sum()) / s.steps)}",
                evidence, **s.about(rows),
                **s.saved(
                    claim(rows, dur, bytes_bind / ATTAINABLE[0], bytes_bind / ATTAINABLE[1], narrower)
                ),
                label=MODELLED, confidence=0.7,
                because="bytes and operations are counted from the op's shapes; 1/2 to 3/4 of the bandwidth is "
                "assumed, at most also half the bytes",
                check=f'hta-dsv4 whatif TRACE --set "role:gemm_fp32_simt+origin:{origin}=floor"; and first whether all '
                "that it multiplies is needed",
                action="bf16 or fp8 operands on tensor cores, FP32 accumulation, if the accuracy allows it",
                stop="when the bytes bind; below that only fewer bytes help",
            )
        )  # fmt: skip
    return out
