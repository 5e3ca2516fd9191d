"""How are the ``topk`` best of up to 262,144 scores found exactly, at a cost that follows the real length?

Two launches, no atomics, nothing to clear between graph replays. First every tile of 16,384 scores keeps its own
``topk`` (a score outside its tile's best cannot be among the row's best); tiles at or past the length leave at once.
Then one program per request does the same over the survivors. A request that fits one tile skips the first launch's
work and is read directly by the second.

Within a tile the scores stay in registers as integers that sort like the floats; the ``topk``-th largest is found by
bisecting its value, each step one count over the tile, ending early once exactly ``topk`` lie above. A running count
then gives every survivor its place: those above the threshold first, then as many equal to it as are missing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

TILE = 16384
# Requests this short take a narrow path in the second launch: a quarter of the work per bisection step.
SHORT = 4096
MAX_MERGE = 32768

_LOWEST = tl.constexpr(-2147483648)


@triton.jit
def _sortable(score: tl.tensor) -> tl.tensor:
    """Integers in the floats' order (negative floats' bits run backwards)."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _kth_largest(key: tl.tensor, valid: tl.tensor, k: tl.tensor) -> tl.tensor:
    """A value with at least ``k`` keys at or above it and fewer than ``k`` above it, or exactly ``k`` at or above."""
    high = tl.max(key, axis=0)
    low = tl.min(tl.where(valid, key, high), axis=0)
    while low < high:
        # The mean rounded up without overflow: low < middle <= high.
        middle = (low | high) - ((low ^ high) >> 1)
        above = tl.sum((key >= middle).to(tl.int32), axis=0)
        low = tl.where(above >= k, middle, low)
        high = tl.where(above == k, middle, tl.where(above > k, high, middle - 1))
    return low


@triton.jit
def _places(key: tl.tensor, valid: tl.tensor, count: tl.tensor, K: tl.constexpr) -> tl.tensor:
    """Each key's place among the kept, 0 .. K-1, or K where it is not kept. ``count`` is the number of valid keys."""
    threshold = _LOWEST
    if count > K:
        threshold = _kth_largest(key, valid, K)
    above = key > threshold
    equal = (key == threshold) & valid
    # Both running counts in one scan: at most 32,768 each, so they fit 16 bits apiece (bit 31 may be set).
    both = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), axis=0)
    total = tl.sum(above.to(tl.int32), axis=0)
    place = tl.where(above, (both & 0xFFFF) - 1, total + ((both >> 16) & 0xFFFF) - 1)
    return tl.where(above | equal, tl.minimum(place, K), K)


