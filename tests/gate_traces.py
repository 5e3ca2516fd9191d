"""Traces of a small decode step whose kernels take what a test says, with a manifest, for the tests of the gate."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from hta_dsv4.trace.toml_text import to_toml
from tests.builders import KinetoTrace

ATTENTION, GEMM, ODD = (
    "_sparse_mla_simt_kernel",
    "cutlass_80_simt_sgemm_64x128_8x5_tn_align1",
    "zzqx_unheard_of",
)
MANIFEST: dict[str, object] = {
    "variant": "made", "concurrency": 32, "max_context": 1048576, "context": 4096, "launch": "eager", "config": "flash",
    "switches": {"attention": "simt"}, "device": {"clock_sm_mhz": 1980, "driver": "580.1"},
}  # fmt: skip


def made(
    path: Path,
    *,
    attention: float = 100.0,
    copies: int = 2,
    gemm: float = 50.0,
    odd: float = 1.0,
    steps: int = 12,
    noise: float = 0.5,
    seed: int = 0,
    gpu: str = "NVIDIA H200",
    rank: int | None = 0,
    world_size: int = 1,
    manifest: Mapping[str, object] | None = MANIFEST,
) -> Path:
    """Write a trace of ``steps`` steps: ``copies`` attention kernels, one GEMM and one kernel no rule knows, in us.

    ``noise`` is the standard deviation of each kernel's time, us; a ``manifest`` is written beside it.
    """
    random_ = random.Random(seed)
    trace = KinetoTrace(rank=rank, world_size=world_size, device=gpu)

    def us(mean: float) -> float:
        return round(max(mean + random_.gauss(0, noise), 0.001), 3)

    for i in range(steps):
        at = 1000.0 * i
        trace.step(i, at, 900)
        for j in range(copies):
            trace.eager(ATTENTION, us(attention), at=at + 10 + 150 * j)
        trace.eager(GEMM, us(gemm), at=at + 600)
        trace.eager(ODD, us(odd), at=at + 700)
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.write(path)
    if manifest is not None:
        name = path.name.split(".")[0]
        body = {"trace": path.name, **manifest}
        path.with_name(f"{name}.manifest.toml").write_text(to_toml(body))
    return path


def budgets(path: Path, text: str) -> Path:
    """Write a file of budgets."""
    path.write_text(text)
    return path
