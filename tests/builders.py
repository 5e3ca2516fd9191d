"""Builds tiny Kineto traces, event by event, so that a test states its input in a few lines.

Times are microseconds, as Kineto writes them: numbers, or text where the spelling matters. Example::

    t = KinetoTrace(rank=1)
    t.eager("gemm_a", 10, at=100, op="aten::mm")      # op + launch + kernel, linked
    t.replay(["gemm_a", "attn_c"], at=300, dur=5)     # one cudaGraphLaunch and its kernels
    path = t.write(tmp_path / "x.json.gz")
"""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

CPU_PID = 4242
Number = int | float | str


class KinetoTrace:
    """A trace under construction; every method that adds an event returns it, so it can be changed."""

    def __init__(
        self, rank: int | None = 0, world_size: int = 1, device: str = "NVIDIA H200", **top: Any
    ) -> None:
        self.top: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": device, "numSms": 132}],
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        }
        if rank is not None:
            self.top["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
        self.top.update(top)
        self.events: list[dict[str, Any]] = []
        self._ids = 0

    # -- single events ----------------------------------------------------------------------------------

    def add(
        self, cat: str, name: str, ts: Number, dur: Number | None, pid: Any, tid: Any, **args: Any
    ) -> dict[str, Any]:
        """Any complete event; ``args`` that are ``None`` are left out."""
        event: dict[str, Any] = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts}
        if dur is not None:
            event["dur"] = dur
        event["args"] = {k: v for k, v in args.items() if v is not None}
        self.events.append(event)
        return event

    def kernel(
        self, name: str, ts: Number, dur: Number | None, *, stream: Any = 7, device: Any = 0,
        correlation: Any = None, external_id: Any = None, grid: Any = (132, 1, 1), block: Any = (128, 1, 1),
        cat: str = "kernel", pid: Any = None, **args: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A kernel."""
        if cat == "kernel":
            args = {"grid": list(grid), "block": list(block), **args}
        return self.add(
            cat, name, ts, dur, device if pid is None else pid, stream,
            **{"External id": external_id, "device": device, "stream": stream, "correlation": correlation, **args},
        )  # fmt: skip

    def memcpy(self, ts: Number, dur: Number, nbytes: int = 4096, **kw: Any) -> dict[str, Any]:
        """A copy to the host."""
        return self.kernel("Memcpy DtoH (Device -> Pinned)", ts, dur, cat="gpu_memcpy", bytes=nbytes, **kw)

    def memset(self, ts: Number, dur: Number, nbytes: int = 4, **kw: Any) -> dict[str, Any]:
        """A memset."""
        return self.kernel("Memset (Device)", ts, dur, cat="gpu_memset", bytes=nbytes, **kw)

    def op(
        self, name: str, ts: Number, dur: Number, *, external_id: Any = None, shapes: Any = None, dtypes: Any = None,
        tid: Any = CPU_PID, pid: Any = CPU_PID, **args: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """A CPU op."""
        more = {"External id": external_id, "Input Dims": shapes, "Input type": dtypes, **args}
        return self.add("cpu_op", name, ts, dur, pid, tid, **more)

    def launch(
        self, ts: Number, dur: Number = 4, *, correlation: Any, name: str = "cudaLaunchKernel",
        cat: str = "cuda_runtime", tid: Any = CPU_PID, pid: Any = CPU_PID, external_id: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        """A launch."""
        return self.add(
            cat, name, ts, dur, pid, tid, **{"External id": external_id, "correlation": correlation}
        )

    def annotation(
        self, name: str, ts: Number, dur: Number, *, tid: Any = CPU_PID, pid: Any = CPU_PID, gpu: bool = False
    ) -> dict[str, Any]:
        """A user annotation, on the CPU or on the GPU's timeline."""
        if gpu:
            return self.add("gpu_user_annotation", name, ts, dur, 0, 7)
        return self.add("user_annotation", name, ts, dur, pid, tid)

    def step(self, number: int, ts: Number, dur: Number) -> dict[str, Any]:
        """A ``ProfilerStep#N``."""
        return self.annotation(f"ProfilerStep#{number}", ts, dur)

    # -- several at once --------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A correlation and External id not used before by this builder."""
        self._ids += 1
        return self._ids

    def eager(
        self,
        kernel: str,
        dur: Number,
        *,
        at: float,
        op: str | None = "aten::mm",
        delay: float = 20,
        **kw: Any,
    ) -> int:
        """An op that launches one kernel ``delay`` us later; returns their id."""
        n = self.next_id()
        if op is not None:
            self.op(op, at, 10, external_id=n, shapes=[[32, 64], [64, 128]], dtypes=["float", "float"])
        self.launch(at + 2, correlation=n, external_id=n if op else None)
        self.kernel(kernel, at + delay, dur, correlation=n, external_id=n if op else None, **kw)
        return n

    def replay(
        self, kernels: Sequence[str], *, at: float, dur: float = 5, gap: float = 1, graph: int = 5
    ) -> int:
        """One ``cudaGraphLaunch`` and its kernels, one after another; returns the correlation they share."""
        n = self.next_id()
        self.launch(at, 20, correlation=n, name="cudaGraphLaunch")
        for i, name in enumerate(kernels):
            where = {"graph id": graph, "graph node id": 11 + i}
            self.kernel(name, at + 30 + i * (dur + gap), dur, correlation=n, **where)
        return n

    # -- out --------------------------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        """The trace as an object."""
        return {**self.top, "traceEvents": self.events, "traceName": "/tmp/x.json"}

    def text(self, **dump: Any) -> str:
        """The trace as JSON; keywords go to :func:`json.dumps`."""
        return json.dumps(self.body(), **dump)

    def write(self, path: Path, **dump: Any) -> Path:
        """Write it, packed as the name says (.gz, .zst, .zip); returns the path."""
        path.write_bytes(pack(self.text(**dump).encode(), path.suffix))
        return path


def pack(data: bytes, suffix: str) -> bytes:
    """Bytes in the container that a suffix stands for."""
    if suffix == ".gz":
        return gzip.compress(data, 1, mtime=0)
    if suffix in (".zst", ".zstd"):
        return zstandard.ZstdCompressor().compress(data)
    if suffix == ".zip":
        import io

        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("x.pt.trace.json", data)
        return out.getvalue()
    return data


def baseline() -> KinetoTrace:
    """Four kernels (75 us) and one copy (8 us), all launched eagerly from ops inside one step."""
    t = KinetoTrace()
    t.step(3, 90, 130)
    for at, name, dur in ((100, "gemm_a", 10), (120, "gemm_a", 20), (145, "norm_b", 5), (160, "attn_c", 40)):
        t.eager(name, dur, at=at)
    n = t.next_id()
    t.op("aten::copy_", 180, 10, external_id=n)
    t.launch(182, correlation=n, name="cudaMemcpyAsync", external_id=n)
    t.memcpy(300, 8, correlation=n, external_id=n)
    return t
