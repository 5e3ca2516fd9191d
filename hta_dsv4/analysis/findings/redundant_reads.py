"""Attention that reads each token once per head: bytes asked for against unique bytes, padding against products."""

from __future__ import annotations

import numpy as np

from hta_dsv4.analysis.findings.finding import ATTACK, MODELLED, Evidence, Finding, claim, percent, rate, said
from hta_dsv4.analysis.findings.subject import Subject

RULE = "redundant_reads"
MANY = 4.0
"""Bytes asked for over unique bytes from which programs are said to repeat their reads."""


def redundant_reads(s: Subject) -> list[Finding]:
    """One finding per origin whose programs ask for a multiple of the bytes they need."""
    requested, moved = s.floors.of("requested"), s.floors.of("moved")
    issued, flops = s.floors.of("issued"), s.floors.of("flops")
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = np.where(moved > 0, requested / moved, np.nan)
    many = np.nan_to_num(repeats) >= MANY
    out = []
    for origin in sorted(set(s.origin[many])):
        rows = np.flatnonzero(many & (s.origin == origin))
        dur, time = s.dur[rows], float(s.dur[rows].sum())
        ratio = requested[rows].sum() / moved[rows].sum()
        evidence = [
            Evidence("unique bytes per step", moved[rows].sum() / s.steps, "bytes", MODELLED),
            Evidence(
                "bytes its programs ask for per step", requested[rows].sum() / s.steps, "bytes", MODELLED
            ),
            Evidence("repeats", ratio, "x", MODELLED),
            Evidence("achieved, of unique bytes", moved[rows].sum() / time, "GB/s", MODELLED),
            Evidence("asked for (caches serve the repeats)", requested[rows].sum() / time, "GB/s", MODELLED),
        ]
        if np.isfinite(issued[rows]).all() and flops[rows].sum():
            evidence += [
                Evidence(
                    "operations carried out over needed",
                    issued[rows].sum() / flops[rows].sum(),
                    "x",
                    MODELLED,
                ),
                Evidence(
                    "rate of operations carried out", issued[rows].sum() / time / 1e3, "TFLOP/s", MODELLED
                ),
            ]
        likely = dur / repeats[rows] + s.small_ns
        rates = s.device.rates if s.device is not None else {}
        slower = rates["fp32"] / rates["bf16"] if {"fp32", "bf16"} <= set(rates) else 0.0
        best = np.nan_to_num(s.floors.floor[rows], nan=s.floors.launch_ns)
        about = s.about(rows)
        out.append(
            Finding(
                RULE, ATTACK,
                f"{origin}: {about['kernels'][0]} reads its tokens {rate(ratio)} times over: "
                f"{rate(moved[rows].sum() / time)} GB/s of unique bytes, {rate(requested[rows].sum() / time)} GB/s "
                f"asked for; {said(time / s.steps)}, {percent(time / s.steps, s.own_ns)} of the GPU time",
                (Evidence("time", time / s.steps, "ns"), *evidence), **about,
                **s.saved(claim(rows, dur, np.maximum(2 * likely, dur * slower), likely, best)),
                label=MODELLED, confidence=0.85,
                because="one program per head is read off the grid; bytes and operations are the architecture's",
                check="hta-dsv4 roofline TRACE --by kernel (repeats), or a profiler's L2 bytes against its DRAM bytes",
                action="let the heads of a request share one read: a group of heads per program, products on tensor "
                "cores (the rows of a tile are the heads), then split the token list where that leaves too few CTAs",
                stop="when repeats are near 1, or the kernel is within 2 x of what a tensor-core form of it takes",
            )
        )  # fmt: skip
    return out
