"""Runs of hand-made kernels on a GPU with known limits, for the tests of fill, coverage and idle time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Device, TraceMeta
from tests.frames import kernel, make_trace

H200: dict[str, Any] = {
    "numSms": 132, "computeMajor": 9, "computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32,
    "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472,
}  # fmt: skip


def sized(
    name: str, start: int, dur: int, ctas: int, launch: int | None = None, **more: object
) -> dict[str, object]:
    """A kernel of ``ctas`` CTAs of 128 threads, 32 registers and no shared memory: 16 CTAs per SM of an H200."""
    size = {
        col.GRID_X: ctas, col.GRID_Y: 1, col.GRID_Z: 1, col.BLOCK_X: 128, col.BLOCK_Y: 1, col.BLOCK_Z: 1,
        col.REGISTERS: 32, col.SHARED_MEM: 0,
    }  # fmt: skip
    return kernel(name, start, dur, launch, **{**size, **more})


def copy(start: int, dur: int, **more: object) -> dict[str, object]:
    """A copy."""
    return kernel("Memcpy DtoH (Device -> Pinned)", start, dur, **{col.KIND: col.MEMCPY, **more})


def run_of(
    activities: Sequence[dict[str, object]],
    events: Sequence[dict[str, object]] = (),
    properties: Mapping[str, Any] | None = H200,
    name: str = "NVIDIA H200",
    devices: Sequence[int] = (0,),
) -> Run:
    """A run of these activities on devices of these properties; ``None`` for a trace without deviceProperties."""
    known = () if properties is None else tuple(Device(d, name, properties) for d in devices)
    return Run("made", (make_trace(activities, events, TraceMeta(devices=known)),), default_rules())
