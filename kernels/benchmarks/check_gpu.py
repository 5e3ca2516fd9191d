"""Prove the sparse-MLA kernels on a GPU: error grids, NaN, CUDA graphs with changed contents, memory and race checkers.

    python kernels/benchmarks/check_gpu.py              # everything, some minutes on an H200
    python kernels/benchmarks/check_gpu.py --skip-sanitizer
    python kernels/benchmarks/check_gpu.py --variants hopper auto

The grid: batch 1, 3, 8, 16, 32, 64, 128; lists of 128 + 512, 512 and 128 + 1024 tokens; plain, with a sink, and
with a sink, random lengths and 10 % of the indices -1; every variant. A second, ragged grid has other head counts,
draft tokens, pages and lists thousands wide. Outputs and partial outputs are poisoned with NaN first. Limits:
||out - ref|| / ||ref|| <= 4e-3 and |lse - ref| <= 1e-5 against float32 torch. Exit status 1 if anything fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Any

import torch
from attention_cases import MAX_ERROR, MAX_LSE, MODES, compare, make_case
from check_memory import OTHERS, check_memory, run_small
from check_races import check_all
from dsv4_kernels._device import describe_device
from dsv4_kernels.decode import Variant, run_call
from dsv4_kernels.hopper_support import unavailable
from dsv4_kernels.reference import reference_attention, relative_error
from torch import Tensor

BATCHES = (1, 3, 8, 16, 32, 64, 128)
SHAPES = ((128, 512), (512, 0), (128, 1024))
VARIANTS: tuple[Variant, ...] = ("simt", "mma", "split_k", "hopper")
# The second grid: batch, widths, and what make_case is given besides; all ragged.
OTHER_CASES: tuple[tuple[int, tuple[int, int], dict[str, Any]], ...] = (
    *((batch, (128, 512), {"heads": heads}) for heads in (8, 24, 128) for batch in (4, 32)),
    *((batch, (128, 512), {"heads": 64, "q_len": 2}) for batch in (3, 16)),
    (5, (128, 512), {"heads": 128, "q_len": 3, "pages": (3, 2)}),
    *((6, (128, 512), {"pages": pages}) for pages in ((2, 256), (256, 2), (3, 3), (64, 8))),
    *((batch, (128, 8192), {}) for batch in (3, 40)),
    (4, (5000, 3000), {"heads": 24, "pages": (64, 3)}),
    (7, (7, 1), {}),
)


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


def check_other_cell(case: int, variants: Sequence[Variant]) -> list[tuple[Any, str, float, float]]:
    """Every variant on one case of the second grid, by its place in it."""
    batch, widths, given = OTHER_CASES[case]
    call = make_case(batch, widths, "ragged", seed=7_000 + case, **given)
    expected = reference_attention(call)
    return [(OTHER_CASES[case], variant, *compare(call, variant, expected)) for variant in variants]


def check_grid(
    name: str, check: Callable[..., Any], cells: Sequence[Any], variants: Sequence[Variant]
) -> bool:
    """A whole grid, one process a cell at a time, so that kernels compile side by side."""
    worst: dict[str, list[float]] = {variant: [0.0, 0.0] for variant in variants}
    failed = 0
    workers = max(1, min(15, multiprocessing.cpu_count() - 1))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for results in pool.map(check, cells, repeat(variants)):
            for cell, variant, error, lse in results:
                if not (error <= MAX_ERROR and lse <= MAX_LSE):
                    failed += 1
                    print(f"FAIL {cell} {variant}: relative error {error:.3g}, lse {lse:.3g}")
                worst[variant] = [max(worst[variant][0], error), max(worst[variant][1], lse)]
    for variant, (error, lse) in worst.items():
        print(f"{name} {variant:>8}: worst relative error {error:.2e}, worst |lse - ref| {lse:.1e}")
    print(f"{name}: {len(cells) * len(variants)} runs, {failed} failed")
    return failed == 0


def check_nan(variant: Variant) -> bool:
    """NaN in one head's query, then in a token that two of the rows name: NaN there, and not a bit moves elsewhere."""
    good = True
    for where in ("query", "token"):
        call = make_case(6, (128, 512), "ragged", seed=11)
        indices = call.scopes[0].indices.view(6, -1)
        indices[indices == 5] = 6  # slot 5 is nobody's but for what follows
        indices[0, 3] = indices[3, 0] = 5
        assert call.scopes[0].lengths is not None
        call.scopes[0].lengths.clamp_(max=128)[3] = 128
        clean = [result.clone() for result in run_call(call, variant)]
        hit = torch.zeros(6, 64, dtype=torch.bool, device="cuda")
        if where == "query":
            call.q[4, 9, 100] = float("nan")
            hit[4, 9] = True
        else:
            # The rotary part: the other one has no NaN that pack_kv would write.
            call.scopes[0].cache.records().view(torch.bfloat16)[0, 5, 230] = float("nan")
            hit[0] = hit[3] = True
        out, lse = run_call(call, variant)
        right = torch.equal(lse.isnan(), hit) and torch.equal(out.isnan().any(-1), hit)
        right &= torch.equal(out[~hit], clean[0][~hit]) and torch.equal(lse[~hit], clean[1][~hit])
        good &= right
    print(f"NaN {variant:>8}: {'stays in its rows' if good else 'WRONG'}")
    return good


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


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", choices=(*VARIANTS, "auto"), default=list(VARIANTS))
    parser.add_argument("--skip-sanitizer", action="store_true", help="leave the memory checkers out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("check_gpu.py: no CUDA device; the CPU tests are in kernels/tests")
    start = time.time()
    variants = runnable(options.variants)
    cells = [(batch, shape, mode) for shape in SHAPES for mode in MODES for batch in BATCHES]
    good = check_grid("grid", check_cell, cells, variants)
    good &= check_grid("other shapes", check_other_cell, range(len(OTHER_CASES)), variants)
    for variant in variants:
        good &= check_nan(variant)
        good &= check_graph(8, variant)
        if variant not in ("simt", "mma"):
            good &= check_graph(16, variant) & check_graph(64, variant) & check_streams(variant)
    for name in OTHERS:
        good &= run_small(name)
    if not options.skip_sanitizer:
        good &= check_memory([*(variant for variant in variants if variant != "auto"), *OTHERS])
        if "hopper" in variants:
            good &= check_all(forms=True, faults=False, controls=False)
    print(f"{'all right' if good else 'FAILED'}, {time.time() - start:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
