"""Sparse-MLA decode on a GPU: time per call against the floor, the baseline and the recorded peer.

    python kernels/benchmarks/sparse_mla.py --out table.json

Method. Calls are captured into a CUDA graph and its replays timed with events; a call is everything it
launches, the combine included. *cold*: every call of the graph has its own query, indices and output, the
tokens are drawn at random from pools of 1.07 GB and 4.29 GB, and one replay touches at least 400 MB of KV
(6.6 times an H200's L2). *warm*: 200 calls on one set. Medians over the replays, divided by the calls.
The ceilings (device copy, bf16 matrix product, an empty kernel in a graph) are measured in the same run.

bytes = tokens * 584 + query + output; FLOP = 2 * H * tokens * (512 + 512); floor = the larger of
bytes / copy bandwidth and FLOP / bf16 rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels.call import DecodeCall, make_call
from dsv4_kernels.decode import Variant, run_call
from dsv4_kernels.layout import PagedKV, pack_kv, page_bytes
from words import at_least_1, writable

HEADS = 64
MAIN_PAGE, EXTRA_PAGE = 128, 64
COLD_BYTES = 400e6
WARM_CALLS = 200
BATCHES = (1, 4, 8, 16, 32, 64, 128)
SHAPES = {"128+512": (128, 512), "512": (512, 0), "128+1024": (128, 1024)}
# FlashMLA (April 2026) on one H200, same shapes and method, cold, microseconds per call.
PEER_US = {
    "128+512": {1: 13.54, 4: 14.32, 8: 15.45, 16: 18.75, 32: 25.72, 64: 44.55, 128: 46.34},
    "512": {1: 13.24, 4: 13.75, 8: 14.78, 16: 17.99, 32: 25.59, 64: 39.42, 128: 39.22},
    "128+1024": {1: 15.36, 4: 16.68, 8: 18.68, 16: 23.48, 32: 35.09, 64: 61.24, 128: 74.48},
}


@dataclass(frozen=True)
class Ceilings:
    """What the device gives, measured: GB/s (read + written), TFLOP/s, us per empty kernel in a graph."""

    copy_gbs: float
    bf16_tflops: float
    launch_us: float


@dataclass(frozen=True)
class Row:
    """One line of the table; times in microseconds per call."""

    shape: str
    batch: int
    variant: str
    cold_us: float
    warm_us: float
    gbs: float
    tflops: float
    floor_us: float
    peer_us: float

    @property
    def floor_ratio(self) -> float:
        """Cold time over the floor."""
        return self.cold_us / self.floor_us


@triton.jit
def _empty_kernel(x: tl.tensor) -> None:
    pass


def graph_of(calls: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
    """Capture ``calls`` in order; they must have run once before, so that nothing compiles."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def event_us(run: Callable[[], Any], repeats: int) -> float:
    """Median microseconds of one ``run`` between events, after two warm-ups."""
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def replay_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Median microseconds of one replay."""
    return event_us(graph.replay, replays)


def measure_ceilings() -> Ceilings:
    """Measure the device's copy bandwidth, bf16 matrix rate and launch floor."""
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    # In a stream, not in a graph: a graph's copy node goes through a copy engine, at two thirds of the rate.
    copy = event_us(lambda: target.copy_(source), 10)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.mm(a, b)
    matmul = replay_us(graph_of([lambda: torch.mm(a, b, out=product)]), 10)
    _empty_kernel[(132,)](a)
    empty = replay_us(graph_of([lambda: _empty_kernel[(132,)](a)] * 1000), 10) / 1000
    return Ceilings(2 * (1 << 32) / copy / 1e3, 2 * 8192**3 / matmul / 1e6, empty)


