"""Sweeps over concurrency for tests: built ones, and where the recorded ones are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hta_dsv4.analysis.sweep import Repeat, Request, Sweep

DATA = Path(__file__).parent / "data" / "sweeps"
CAMPAIGN = DATA / "campaign.csv"
H200 = {v: DATA / f"h200_{v}.json" for v in ("original", "mma", "split_k", "cuda_graph")}


def measured(c: int, number: int, step_ms: float, *, ttft_ms: float = 50.0, **changes: object) -> Repeat:
    """A whole repeat of a server: C requests of 100 tokens."""
    step = round(step_ms * 1e6)
    requests = tuple(Request(100, round(ttft_ms * 1e6) + i, step + i) for i in range(c))
    return replace(Repeat(c, number, 99 * step, c * 1e3 / step_ms, requests), **changes)  # type: ignore[arg-type]


def swept(*repeats: Repeat, label: str = "mine", **changes: object) -> Sweep:
    return replace(Sweep(label, "server", repeats), **changes)  # type: ignore[arg-type]


LINE = [measured(c, r, 30 + 10 * c + (r - 2) * 0.1) for r in (1, 2, 3) for c in (1, 4, 16)]