@triton.jit
def _indexer_topk_tile_kernel(
    logits_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    kept_score_ptr: tl.tensor,
    kept_column_ptr: tl.tensor,
    width: tl.tensor,
    K: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    tile = tl.program_id(0)
    row = tl.program_id(1)
    length = tl.minimum(tl.load(lengths_ptr + row), width)
    if (length <= TILE) | (tile * TILE >= length):
        return
    column = tile * TILE + tl.arange(0, TILE)
    valid = column < length
    score = tl.load(logits_ptr + row.to(tl.int64) * width + column, mask=valid, other=0.0)
    key = tl.where(valid, _sortable(score), _LOWEST)
    place = _places(key, valid, tl.minimum(length - tile * TILE, TILE), K)
    kept = (row.to(tl.int64) * tl.num_programs(0) + tile) * K + place
    tl.store(kept_score_ptr + kept, score, mask=place < K)
    tl.store(kept_column_ptr + kept, column, mask=place < K)


@triton.jit
def _store_slots(
    slots_ptr: tl.tensor,
    table_ptr: tl.tensor,
    column: tl.tensor,
    place: tl.tensor,
    K: tl.constexpr,
) -> None:
    """Turn kept columns into cache slots."""
    page = tl.load(table_ptr + (column >> 6), mask=place < K, other=0)
    tl.store(slots_ptr + place, (page << 6) | (column & 63), mask=place < K)


@triton.jit
def _from_row(
    slots_ptr: tl.tensor,
    table_ptr: tl.tensor,
    logits_ptr: tl.tensor,
    length: tl.tensor,
    K: tl.constexpr,
    SPAN: tl.constexpr,
) -> None:
    """Select from a row of at most ``SPAN`` scores."""
    column = tl.arange(0, SPAN)
    valid = column < length
    score = tl.load(logits_ptr + column, mask=valid, other=0.0)
    key = tl.where(valid, _sortable(score), _LOWEST)
    _store_slots(slots_ptr, table_ptr, column, _places(key, valid, length, K), K)


@triton.jit
def _indexer_topk_merge_kernel(
    logits_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    table_ptr: tl.tensor,
    kept_score_ptr: tl.tensor,
    kept_column_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    width: tl.tensor,
    tiles: tl.tensor,
    K: tl.constexpr,
    K_SPAN: tl.constexpr,
    TILE: tl.constexpr,
    SHORT: tl.constexpr,
    MERGE: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    length = tl.minimum(tl.load(lengths_ptr + row), width)
    table_ptr += row.to(tl.int64) * (width // 64)
    slots_ptr += row * K
    logits_ptr += row.to(tl.int64) * width
    if length <= K:
        place = tl.arange(0, K_SPAN)
        page = tl.load(table_ptr + (place >> 6), mask=place < length, other=0)
        slot = tl.where(place < length, (page << 6) | (place & 63), -1)
        tl.store(slots_ptr + place, slot, mask=place < K)
    elif length <= SHORT:
        _from_row(slots_ptr, table_ptr, logits_ptr, length, K, SHORT)
    elif length <= TILE:
        _from_row(slots_ptr, table_ptr, logits_ptr, length, K, TILE)
    else:
        item = tl.arange(0, MERGE)
        tile = item // K
        # A tile keeps min(K, its entries); the places after that hold whatever the memory held.
        valid = (tile < tiles) & (item % K < length - tile * TILE)
        kept = row.to(tl.int64) * tiles * K + item
        score = tl.load(kept_score_ptr + kept, mask=valid, other=0.0)
        key = tl.where(valid, _sortable(score), _LOWEST)
        count = tl.sum(valid.to(tl.int32), axis=0)
        place = _places(key, valid, count, K)
        column = tl.load(kept_column_ptr + kept, mask=place < K, other=0)
        _store_slots(slots_ptr, table_ptr, column, place, K)


def topk_triton(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    topk: int,
    *,
    tile: int = TILE,
    short: int = SHORT,
) -> torch.Tensor:
    """Launch the selection; arguments as in ``indexer.indexer_topk``, which has checked them.

    Args:
        logits: float32 [B, max_pages * 64].
        lengths: int32 [B].
        page_table: int32 [B, max_pages].
        topk: How many to keep.
        tile: Scores per program of the first launch, a power of two.
        short: Rows this short take the narrow path, a power of two.

    Returns:
        int32 [B, topk], -1 padded.

    Raises:
        ValueError: The survivors of all tiles exceed what one program can hold (32,768).
    """
    batch, width = logits.shape
    tile = min(tile, triton.next_power_of_2(width))
    short = min(short, tile)
    tiles = -(-width // tile)
    merge = triton.next_power_of_2(tiles * topk)
    if tiles > 1 and merge > MAX_MERGE:
        raise ValueError(
            f"topk: expected at most {MAX_MERGE // triton.next_power_of_2(tiles)} for {width} columns with the "
            f"triton variant, got {topk}; use variant='torch'"
        )
    slots = torch.empty(batch, topk, dtype=torch.int32, device=logits.device)
    # A row that fits one tile never touches the survivors' buffers.
    survivors = (batch, tiles * topk if tiles > 1 else 1)
    kept_score = torch.empty(survivors, dtype=torch.float32, device=logits.device)
    kept_column = torch.empty(survivors, dtype=torch.int32, device=logits.device)
    tile_kernel: Any = _indexer_topk_tile_kernel
    merge_kernel: Any = _indexer_topk_merge_kernel
    if tiles > 1:
        tile_kernel[(tiles, batch)](
            logits, lengths, kept_score, kept_column, width, K=topk, TILE=tile, num_warps=warps_for(tile)
        )
    merge_kernel[(batch,)](
        logits,
        lengths,
        page_table,
        kept_score,
        kept_column,
        slots,
        width,
        tiles,
        K=topk,
        K_SPAN=triton.next_power_of_2(topk),
        TILE=tile,
        SHORT=short,
        MERGE=merge if tiles > 1 else 1,
        num_warps=warps_for(max(tile, merge if tiles > 1 else 1)),
    )
    return slots


def warps_for(span: int) -> int:
    """Warps for a tile held in registers: 32 scores per thread.

    Args:
        span: The tile, a power of two.

    Returns:
        1 to 32.
    """
    return max(1, min(32, span // 1024))
