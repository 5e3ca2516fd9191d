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
CHUNK = 4096
MAX_MERGE = 32768

_LOWEST = tl.constexpr(-2147483648)


@triton.jit
def _keys(score: tl.tensor, valid: tl.tensor) -> tl.tensor:
    """Integers in the floats' order (negative floats' bits run backwards); the lowest integer where not valid."""
    bits = score.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    # Only one NaN pattern maps to the lowest integer; it joins its neighbour, so that key > lowest means valid.
    return tl.where(valid, tl.maximum(key, _LOWEST + 1), _LOWEST)


@triton.jit
def _kth_largest(key: tl.tensor, k: tl.tensor) -> tl.tensor:
    """A value with at least ``k`` keys at or above it and fewer than ``k`` above it, or exactly ``k`` at or above."""
    high = tl.max(key, axis=0)
    low = tl.min(tl.where(key == _LOWEST, high, key), axis=0)
    while low < high:
        # The mean rounded up without overflow: low < middle <= high.
        middle = (low | high) - ((low ^ high) >> 1)
        above = tl.sum((key >= middle).to(tl.int32), axis=0)
        low = tl.where(above >= k, middle, low)
        high = tl.where(above == k, middle, tl.where(above > k, high, middle - 1))
    return low


@triton.jit
def _read(
    logits_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    item: tl.tensor,
    length: tl.tensor,
    K: tl.constexpr,
    TILE: tl.constexpr,
    INDIRECT: tl.constexpr,
) -> tl.tensor:
    """Columns and keys of items: scores of the row itself, or of the survivors that ``kept_ptr`` lists."""
    if INDIRECT:
        # A tile keeps min(K, its entries); the places after that hold whatever the memory held.
        valid = (item // K) * TILE + item % K < length
        column = (item // K) * TILE + tl.load(kept_ptr + item, mask=valid, other=0)
    else:
        valid = item < length
        column = item
    return column, _keys(tl.load(logits_ptr + column, mask=valid, other=0.0), valid)


@triton.jit
def _select(
    logits_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    table_ptr: tl.tensor,
    out_ptr: tl.tensor,
    length: tl.tensor,
    K: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    CHUNK: tl.constexpr,
    INDIRECT: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """Write the columns of the K largest of at most SPAN scores (all, if there are fewer), or their cache slots."""
    _, every = _read(logits_ptr, kept_ptr, tl.arange(0, SPAN), length, K, TILE, INDIRECT)
    threshold = _LOWEST
    total = tl.sum((every > threshold).to(tl.int32), axis=0)
    if total > K:
        threshold = _kth_largest(every, K)
        total = tl.sum((every > threshold).to(tl.int32), axis=0)
    # The search leaves one number. Scores are read again by chunks (they sit in L1 or L2): holding all of them, their
    # places and the stores' addresses at once takes more than the 128 registers a thread has, and spills.
    above_before = 0
    equal_before = total
    for start in range(0, SPAN, CHUNK):
        column, key = _read(logits_ptr, kept_ptr, start + tl.arange(0, CHUNK), length, K, TILE, INDIRECT)
        above = (key > threshold).to(tl.int32)
        equal = ((key == threshold) & (key != _LOWEST)).to(tl.int32)
        both = tl.cumsum(above + (equal << 16), axis=0)
        place = tl.where(above != 0, above_before + (both & 0xFFFF), equal_before + (both >> 16)) - 1
        keep = ((above | equal) != 0) & (place < K)
        if SLOTS:
            page = tl.load(table_ptr + (column >> 6), mask=keep, other=0)
            column = (page << 6) | (column & 63)
        tl.store(out_ptr + place, column, mask=keep)
        above_before += tl.sum(above, axis=0)
        equal_before += tl.sum(equal, axis=0)


# ``width`` and the like unspecialised: rows then count as unaligned and are read one score per thread, in the layout
# the scattered stores want; otherwise 64-bit addresses of every score go through shared memory between the two.
@triton.jit(do_not_specialize=["width"])
def _indexer_topk_tile_kernel(
    logits_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    width: tl.tensor,
    K: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    start = tl.program_id(0) * TILE
    row = tl.program_id(1)
    length = tl.minimum(tl.load(lengths_ptr + row), width)
    if (length <= TILE) | (start >= length):
        return
    # The survivors' columns are stored within the tile; the merge adds its start.
    logits_ptr += row.to(tl.int64) * width + start
    kept_ptr += (row.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * K
    _select(logits_ptr, kept_ptr, kept_ptr, kept_ptr, length - start, K, TILE, TILE, CHUNK, False, False)


@triton.jit(do_not_specialize=["width", "kept_stride"])
def _indexer_topk_merge_kernel(
    logits_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    table_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    width: tl.tensor,
    kept_stride: tl.tensor,
    K: tl.constexpr,
    K_SPAN: tl.constexpr,
    TILE: tl.constexpr,
    SHORT: tl.constexpr,
    MERGE: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    length = tl.minimum(tl.load(lengths_ptr + row), width)
    table_ptr += row.to(tl.int64) * (width // 64)
    slots_ptr += row.to(tl.int64) * K
    logits_ptr += row.to(tl.int64) * width
    kept_ptr += row.to(tl.int64) * kept_stride
    if length <= K:
        place = tl.arange(0, K_SPAN)
        page = tl.load(table_ptr + (place >> 6), mask=place < length, other=0)
        slot = tl.where(place < length, (page << 6) | (place & 63), -1)
        tl.store(slots_ptr + place, slot, mask=place < K)
    elif length <= SHORT:
        _select(logits_ptr, kept_ptr, table_ptr, slots_ptr, length, K, TILE, SHORT, CHUNK, False, True)
    elif length <= TILE:
        _select(logits_ptr, kept_ptr, table_ptr, slots_ptr, length, K, TILE, TILE, CHUNK, False, True)
    else:
        _select(logits_ptr, kept_ptr, table_ptr, slots_ptr, length, K, TILE, MERGE, CHUNK, True, True)


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
    if max(merge if tiles > 1 else 1, triton.next_power_of_2(topk)) > MAX_MERGE:
        raise ValueError(
            f"topk: expected at most {MAX_MERGE // triton.next_power_of_2(tiles)} for {width} columns with the "
            f"triton variant, got {topk}; use variant='torch'"
        )
    slots = torch.empty(batch, topk, dtype=torch.int32, device=logits.device)
    # A row that fits one tile never touches the survivors' columns.
    survivors = (batch, tiles * topk if tiles > 1 else 1)
    kept = torch.empty(survivors, dtype=torch.int32, device=logits.device)
    tile_kernel: Any = _indexer_topk_tile_kernel
    merge_kernel: Any = _indexer_topk_merge_kernel
    if tiles > 1:
        tile_kernel[(tiles, batch)](
            logits, lengths, kept, width, K=topk, TILE=tile, CHUNK=min(CHUNK, tile), num_warps=warps_for(tile)
        )
    merge_kernel[(batch,)](
        logits,
        lengths,
        page_table,
        kept,
        slots,
        width,
        tiles * topk,
        K=topk,
        K_SPAN=triton.next_power_of_2(topk),
        TILE=tile,
        SHORT=short,
        MERGE=merge if tiles > 1 else tile,
        CHUNK=min(CHUNK, short),
        num_warps=warps_for(max(tile, merge if tiles > 1 else 1)),
    )
    return slots


def warps_for(span: int) -> int:
    """Warps for a tile held in registers: 16 scores per thread.

    Args:
        span: The tile, a power of two.

    Returns:
        1 to 32.
    """
    return max(1, min(32, span // 1024))
