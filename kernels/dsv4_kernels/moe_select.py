"""Which tiles do the FP4 products run with? Data and pure functions of static shapes, never a timing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Shape of one product's program.

    Attributes:
        rows: Weight rows, 16, 32 or 64.
        block_k: Columns an iteration, a multiple of 256.
        stages: Software-pipelining depth.
        warps: 1. Two would trade weights through shared memory, four would take the ``wgmma`` path.
    """

    rows: int
    block_k: int
    stages: int
    warps: int


@dataclass(frozen=True)
class Choice:
    """How one call of the MoE runs.

    Attributes:
        places: Columns of the products, 8 or 16: a block's tokens, each once for each part of a row that is read at a
            time (two, or one where the layer's sizes are no multiples of 256).
        w13: The gate and up product; half its rows are gates.
        w2: The down product.
        pdl: Programmatic dependent launch between the four kernels.
    """

    places: int
    w13: Tile
    w2: Tile
    pdl: bool


# us on an H200, 256 experts of V4-Flash, mxfp4, whole call, cold (benchmarks/tune_moe.py prints all of them again).
# Few pairs touch as many experts as there are pairs: programs must be small to be many, and reach far ahead. One token:
# w13 (16, 512, 3) 43.9, (32, 512, 3) 46.0, (16, 256, 4) 49.2, (32, 256, 2) 68.6.
FEW = Choice(8, Tile(16, 512, 3, 1), Tile(16, 512, 3, 1), True)
# 32 tokens: w13 (32, 256, 2) 515.8, (64, 256, 2) 528.8, (32, 512, 2) 532.7, (16, 256, 2) 536.6, (16, 512, 3) 594.1.
MANY = Choice(8, Tile(32, 256, 2, 1), Tile(32, 256, 2, 1), True)
# Above four pairs an expert, blocks of four tokens would read too many experts twice. 256 tokens: 1,780 with 8 places,
# 1,374 with 16; 128 tokens: 1,021 and 1,063.
CROWDED = Choice(16, Tile(32, 256, 2, 1), Tile(32, 256, 2, 1), True)
CHOICES = (FEW, MANY, CROWDED)


def choose(pairs: int, experts: int) -> Choice:
    """The choice for a batch.

    Args:
        pairs: Token-expert pairs, T * topk.
        experts: E.

    Returns:
        One of :data:`CHOICES`, a function of static shapes alone.
    """
    if pairs > 4 * experts:
        return CROWDED
    return MANY if pairs > 12 else FEW


def max_blocks(pairs: int, experts: int, block_m: int) -> int:
    """Blocks the worst routing fills: every expert's last block may hold a single pair.

    Args:
        pairs: Token-expert pairs, T * topk.
        experts: E.
        block_m: Places of a block.

    Returns:
        At least 1, a function of static shapes alone.
    """
    return max(1, min(pairs, (pairs + (block_m - 1) * min(pairs, experts)) // block_m))
