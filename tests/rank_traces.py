"""Builds the traces of several ranks of one decode, with clocks, waits and late ranks as a test plants them.

A small simulation in true time: every rank runs its kernels back to back, a collective ends on all ranks of its group
together, one transfer after the last of them came, and each rank's trace has these times on its own clock. Example::

    ranks = RankSim(2, layers=4, steps=3)
    ranks.straggle(rank=1, layer=2, half="attention", us=40)
    folder = ranks.write(tmp_path / "tp2")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.builders import KinetoTrace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HALVES = ("attention", "moe")
WORK = {
    "attention": (("void cutlass::device_kernel<flash_decode>()", 30.0), ("void gemm_wo_b()", 12.0)),
    "moe": (("void fused_moe_fp4_kernel()", 45.0),),
}


@dataclass
class Clock:
    """A rank's clock: what it shows at true time t is ``t + offset_ns + drift_ppm * t``."""

    offset_ns: int = 0
    drift_ppm: float = 0.0

    def shows(self, true_ns: int) -> int:
        """The clock's reading, ns."""
        return true_ns + self.offset_ns + round(true_ns * self.drift_ppm * 1e-6)


@dataclass
class RankSim:
    """Ranks of a tensor-parallel decode: one all-reduce for the embedding and two per layer.

    Attributes:
        ranks: how many.
        layers, steps: of the model, of the capture.
        transfer_us: how long a collective takes from the last arrival.
        noise_us: how much kernels vary between ranks and steps (uniform, up to this).
        skew_us: by how much the ends of one collective differ between ranks (uniform, up to this).
        groups: rank -> process group's name and members; all ranks in one group by default.
        args: whether kernels carry Kineto's collective arguments; with ``seq`` the sequence number too.
        scopes: whether launches lie in annotations that name layers.
        graph: whether each step is one CUDA graph launch instead of a launch per kernel.
        clocks: one per rank.
        arguments: (rank, number of the collective) -> arguments of its kernel over the usual ones.
        device: the GPU's name.
        hosts: rank -> its host's name.
    """

    ranks: int
    layers: int = 4
    steps: int = 3
    transfer_us: float = 8.0
    noise_us: float = 0.0
    skew_us: float = 0.0
    groups: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    args: bool = True
    seq: bool = False
    scopes: bool = True
    graph: bool = False
    kernel: str = ALL_REDUCE
    clocks: dict[int, Clock] = field(default_factory=dict)
    seed: int = 0
    first_layer: int = 0
    arguments: Callable[[int, int], dict[str, Any]] = lambda rank, number: {}
    device: str = "NVIDIA H200"
    hosts: dict[int, str] = field(default_factory=dict)
    _replay: dict[int, int] = field(default_factory=dict)
    _more: list[tuple[int, int, str, str, float, Callable[[int], bool]]] = field(default_factory=list)
    _pause: list[tuple[int, int, str, float, Callable[[int], bool]]] = field(default_factory=list)

    def straggle(
        self, rank: int, layer: int, half: str, us: float, kernel: str = "void extra_work_kernel()",
        when: Callable[[int], bool] = lambda step: True,
    ) -> None:  # fmt: skip
        """Give one rank more GPU work before the all-reduce of a half of a layer, in the steps that ``when`` wants."""
        self._more.append((rank, layer, half, kernel, us, when))

    def stall(
        self, rank: int, layer: int, half: str, us: float, when: Callable[[int], bool] = lambda step: True
    ) -> None:
        """Leave one rank's GPU idle there, as a host that launches late does."""
        self._pause.append((rank, layer, half, us, when))

    def traces(self) -> list[KinetoTrace]:
        """The traces, one per rank."""
        random = Random(self.seed)
        traces = [
            KinetoTrace(
                rank=r,
                world_size=self.ranks,
                device=self.device,
                baseTimeNanoseconds=1_790_000_000_000_000_000,
                **({"host_name": self.hosts[r]} if r in self.hosts else {}),
            )
            for r in range(self.ranks)
        ]
        now = [1_000_000] * self.ranks  # true ns
        number = 0
        for step in range(self.steps):
            begin = list(now)
            self._replay = {r: self._graph_launch(t, r, begin[r]) for r, t in enumerate(traces) if self.graph}
            for layer in range(-1, self.layers):
                for half in HALVES if layer >= 0 else ("embedding",):
                    scope = f"layer.{layer + self.first_layer}/{half}" if layer >= 0 else "embedding"
                    for r, trace in enumerate(traces):
                        for name, us in self._work(r, step, layer, half, random):
                            if name:
                                self._kernel(trace, r, name, now[r], round(us * 1000), scope)
                            now[r] += round(us * 1000)
                    self._collective(traces, now, number, scope, random)
                    number += 1
            for r, trace in enumerate(traces):
                self._kernel(trace, r, "void sampling_argmax_kernel()", now[r], 5000, "sampling")
                now[r] += 5000
                clock = self.clocks.get(r, Clock())
                # launched while the step's marker is open: markers lie 1 ms before their kernels
                a, b = clock.shows(begin[r] - 1_000_000), clock.shows(now[r] - 1_000_000)
                trace.step(step + 1, _us(a), _us(b - a))
                now[r] += 20_000
        return traces

    def write(self, folder: Path, only: Sequence[int] | None = None) -> Path:
        """Write the ranks (or some of them) into a folder as a server names them; returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        for r, trace in enumerate(self.traces()):
            if only is None or r in only:
                trace.write(folder / f"run-TP-{r}.trace.json.gz")
        return folder

    def merged(self, path: Path) -> Path:
        """Write all ranks into one file with labelled pids, as SGLang merges them; returns it."""
        traces = self.traces()
        body = traces[0].body()
        body.pop("distributedInfo")
        body["traceEvents"] = [
            {**e, "pid": f"[TP{r:02d}] {e['pid']}"} for r, t in enumerate(traces) for e in t.events
        ]
        path.write_text(json.dumps(body))
        return path

    def _work(self, rank: int, step: int, layer: int, half: str, random: Random) -> list[tuple[str, float]]:
        work = [
            (name, us + random.uniform(0, self.noise_us))
            for name, us in WORK.get(half, (("void embedding_kernel()", 3.0),))
        ]
        at = (rank, layer + self.first_layer if layer >= 0 else layer, half)
        work += [(k, us) for r, i, h, k, us, when in self._more if (r, i, h) == at and when(step)]
        work += [("", us) for r, i, h, us, when in self._pause if (r, i, h) == at and when(step)]
        return work

    def _collective(
        self, traces: list[KinetoTrace], now: list[int], number: int, scope: str, random: Random
    ) -> None:
        everyone = ("0", tuple(range(self.ranks)))
        for name, members in sorted({self.groups.get(r, everyone) for r in range(self.ranks)}):
            done = max(now[r] for r in members) + round(self.transfer_us * 1000)
            for r in members:
                end = done + round(random.uniform(0, self.skew_us) * 1000)
                said: dict[str, Any] = {}
                if self.args:
                    said = {
                        "Collective name": "allreduce", "In msg nelems": 131072, "Out msg nelems": 131072,
                        "Group size": len(members), "dtype": "BFloat16", "Process Group Name": name,
                        "Process Group Ranks": str(list(members)),
                    }  # fmt: skip
                    if self.seq:
                        said["Seq"] = number
                    said |= self.arguments(r, number)
                self._kernel(traces[r], r, self.kernel, now[r], end - now[r], scope, **said)
                now[r] = end

    def _kernel(
        self, trace: KinetoTrace, rank: int, name: str, true_ns: int, dur_ns: int, scope: str, **said: Any
    ) -> None:
        clock = self.clocks.get(rank, Clock())
        start, end = clock.shows(true_ns), clock.shows(true_ns + dur_ns)
        if self.graph:
            trace.kernel(name, _us(start), _us(end - start), correlation=self._replay[rank], **said)
            return
        n = trace.next_id()
        launched = start - 1_000_000
        if self.scopes:
            trace.annotation(scope, _us(launched - 100), _us(500))
        trace.launch(_us(launched), _us(200), correlation=n, external_id=n)
        trace.kernel(name, _us(start), _us(end - start), correlation=n, external_id=n, **said)

    def _graph_launch(self, trace: KinetoTrace, rank: int, true_ns: int) -> int:
        n = trace.next_id()
        at = self.clocks.get(rank, Clock()).shows(true_ns) - 1_000_000
        trace.launch(_us(at + 100), _us(500), correlation=n, name="cudaGraphLaunch")
        return n


def _us(ns: int) -> float:
    return ns / 1000