def make_pool(size_bytes: float, page_size: int, seed: int) -> PagedKV:
    """A pool of about ``size_bytes`` of normally distributed tokens, packed chunk by chunk."""
    pages = max(1, int(size_bytes) // page_bytes(page_size))
    data = torch.empty(pages, page_bytes(page_size), dtype=torch.uint8, device="cuda")
    generator = torch.Generator("cuda").manual_seed(seed)
    chunk = max(1, (1 << 17) // page_size)
    for first in range(0, pages, chunk):
        count = min(chunk, pages - first)
        kv = torch.randn(count * page_size, 512, device="cuda", generator=generator)
        data[first : first + count] = pack_kv(kv, page_size).data
    return PagedKV(data, page_size)


def make_calls(
    pools: tuple[PagedKV, PagedKV], widths: tuple[int, int], batch: int, count: int
) -> list[DecodeCall]:
    """``count`` independent calls with random indices, every entry valid, sink on."""
    generator = torch.Generator("cuda").manual_seed(batch)

    def indices(pool: PagedKV, width: int) -> Tensor:
        shape = (count, batch, 1, width)
        return torch.randint(0, pool.num_slots, shape, dtype=torch.int32, device="cuda", generator=generator)

    q = torch.randn(count, batch, 1, HEADS, 512, device="cuda", generator=generator).bfloat16()
    sink = torch.randn(HEADS, device="cuda", generator=generator)
    main = indices(pools[0], widths[0])
    extra = indices(pools[1], widths[1]) if widths[1] else None
    return [
        make_call(
            q[i], pools[0], main[i], attn_sink=sink,
            extra=pools[1] if extra is not None else None, extra_indices=None if extra is None else extra[i],
        )
        for i in range(count)
    ]  # fmt: skip


def cold_count(widths: tuple[int, int], batch: int) -> int:
    """Calls whose KV together exceed ``COLD_BYTES``."""
    return -(-int(COLD_BYTES) // (batch * sum(widths) * 584))


def time_calls(
    run: Callable[[DecodeCall], Any], calls: list[DecodeCall], warm_calls: int = WARM_CALLS, replays: int = 20
) -> tuple[float, float]:
    """Cold and warm microseconds per call of ``run``; outputs are kept alive so that none is reused."""
    run(calls[0])
    torch.cuda.synchronize()
    kept: list[Any] = []
    cold = replay_us(graph_of([lambda call=call: kept.append(run(call)) for call in calls]), replays) / len(
        calls
    )
    kept.clear()
    if not warm_calls:
        return cold, float("nan")
    warm = replay_us(graph_of([lambda: run(calls[0])] * warm_calls), replays) / warm_calls
    return cold, warm


def floor_us(widths: tuple[int, int], batch: int, ceilings: Ceilings) -> tuple[float, float, float]:
    """Floor in microseconds, and the bytes and FLOP it comes from."""
    size = batch * (sum(widths) * 584 + 2 * HEADS * 512 * 2)
    flop = 2.0 * HEADS * batch * sum(widths) * (512 + 512)
    return max(size / ceilings.copy_gbs / 1e3, flop / ceilings.bf16_tflops / 1e6), size, flop


def measure(
    shape: str, batch: int, variant: Variant, calls: list[DecodeCall], ceilings: Ceilings, slow: bool
) -> Row:
    """Time one variant; ``slow`` takes fewer calls and replays (the baseline runs for milliseconds)."""
    used = calls[: max(2, len(calls) // 20)] if slow else calls
    run = lambda call: run_call(call, variant)  # noqa: E731
    cold, warm = time_calls(run, used, 5 if slow else WARM_CALLS, 5 if slow else 20)
    floor, size, flop = floor_us(SHAPES[shape], batch, ceilings)
    peer = PEER_US[shape].get(batch, float("nan"))
    return Row(shape, batch, variant, cold, warm, size / cold / 1e3, flop / cold / 1e6, floor, peer)


def print_table(rows: list[Row]) -> None:
    """One line per shape, batch and variant."""
    baseline = {(row.shape, row.batch): row.cold_us for row in rows if row.variant == "simt"}
    head = f"{'shape':>9} {'B':>4} {'variant':>8} {'cold us':>9} {'warm us':>9} {'GB/s':>7} {'TFLOP/s':>8} "
    print(head + f"{'floor us':>9} {'x floor':>8} {'x SIMT':>7} {'peer us':>8} {'peer/us':>8}")
    for row in rows:
        speedup = baseline.get((row.shape, row.batch), float("nan")) / row.cold_us
        print(
            f"{row.shape:>9} {row.batch:>4} {row.variant:>8} {row.cold_us:>9.2f} {row.warm_us:>9.2f} "
            f"{row.gbs:>7.0f} {row.tflops:>8.1f} {row.floor_us:>9.2f} {row.floor_ratio:>8.1f} {speedup:>7.1f} "
            f"{row.peer_us:>8.2f} {row.peer_us / row.cold_us:>8.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["128+512"])
    parser.add_argument("--batches", nargs="+", type=at_least_1, default=list(BATCHES))
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=["simt", "mma", "split_k", "hopper", "auto"],
        default=["simt", "mma", "split_k", "auto"],
    )
    parser.add_argument("--out", type=writable, help="also write the rows as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("sparse_mla.py: no CUDA device; this benchmark times kernels and needs one")
    ceilings = measure_ceilings()
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, triton {triton.__version__}; copy {ceilings.copy_gbs:.0f} GB/s, "
          f"bf16 {ceilings.bf16_tflops:.0f} TFLOP/s, empty kernel {ceilings.launch_us:.2f} us")  # fmt: skip
    pools = make_pool(1.07e9, MAIN_PAGE, 1), make_pool(4.29e9, EXTRA_PAGE, 2)
    rows = []
    for shape in options.shapes:
        for batch in options.batches:
            calls = make_calls(pools, SHAPES[shape], batch, cold_count(SHAPES[shape], batch))
            for variant in options.variants:
                rows.append(measure(shape, batch, variant, calls, ceilings, variant == "simt"))
    print_table(rows)
    if options.out:
        content = {"device": name, "ceilings": asdict(ceilings), "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
