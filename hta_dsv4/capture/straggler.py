"""A straggler planted on purpose: one rank made late in one layer, by a known time, to check who finds it.

Before the all-reduce that ends the attention of its layer, the chosen rank keeps its GPU busy for so many
microseconds: one kernel that watches the GPU's own nanosecond clock, so that it can be captured into a CUDA graph
and does not depend on the core clock. On the CPU the process itself is busy.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl

from hta_dsv4.capture.config import ModelConfig
from hta_dsv4.capture.parallel import Ranks
from hta_dsv4.errors import HtaDsv4Error

SCOPE = "planted_delay"
_KERNEL = "_planted_delay_kernel"
_LONGEST_US = 1_000_000.0  # a second a step; far longer and the other ranks take this one for dead


@triton.jit
def _nanoseconds() -> tl.tensor:
    """The GPU's global clock. Not pure: it must be read again on every turn."""
    return tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit(do_not_specialize=["ns"])
def _planted_delay_kernel(ns: tl.tensor) -> None:
    """One program that ends ``ns`` nanoseconds after it began."""
    now = _nanoseconds()
    end = now + ns
    while now < end:
        now = _nanoseconds()


@dataclass(frozen=True, slots=True)
class Straggler:
    """Extra work of one rank.

    Attributes:
        rank: which one.
        layer: before the all-reduce after the attention of this layer, in every step.
        microseconds: how long.
    """

    rank: int
    layer: int
    microseconds: float

    @classmethod
    def parse(cls, text: str) -> Straggler:
        """Read ``RANK:LAYER:MICROSECONDS``.

        Raises:
            HtaDsv4Error: written otherwise, or no time that can be spent.
        """
        try:
            rank, layer, microseconds = text.split(":")
            found = cls(int(rank), int(layer), float(microseconds))
        except ValueError:
            raise HtaDsv4Error(
                f"--straggler {text}: write it as RANK:LAYER:MICROSECONDS, e.g. 1:20:500"
            ) from None
        if not math.isfinite(found.microseconds) or not 0 < found.microseconds <= _LONGEST_US:
            raise HtaDsv4Error(
                f"--straggler {text}: the time must be above 0 and at most {_LONGEST_US:.0f} us"
            )
        return found

    def check(self, config: ModelConfig, ranks: Ranks) -> None:
        """Check that the rank and the layer exist.

        Raises:
            HtaDsv4Error: one of them does not, or there is a single process, which nobody waits for.
        """
        text = f"--straggler {self.rank}:{self.layer}:{self.microseconds:g}"
        if ranks.alone:
            raise HtaDsv4Error(
                f"{text}: nobody waits for a single process; start several with torchrun --nproc-per-node"
            )
        if not 0 <= self.rank < ranks.world_size:
            raise HtaDsv4Error(f"{text}: no such rank; they are 0 to {ranks.world_size - 1}")
        if not 0 <= self.layer < len(config.layers):
            raise HtaDsv4Error(
                f"{text}: {config.name} has no such layer; they are 0 to {len(config.layers) - 1}"
            )


def spend(microseconds: float, device: torch.device) -> None:
    """Keep a GPU busy, or on the CPU this process.

    Args:
        microseconds: how long.
        device: where.
    """
    if device.type == "cuda":
        _planted_delay_kernel[(1,)](round(microseconds * 1000), num_warps=1)
        return
    end = time.perf_counter() + microseconds * 1e-6
    while time.perf_counter() < end:
        pass


def measured_us(trace: Path) -> list[float]:
    """How long the planted work took, once per recorded step, from the trace: its kernels, on a CPU its ranges.

    Args:
        trace: a capture's file.

    Returns:
        Microseconds, in file order; empty where nothing was planted.
    """
    data = trace.read_bytes()
    if trace.suffix == ".gz":
        data = gzip.decompress(data)
    ranges: list[float] = []
    kernels: list[float] = []
    for event in json.loads(data)["traceEvents"]:
        name = str(event.get("name", ""))
        if event.get("cat") == "kernel" and name == _KERNEL:
            kernels.append(float(event["dur"]))
        elif event.get("cat") == "user_annotation" and name.endswith(f"/{SCOPE}"):
            ranges.append(float(event["dur"]))
    return kernels or ranges
