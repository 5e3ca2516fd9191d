"""What does this GPU reach at best? The figures of a ``[device.measured]`` block, measured (torch and Triton).

``python -m benchmarks.ceilings`` prints a table and the block as TOML, to be put into
``hta_dsv4/analysis/devices.toml``. Each figure is the median of replays of one CUDA graph; rates are on random data,
as zeros switch fewer transistors and clock higher.

* DRAM: 4 GiB copied (bytes read plus written) and 4 GiB read by a sum.
* L2: a working set of a third of the cache, read 20 times over by one kernel, so that all but the first pass hits.
* Rates: 8192^3 products through cuBLAS (bf16, FP8 e4m3 with per-tensor scales, TF32, FP32), and FP32 multiply-adds
  on registers, which is what the ordinary cores can do when nothing else is asked of them.
* A launch: a kernel that does nothing, a thousand of them in one graph.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

GIB = 1 << 30
N = 8192
FMA_PER_LOOP = 64


@triton.jit
def _read_kernel(source, out, n, passes, BLOCK: tl.constexpr):
    """Sum ``n`` floats, ``passes`` times over; every program walks the whole grid's stride.

    ``.cg`` keeps L1 out of it: a program reads the same share in every pass, which would fit there.
    """
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(passes):
        for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            total += tl.load(source + at + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out + tl.program_id(0), tl.sum(total))


@triton.jit
def _fma_kernel(out, loops, seed, BLOCK: tl.constexpr, CHAINS: tl.constexpr):
    """Eight independent chains of multiply-adds per thread, nothing loaded."""
    x = (tl.arange(0, BLOCK).to(tl.float32) + seed) * 1e-3
    a, b, c, d = x, x + 1, x + 2, x + 3
    e, f, g, h = x + 4, x + 5, x + 6, x + 7
    for _ in range(loops):
        for _ in tl.static_range(CHAINS):
            a = a * x + 0.5
            b = b * x + 0.5
            c = c * x + 0.5
            d = d * x + 0.5
            e = e * x + 0.5
            f = f * x + 0.5
            g = g * x + 0.5
            h = h * x + 0.5
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), a + b + c + d + e + f + g + h)


@triton.jit
def _nothing_kernel(out):
    pass


def graph_ns(calls: Callable[[], Any], count: int, replays: int = 15) -> float:
    """Median time per call of ``count`` calls captured in one graph, ns."""
    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            calls()
    times = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e6 / count)
    return statistics.median(times)


def bandwidths() -> dict[str, float]:
    """DRAM copied and read, L2 read; GB/s."""
    properties = torch.cuda.get_device_properties(0)
    sms = properties.multi_processor_count
    source = torch.randn(GIB, device="cuda")
    target = torch.empty_like(source)
    out = torch.empty(64 * sms, device="cuda")

    def read(n: int, passes: int, programs: int) -> float:
        ns = graph_ns(lambda: _read_kernel[(programs,)](source, out, n, passes, BLOCK=4096, num_warps=8), 1)
        return 4.0 * n * passes / ns

    third = properties.L2_cache_size // 3 // 4 // (4096 * sms) * (4096 * sms)
    return {
        # Not copy_: in a graph that is a copy-engine node, which is slower than a kernel.
        "dram_copy_gb_s": 8 * GIB / graph_ns(lambda: torch.neg(source, out=target), 1),
        "dram_read_gb_s": max(read(GIB, 1, sms * k) for k in (4, 8, 16)),
        "l2_read_gb_s": max(read(third, 200, sms * k) for k in (2, 4, 8)),
    }


def products() -> dict[str, float]:
    """8192^3 through cuBLAS on random data; TFLOP/s."""
    work = 2.0 * N**3 / 1e3
    left, right = torch.randn(N, N, device="cuda"), torch.randn(N, N, device="cuda")
    found = {}
    for name, allow, count in (("fp32_gemm", False, 1), ("tf32", True, 4)):
        torch.backends.cuda.matmul.allow_tf32 = allow
        found[name] = work / graph_ns(lambda: left @ right, count, 5)
    torch.backends.cuda.matmul.allow_tf32 = False
    half = left.bfloat16(), right.bfloat16()
    found["bf16"] = work / graph_ns(lambda: half[0] @ half[1], 4)
    if torch.cuda.get_device_capability() >= (9, 0):
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        found["fp8"] = work / graph_ns(
            lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16), 4
        )
    return found


def multiply_adds() -> float:
    """FP32 on the ordinary cores, operands in registers; TFLOP/s, best over grids."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    block, loops, best = 1024, 2000, 0.0
    sink = torch.empty(sms * 16 * block, device="cuda")
    for per_sm, warps in ((2, 4), (4, 4), (4, 8), (8, 4)):
        grid = sms * per_sm
        ns = graph_ns(
            lambda g=grid, w=warps: _fma_kernel[(g,)](  # type: ignore[misc]
                sink, loops, 1, BLOCK=block, CHAINS=FMA_PER_LOOP // 8, num_warps=w
            ),
            1,
        )
        best = max(best, grid * block * loops * FMA_PER_LOOP * 2.0 / ns / 1e3)
    return best


def measure() -> dict[str, float]:
    """Every figure of this GPU, by the names of the device table (GB/s, TFLOP/s, ns)."""
    found = bandwidths()
    torch.cuda.empty_cache()
    found |= products()
    found["fp32"] = multiply_adds()
    out = torch.empty(1, device="cuda")
    found["launch_ns"] = graph_ns(lambda: _nothing_kernel[(1,)](out, num_warps=4), 1000)
    return found


def main() -> int:
    """Print the table and the block."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.ceilings: no CUDA device; this measures one", file=sys.stderr)
        return 2
    found = measure()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}")
    for name, value in found.items():
        print(f"{name:16s} {value:12,.1f}")
    print("\n[device.measured]")
    for name, value in found.items():
        print(f"{name} = {value:.1f}" if value < 100 else f"{name} = {value:.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
