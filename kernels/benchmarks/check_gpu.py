"""Prove the sparse-MLA kernels on a GPU: error grid, CUDA graphs with changed contents, memory checkers.

    python kernels/benchmarks/check_gpu.py              # the whole grid, then graphs, then compute-sanitizer
    python kernels/benchmarks/check_gpu.py --variants hopper auto
    python kernels/benchmarks/check_gpu.py --small simt # one small case, what the sanitizer runs

The grid: batch 1, 3, 8, 16, 32, 64, 128; lists of 128 + 512, 512 and 128 + 1024 tokens; plain, with a sink, and
with a sink, random lengths and 10 % of the indices -1; every variant. Outputs and partial outputs are
poisoned with NaN first. Limits: ||out - ref|| / ||ref|| <= 4e-3 and |lse - ref| <= 1e-5 against float32
torch. Exit status 1 if anything fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsv4_kernels._device import describe_device
from dsv4_kernels.call import DecodeCall, make_call
from dsv4_kernels.decode import Variant, run_call, run_choice
from dsv4_kernels.hopper_select import FORMS, Choice
from dsv4_kernels.hopper_support import unavailable
from dsv4_kernels.layout import PagedKV, pack_kv
from dsv4_kernels.reference import reference_attention, relative_error
from dsv4_kernels.select import combine_config

BATCHES = (1, 3, 8, 16, 32, 64, 128)
SHAPES = ((128, 512), (512, 0), (128, 1024))
MODES = ("plain", "sink", "ragged")
VARIANTS: tuple[Variant, ...] = ("simt", "mma", "split_k", "hopper")
MAX_ERROR, MAX_LSE = 4e-3, 1e-5


def poison() -> None:
    """Fill the memory the next allocations will get with NaN, so that an unwritten output shows."""
    blocks = [torch.full((1 << 26,), float("nan"), device="cuda") for _ in range(2)]
    blocks += [
        torch.full((size,), float("nan"), device="cuda") for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20)
    ]
    del blocks


def make_case(batch: int, widths: tuple[int, int], mode: str, heads: int = 64, seed: int = 0) -> DecodeCall:
    """A random call over small pools (page sizes 128 and 64); fresh data for every seed."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, device="cuda", generator=generator)

    def indices(pool: PagedKV, width: int) -> Tensor:
        index = torch.randint(0, pool.num_slots, (batch, 1, width), device="cuda", generator=generator)
        return torch.where(rand(batch, 1, width) < (0.1 if mode == "ragged" else 0.0), -1, index).int()

    def lengths(width: int) -> Tensor | None:
        if mode != "ragged":
            return None
        length = (rand(batch) * (width + 1)).int()
        length[0] = width
        if batch > 2:
            length[1], length[2] = 0, 1  # a request with nothing at all, and one with one token a scope
        return length

    pools = tuple(
        pack_kv(torch.randn(tokens, 512, device="cuda", generator=generator), page)
        for tokens, page in ((1 << 15, 128), (1 << 16, 64))
    )
    q = torch.randn(batch, 1, heads, 512, device="cuda", generator=generator).bfloat16()
    sink = None if mode == "plain" else torch.randn(heads, device="cuda", generator=generator)
    extra = {"extra": pools[1], "extra_indices": indices(pools[1], widths[1]),
             "extra_topk_length": lengths(widths[1])} if widths[1] else {}  # fmt: skip
    main = indices(pools[0], widths[0])
    return make_call(q, pools[0], main, topk_length=lengths(widths[0]), attn_sink=sink, **extra)  # type: ignore[arg-type]


