"""How fast are the links between this host's GPUs, and what does a collective take on them (torch and Triton)?

``torchrun --nproc-per-node 2 -m benchmarks.links`` prints a table and a ``[device.link.measured]`` block as TOML, to be
put into ``hta_dsv4/analysis/devices.toml``. Every result is checked against float64 on random data first.

* Copies of 1 GiB between the first two GPUs, one way and both ways: by the copy engines, and by a kernel that writes
  to, or reads from, the other GPU's memory.
* NCCL's all-reduce, all-gather and reduce-scatter (bf16), 4 KiB to 256 MiB. A size is what NCCL's own tests call so:
  all bytes of an all-reduce, those of all ranks together of an all-gather or a reduce-scatter.
* An all-reduce in one shot: each rank reads everyone's part and adds (torch's symmetric memory, no multicast).

A time is a kernel's duration as a profiler shows it, in a CUDA graph of many calls on different buffers: of each call
the shortest over the ranks, as the last to come waits for nobody; of those the median. Replays are not timed from
outside: the host hands over a graph of nothing but NCCL's kernels one by one, and 10 us lie between two of them. In a
decode step, with other kernels around them, 2 us do.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.autograd.profiler import DeviceType
from torch.profiler import ProfilerActivity, profile

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = tuple(4 * KIB << i for i in range(17))
POOL = GIB  # bytes of buffers that the calls of one graph go through, 4 to 100 of them
REPLAYS = 3  # looked at, after as many that are not
ONE_SHOT_UP_TO = 4 * MIB  # every rank reads everything: for longer messages it is not meant
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ONE_SHOT = "all_reduce", "all_gather", "reduce_scatter", "one_shot"
NCCL = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)


@dataclass
class Figure:
    """One kind of collective at one size; ns."""

    kind: str
    size: int
    ns: float
    kernel: str

    @property
    def bus(self) -> float:
        """Bytes that leave each GPU over the time of the kernel, 10^9 per second (NCCL's bus bandwidth)."""
        return self.size * bus_factor(self.kind, dist.get_world_size()) / self.ns


def bus_factor(kind: str, ranks: int) -> float:
    """What part of the size leaves, and reaches, each GPU."""
    return (2 if kind in (ALL_REDUCE, ONE_SHOT) else 1) * (ranks - 1) / ranks


@triton.jit
def _copy_kernel(source, target, n, BLOCK: tl.constexpr):
    """Copy ``n`` floats; every program walks the whole grid's stride."""
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        here = at + tl.arange(0, BLOCK)
        tl.store(target + here, tl.load(source + here))


def gb_s(work: Callable[[], Any], nbytes: int) -> float:
    """Bandwidth of work that copies ``nbytes``; median of five rounds of four, on the host's clock."""

    def seconds() -> float:
        for d in (0, 1):
            torch.cuda.synchronize(d)
        begin = time.perf_counter()
        for _ in range(4):
            work()
        for d in (0, 1):
            torch.cuda.synchronize(d)
        return (time.perf_counter() - begin) / 4

    seconds()
    return nbytes / statistics.median(seconds() for _ in range(5)) / 1e9


def copies() -> dict[str, float]:
    """Between the first two GPUs, by one process, 10^9 bytes/s: one way, and the sum of both ways."""
    n = GIB // 4
    near, far = torch.randn(n, device="cuda:0"), torch.empty(n, device="cuda:1")
    back, home = torch.randn(n, device="cuda:1"), torch.empty(n, device="cuda:0")
    streams = [[torch.cuda.Stream(d) for d in (0, 1)] for _ in range(2)]

    def on(pair: int, target: torch.Tensor, source: torch.Tensor) -> None:
        # A copy orders the current streams of both GPUs, so the two ways need a pair of streams each.
        with ExitStack() as stack:
            for stream in streams[pair]:
                stack.enter_context(torch.cuda.stream(stream))
            target.copy_(source, non_blocking=True)

    def both() -> None:
        on(0, far, near)
        on(1, home, back)

    found = {"copy_gb_s": gb_s(lambda: on(0, far, near), GIB), "copy_both_gb_s": gb_s(both, 2 * GIB)}
    assert torch.equal(far.cpu(), near.cpu())
    assert torch.equal(home.cpu(), back.cpu())
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    torch.cuda.set_device(0)
    grid = (8 * sms,)
    for name, source, target in (("kernel_write_gb_s", near, far), ("kernel_read_gb_s", back, home)):
        target.fill_(float("nan"))
        torch.cuda.synchronize(1)

        def once(source: torch.Tensor = source, target: torch.Tensor = target) -> None:
            _copy_kernel[grid](source, target, n, BLOCK=4096, num_warps=8)

        found[name] = gb_s(once, GIB)
        assert torch.equal(target.cpu(), source.cpu())
    return found


def gather(parts: torch.Tensor, mine: torch.Tensor) -> None:
    # renamed in torch 2.13, where the old name warns
    (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(parts, mine)


def scatter(mine: torch.Tensor, parts: torch.Tensor) -> None:
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(mine, parts)


def random(rank: int, elements: int, device: str) -> torch.Tensor:
    """What a rank gives, bf16: any rank can make any other's."""
    generator = torch.Generator("cpu").manual_seed(1000 * elements + rank)
    return torch.randn(elements, generator=generator).bfloat16().to(device)


def check(kinds: tuple[str, ...], sizes: tuple[int, ...], device: str) -> None:
    """Every kind against float64 on random data, its result poisoned before; raises where one is wrong."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for size in sizes:
        elements = size // 2
        everyone = [random(r, elements, device) for r in range(ranks)]
        total = torch.stack([x.double() for x in everyone]).sum(0)
        part = elements // ranks
        for kind in kinds:
            if kind == ALL_REDUCE:
                got, wanted = everyone[rank].clone(), total
                dist.all_reduce(got)
            elif kind == ALL_GATHER:
                got = torch.full((part * ranks,), float("nan"), device=device, dtype=torch.bfloat16)
                gather(got, everyone[rank][:part].contiguous())
                wanted = torch.cat([x[:part] for x in everyone]).double()
            elif kind == REDUCE_SCATTER:
                got = torch.full((part,), float("nan"), device=device, dtype=torch.bfloat16)
                scatter(got, everyone[rank][: part * ranks].clone())
                wanted = total[rank * part : (rank + 1) * part]
            else:
                if size > ONE_SHOT_UP_TO:
                    continue
                held = symmetric(elements)
                held.copy_(everyone[rank])
                got = torch.full((elements,), float("nan"), device=device, dtype=torch.bfloat16)
                one_shot(held, got)
                wanted = total
            error = float((got.double() - wanted).norm() / wanted.norm())
            if not error < 5e-3:
                raise SystemExit(f"benchmarks.links: {kind} of {size} bytes is off by {error} on rank {rank}")


def symmetric(elements: int) -> torch.Tensor:
    """A bf16 buffer that every rank can read."""
    import torch.distributed._symmetric_memory as symm_mem

    held: torch.Tensor = symm_mem.empty(elements, dtype=torch.bfloat16, device=torch.cuda.current_device())
    symm_mem.rendezvous(held, dist.group.WORLD)
    return held


def one_shot(held: torch.Tensor, out: torch.Tensor) -> None:
    assert dist.group.WORLD is not None
    torch.ops.symm_mem.one_shot_all_reduce_out(held, "sum", dist.group.WORLD.group_name, out)


class Calls:
    """The calls that one graph holds: each on buffers of its own, out of two pools that all graphs share.

    Args:
        kind: of collective.
        size: of each, bytes.
        pools: what is given, and room for results; bf16, :data:`POOL` bytes each.
    """

    def __init__(self, kind: str, size: int, pools: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.kind, self.size, self.ranks = kind, size, dist.get_world_size()
        self.number = min(max(POOL // size, 4), 100)
        whole, part = size // 2, size // 2 // self.ranks
        given, room = ([pool[i * whole : (i + 1) * whole] for i in range(self.number)] for pool in pools)
        self.pool = pools[0]
        self.pairs = list(zip(given, room, strict=True))
        if kind == ALL_GATHER:
            self.pairs = [(x[:part], out[: part * self.ranks]) for x, out in self.pairs]
        elif kind == REDUCE_SCATTER:
            self.pairs = [(x[: part * self.ranks], out[:part]) for x, out in self.pairs]
        elif kind == ONE_SHOT:
            held = symmetric(whole)
            held.copy_(given[0])
            self.pairs = [(held, out) for _, out in self.pairs]

    def make(self) -> None:
        """All of them."""
        for x, out in self.pairs:
            if self.kind == ALL_REDUCE:
                dist.all_reduce(x)
            elif self.kind == ALL_GATHER:
                gather(out, x)
            elif self.kind == REDUCE_SCATTER:
                scatter(out, x)
            else:
                one_shot(x, out)

    def reset(self) -> None:
        """Sums in place would grow from replay to replay: halve them."""
        if self.kind == ALL_REDUCE:
            self.pool[: self.number * self.size // 2].mul_(1 / self.ranks)


def graph_of(calls: Calls) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls.make()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The process group's watchdog asks about its own events from another thread meanwhile, which is no error.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        calls.make()
    calls.reset()
    return graph


def kernels(graphs: list[tuple[torch.cuda.CUDAGraph, Calls]]) -> Iterator[tuple[list[float], str]]:
    """Durations (ns, in order) and name of the kernels of some replays of each graph."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for graph, calls in graphs:
            for _ in range(REPLAYS):
                graph.replay()
                calls.reset()
        torch.cuda.synchronize()
    mine = [
        e
        for e in seen.events()
        if e.device_type == DeviceType.CUDA and ("nccl" in e.name or "one_shot" in e.name)
    ]
    mine.sort(key=lambda e: e.time_range.start)
    wanted = REPLAYS * sum(c.number for _, c in graphs)
    if len(mine) != wanted:
        raise SystemExit(f"benchmarks.links: the profiler saw {len(mine)} kernels of {wanted} calls")
    for _, calls in graphs:
        number = REPLAYS * calls.number
        first, mine = mine[:number], mine[number:]
        yield [e.time_range.elapsed_us() * 1e3 for e in first], _plain(first[0].name)


def measure(kinds: tuple[str, ...], device: str) -> list[Figure]:
    """Every kind at every size."""
    pools = torch.randn(POOL // 2, device=device).bfloat16(), torch.empty(POOL // 2, device=device).bfloat16()
    graphs = []
    for kind in kinds:
        for size in SIZES:
            if kind != ONE_SHOT or size <= ONE_SHOT_UP_TO:
                calls = Calls(kind, size, pools)
                graphs.append((graph_of(calls), calls))
    for graph, calls in graphs:
        for _ in range(REPLAYS):
            graph.replay()
            calls.reset()
    seen = list(kernels(graphs))
    out = []
    for (_, calls), (took, name) in zip(graphs, seen, strict=True):
        shortest = torch.tensor(took, device=device, dtype=torch.float64)
        dist.all_reduce(shortest, dist.ReduceOp.MIN)
        out.append(Figure(calls.kind, calls.size, statistics.median(shortest.tolist()), name))
    graphs.clear()  # a graph that holds collectives must go before the group does
    return out


def _plain(kernel: str) -> str:
    """A kernel's name without its template and arguments."""
    return re.split(r"[<(]", kernel.replace("(anonymous namespace)::", "").removeprefix("void "))[0]


def spell(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def printed(found: list[Figure], copied: dict[str, float]) -> None:
    """The table and the block."""
    for name, value in copied.items():
        print(f"{name:18s} {value:8.1f}")
    print(f"\n{'kind':15s} {'size':>8s} {'us':>8s} {'bus GB/s':>9s}  kernel")
    for f in found:
        print(f"{f.kind:15s} {spell(f.size):>8s} {f.ns / 1e3:8.2f} {f.bus:9.1f}  {f.kernel}")
    print(f"\n[device.link.measured]\nranks = {dist.get_world_size()}")
    for name, value in copied.items():
        print(f"{name} = {value:.1f}")
    print(f"sizes = {list(SIZES)}")
    for kind in dict.fromkeys(f.kind for f in found):
        print(f"{kind}_ns = {[round(f.ns) for f in found if f.kind == kind]}", flush=True)


def main() -> int:
    """Check, measure, print the table and the block."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not torch.cuda.is_available() or torch.cuda.device_count() < ranks or ranks < 2:
        print(
            "benchmarks.links: needs two GPUs of one host or more, a process each: "
            "torchrun --nproc-per-node 2 -m benchmarks.links",
            file=sys.stderr,
        )
        return 2
    device = f"cuda:{rank}"
    # Before the ranks meet: no other process's collective runs beside the copies.
    copied = copies() if rank == 0 else {}
    torch.cuda.set_device(rank)
    torch.cuda.empty_cache()
    dist.init_process_group("nccl", device_id=torch.device(device))
    if rank == 0:
        version = ".".join(map(str, torch.cuda.nccl.version()))
        print(
            f"{ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {version}, "
            f"Triton {triton.__version__}"
        )
    tried = (4 * KIB, 256 * KIB, 16 * MIB)
    check(NCCL, tried, device)
    found = measure(NCCL, device)
    try:
        check((ONE_SHOT,), tried, device)
        found += measure((ONE_SHOT,), device)
    except (ImportError, AttributeError, RuntimeError) as error:
        print(f"rank {rank}: no all-reduce in one shot here: {str(error).splitlines()[0]}")
        if rank == 0:
            printed(found, copied)
        os._exit(1)  # the ranks may be at different places: torchrun ends the others
    if rank == 0:
        printed(found, copied)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
