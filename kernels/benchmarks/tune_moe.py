"""Which tiles are fastest for the FP4 products on this GPU? Prints what ``moe_select`` writes down.

Run: ``PYTHONPATH=kernels python kernels/benchmarks/tune_moe.py [mxfp4|nvfp4] [tokens ...]``

Every tile is timed in the whole call with everything else at its choice, cold: each call of a graph has its own
routing, and a replay reads over 1 GB of weights. Kernels are compiled first, in as many processes as there are CPUs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch
from dsv4_kernels import moe_select
from dsv4_kernels.moe_fp4 import Fp4Experts, moe_fp4, random_experts
from dsv4_kernels.moe_select import Choice, Tile
from graph_timing import copy_bytes_per_us, median_us, need_gpu
from moe_fp4 import DIM, EXPERTS, INTER, generate_tokens
from words import at_least_1

TILES = tuple(
    Tile(rows, block_k, stages, 1)
    for rows, block_k, stages in (
        (16, 256, 4), (16, 512, 2), (16, 512, 3), (16, 1024, 2),
        (32, 256, 2), (32, 256, 3), (32, 512, 2), (32, 512, 3), (64, 256, 2),
    )
)  # fmt: skip
PLACES = (8, 16)


@contextmanager
def chosen(change: Callable[[Choice], Choice]) -> Iterator[None]:
    """Inside, every call runs with the changed choice."""
    kept = moe_select.choose
    moe_select.choose = lambda pairs, experts: change(kept(pairs, experts))
    try:
        yield
    finally:
        moe_select.choose = kept


def warm(fmt: str, places: int, tile: Tile) -> None:
    """Compile both products with one tile, in a process of its own."""
    experts = random_experts(4, DIM, INTER, fmt, device="cuda")
    x, ids, weights = generate_tokens(1)
    with chosen(lambda choice: replace(choice, places=places, w13=tile, w2=tile)):
        moe_fp4(x, experts, ids % 4, weights, variant="triton")
    torch.cuda.synchronize()


def sweep(experts: Fp4Experts, tokens: int, ceiling: float) -> None:
    """Print one batch's table."""
    sets = [generate_tokens(tokens) for _ in range(16 if tokens < 16 else 4)]
    distinct = sum(ids.unique().numel() for _, ids, _ in sets) / len(sets)
    floor = distinct * experts.expert_bytes / ceiling
    calls = [lambda s=s: moe_fp4(s[0], experts, *s[1:], variant="triton") for s in sets]
    print(f"{experts.format} T {tokens}: {distinct:.1f} experts, floor {floor:.1f} us")
    print(f"  as chosen {median_us(calls):8.1f}   {moe_select.choose(tokens * 6, EXPERTS)}")
    with chosen(lambda choice: replace(choice, pdl=not choice.pdl)):
        print(f"  other PDL {median_us(calls):8.1f}")
    for places in PLACES:
        for tile in TILES:
            row = []
            for product in ("w13", "w2"):
                with chosen(
                    lambda choice, product=product, places=places, tile=tile: replace(
                        choice, places=places, **{product: tile}
                    )
                ):
                    row.append(median_us(calls, 10))
            print(
                f"  places {places:2d} rows {tile.rows:2d} K {tile.block_k:4d} stages {tile.stages}   "
                f"w13 {row[0]:8.1f}   w2 {row[1]:8.1f}",
                flush=True,
            )


def format_or_tokens(text: str) -> str | int:
    """What may stand behind the script's name."""
    if text in ("mxfp4", "nvfp4"):
        return text
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: give mxfp4, nvfp4 or a number of tokens")
    return at_least_1(text)


def main() -> None:
    """Compile, then time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", type=format_or_tokens, help="mxfp4, nvfp4, numbers of tokens")
    words = parser.parse_args().words
    need_gpu("tune_moe.py")
    formats = [word for word in words if isinstance(word, str)] or ["mxfp4"]
    batches = [word for word in words if isinstance(word, int)] or [1, 4, 32, 128]
    workers = min(os.cpu_count() or 1, len(TILES) * len(PLACES))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(warm, fmt, places, tile) for fmt in formats for places in PLACES for tile in TILES
        ]
        for job in jobs:
            job.result()
    torch.manual_seed(0)
    ceiling = copy_bytes_per_us()
    print(torch.cuda.get_device_name(), f"copy ceiling {ceiling / 1e6:.2f} TB/s")
    for fmt in formats:
        experts = random_experts(EXPERTS, DIM, INTER, fmt, device="cuda")
        for tokens in batches:
            sweep(experts, tokens, ceiling)


if __name__ == "__main__":
    main()