def compare(call: DecodeCall, variant: Variant, expected: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Relative output error and largest lse error of one run on poisoned memory; NaN if a result is."""
    poison()
    out, lse = run_call(call, variant)
    torch.cuda.synchronize()
    finite = torch.isfinite(expected[1])
    if not torch.equal(lse[~finite], expected[1][~finite]):
        return float("nan"), float("nan")
    difference = (lse - expected[1])[finite].abs()
    return relative_error(out, expected[0]), float(difference.max()) if difference.numel() else 0.0


def runnable(variants: Sequence[Variant]) -> list[Variant]:
    """The variants this GPU can run; a note for each that it cannot."""
    reason = unavailable(describe_device(torch.empty(0, device="cuda")))
    if reason and "hopper" in variants:
        print(f"hopper: NOT RUN, needs {reason}")
    return [variant for variant in variants if variant != "hopper" or reason is None]


def check_cell(
    cell: tuple[int, tuple[int, int], str], variants: Sequence[Variant]
) -> list[tuple[Any, str, float, float]]:
    """Every variant on one cell of the grid."""
    batch, widths, mode = cell
    call = make_case(batch, widths, mode, seed=batch * 100_000 + sum(widths) * 10 + MODES.index(mode))
    expected = reference_attention(call)
    return [(cell, variant, *compare(call, variant, expected)) for variant in variants]


def check_grid(variants: Sequence[Variant]) -> bool:
    """The whole grid, one process a cell at a time, so that kernels compile side by side."""
    cells = [(batch, shape, mode) for shape in SHAPES for mode in MODES for batch in BATCHES]
    worst: dict[str, list[float]] = {variant: [0.0, 0.0] for variant in variants}
    failed = 0
    workers = max(1, min(15, multiprocessing.cpu_count() - 1))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for results in pool.map(check_cell, cells, repeat(variants)):
            for cell, variant, error, lse in results:
                if not (error <= MAX_ERROR and lse <= MAX_LSE):
                    failed += 1
                    print(f"FAIL {cell} {variant}: relative error {error:.3g}, lse {lse:.3g}")
                worst[variant] = [max(worst[variant][0], error), max(worst[variant][1], lse)]
    for variant, (error, lse) in worst.items():
        print(f"grid {variant:>8}: worst relative error {error:.2e}, worst |lse - ref| {lse:.1e}")
    print(f"grid: {len(cells) * len(variants)} runs, {failed} failed")
    return failed == 0


def check_graph(batch: int, variant: Variant, rounds: int = 5) -> bool:
    """Capture once, then change every input in place (lengths too) and replay: each replay must be right."""
    call = make_case(batch, (128, 512), "ragged", seed=1)
    run_call(call, variant)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = run_call(call, variant)
    good = True
    for round_number in range(rounds):
        fresh = make_case(batch, (128, 512), "ragged", seed=100 + round_number)
        call.q.copy_(fresh.q)
        assert call.sink is not None
        assert fresh.sink is not None
        call.sink.copy_(fresh.sink)
        for mine, theirs in zip(call.scopes, fresh.scopes, strict=True):
            mine.indices.copy_(theirs.indices)
            mine.cache.data.copy_(theirs.cache.data)
            assert mine.lengths is not None
            assert theirs.lengths is not None
            mine.lengths.copy_(theirs.lengths.roll(round_number))
        expected = reference_attention(call)
        for _ in range(20):  # back to back: a replay must not disturb the next
            out.fill_(float("nan"))
            graph.replay()
        torch.cuda.synchronize()
        error = relative_error(out, expected[0])
        same = torch.equal(torch.isfinite(lse), torch.isfinite(expected[1]))
        good &= error <= MAX_ERROR and same
    print(f"graph {variant:>8} B={batch}: {rounds} rounds of 20 replays {'right' if good else 'WRONG'}")
    return good


def check_streams(variant: Variant) -> bool:
    """Two calls of different split counts on two streams at once: each gets its own result."""
    calls = [make_case(batch, (128, 512), "ragged", seed=batch) for batch in (4, 32)]
    expected = [reference_attention(call) for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    for call in calls:
        run_call(call, variant)
    torch.cuda.synchronize()
    results: list[list[Tensor]] = [[], []]
    for _ in range(20):
        for i, (call, stream) in enumerate(zip(calls, streams, strict=True)):
            with torch.cuda.stream(stream):
                results[i].append(run_call(call, variant)[0])
    torch.cuda.synchronize()
    errors = [relative_error(out, expected[i][0]) for i in range(2) for out in results[i]]
    good = max(errors) <= MAX_ERROR
    print(f"streams {variant:>8}: 2 x 20 concurrent calls, worst relative error {max(errors):.2e}")
    return good


def check_small(variant: Variant) -> bool:
    """One small ragged case, for running under a memory checker; split-K in each of its loop forms."""
    call = make_case(3, (128, 512), "ragged", seed=3)
    expected = reference_attention(call)[0]
    # The choice for this size takes one block a program; 8 and 2 splits make it loop, 1 writes the output itself.
    counts = (None, 8, 2, 1) if variant in ("split_k", "hopper") else (None,)
    error = max(relative_error(run_call(call, variant, count)[0], expected) for count in counts)
    if variant == "hopper":  # its other forms, which this size would not choose
        for form in FORMS:
            choice = Choice(form, combine_config(call.rows, call.heads))
            for count in (7, 2, 1):
                error = max(error, relative_error(run_choice(call, choice, count)[0], expected))
    print(f"small {variant}: relative error {error:.2e}")
    return error <= MAX_ERROR


def check_sanitizer(variants: Sequence[Variant]) -> bool:
    """Memcheck and racecheck over the small case of every variant, side by side."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("sanitizer: NOT RUN, no compute-sanitizer on the PATH")
        return True
    runs = {}
    for variant in variants:
        for check in ("memcheck", "racecheck"):
            command = [tool, "--tool", check, "--error-exitcode", "9",
                       sys.executable, __file__, "--small", variant]  # fmt: skip
            runs[variant, check] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
    good = True
    for (variant, check), process in runs.items():
        try:
            text, _ = process.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            text += "\n(ran past 100 s)"
        lines = [line for line in text.splitlines() if "SUMMARY" in line]
        good &= process.returncode == 0
        verdict = lines[-1].strip("= ") if lines else text.strip().splitlines()[-1:]
        print(f"sanitizer {check} {variant}: exit {process.returncode}, {verdict}")
    return good


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", choices=VARIANTS, help="run one small case of a variant and nothing else")
    parser.add_argument("--variants", nargs="+", choices=(*VARIANTS, "auto"), default=list(VARIANTS))
    parser.add_argument("--skip-sanitizer", action="store_true", help="leave the memory checkers out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("check_gpu.py: no CUDA device; the CPU tests are in kernels/tests")
    if options.small:
        sys.exit(0 if check_small(options.small) else 1)
    start = time.time()
    variants = runnable(options.variants)
    good = check_grid(variants)
    for variant in variants:
        good &= check_graph(8, variant)
        if variant not in ("simt", "mma"):
            good &= check_graph(16, variant) & check_graph(64, variant) & check_streams(variant)
    if not options.skip_sanitizer:
        good &= check_sanitizer([variant for variant in variants if variant != "auto"])
    print(f"{'all right' if good else 'FAILED'}, {time.time() - start:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
