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
        warps: 1 or 2 (four would take the ``wgmma`` path).
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


# Few pairs touch as many experts as there are pairs: programs must be small to be many, and reach far ahead.
FEW = Choice(8, Tile(16, 512, 3, 1), Tile(16, 512, 3, 1), True)
MANY = Choice(8, Tile(32, 256, 2, 1), Tile(32, 256, 2, 1), True)
# Above four pairs an expert, blocks of four tokens would read too many experts twice.
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
