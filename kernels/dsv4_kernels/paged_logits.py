"""What do the indexer's scores cost when only real entries are read? One launch over the paged cache.

Each program takes an even share of one request's *real* pages, worked out on the device from its length, so the grid
is a function of static shapes and the SM count (one CUDA graph fits all lengths), programs without a share leave at
once, and nothing at or past the length is read or written: 132 bytes in and 4 out per entry.

Keys are the dot's M side and heads its N side: the sum over heads then stays within four threads (two shuffles)
instead of crossing warps.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from ._device import num_sms, operand

_HEADS = 64
_DIM = 128
_PAGE_BYTES = 8448

# Programs per SM over the whole batch, more than are resident at once (4 by registers): with just as many, the slowest
# are waited for. H200, B 32, us at 32,768 / 262,144 entries: 4: 43.4 / 429, 8: 43.6 / 300, 12: 45.9 / 335,
# 16: 45.7 / 302.
PROGRAMS_PER_SM = 8
# 64 entries: 49.5 / 304; 3 stages: 44.8 / 301.
BLOCK_S = 128
NUM_WARPS = 4
NUM_STAGES = 2


@triton.jit
def _indexer_logits_kernel(
    q_ptr: tl.tensor,
    key_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    table_ptr: tl.tensor,
    lengths_ptr: tl.tensor,
    out_ptr: tl.tensor,
    max_pages: tl.tensor,
    BLOCK_S: tl.constexpr,
    STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
) -> None:
    split = tl.program_id(0)
    row = tl.program_id(1)
    length = tl.minimum(tl.load(lengths_ptr + row), max_pages * 64)
    blocks = tl.cdiv(length, BLOCK_S)
    share = tl.cdiv(blocks, tl.num_programs(0))
    first = split * share
    last = tl.minimum(first + share, blocks)
    if first >= last:
        return
    head = tl.arange(0, 64)
    dim = tl.arange(0, 128)
    q = tl.load(q_ptr + row * 8192 + head[None, :] * 128 + dim[:, None]).to(OPERAND)
    weights = tl.load(weights_ptr + row * 64 + head)
    table_ptr += row.to(tl.int64) * max_pages
    out_ptr += row.to(tl.int64) * max_pages * 64
    for block in tl.range(first, last, num_stages=STAGES):
        entry = block * BLOCK_S + tl.arange(0, BLOCK_S)
        valid = entry < length
        page = tl.load(table_ptr + entry // 64, mask=valid, other=0).to(tl.int64)
        place = entry % 64
        start = page * 8448 + place * 128
        # Unmasked in the entry: every slot of a page is readable, and the store drops what lies past the length.
        keys = tl.load(key_ptr + start[:, None] + dim[None, :]).to(OPERAND)
        scale = tl.load(scale_ptr + page * 2112 + 2048 + place)
        score = tl.dot(keys, q)
        logit = tl.sum(tl.maximum(score, 0.0) * weights[None, :], axis=1) * scale
        tl.store(out_ptr + entry, logit, mask=valid)


def logits_splits(batch: int, max_pages: int, sms: int) -> int:
    """Programs per request: as many as fill the device, a function of static shapes alone.

    Args:
        batch: Requests.
        max_pages: The page table's width; more programs than pages have nothing to do.
        sms: Streaming multiprocessors.

    Returns:
        At least 1.
    """
    return max(1, min(max_pages * 64 // BLOCK_S, -(-PROGRAMS_PER_SM * sms // batch)))


def logits_triton(
    q: torch.Tensor,
    data: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Launch the paged scorer; arguments as in ``indexer.indexer_logits``, which has checked them.

    An e4m3 query is multiplied as e4m3 on the tensor cores, a bfloat16 query against keys converted to bfloat16.
    On Hopper an e4m3 product is accumulated with fewer bits than float32 (about 14); other parts hold float32.

    Args:
        q: e4m3 or bfloat16 [B, 64, 128].
        data: uint8 [pages, 8448].
        weights: float32 [B, 64].
        page_table: int32 [B, max_pages].
        lengths: int32 [B].

    Returns:
        float32 [B, max_pages * 64], written below each length only.
    """
    batch, max_pages = page_table.shape
    out = torch.empty(batch, max_pages * 64, dtype=torch.float32, device=q.device)
    fp8 = q.dtype == torch.float8_e4m3fn
    kernel: Any = _indexer_logits_kernel
    kernel[(logits_splits(batch, max_pages, num_sms(q)), batch)](
        q,
        data.view(torch.float8_e4m3fn),
        data.view(torch.float32),
        weights,
        page_table,
        lengths,
        out,
        max_pages,
        BLOCK_S=BLOCK_S,
        STAGES=NUM_STAGES,
        OPERAND=operand(tl.float8e4nv if fp8 else tl.bfloat16),
        num_warps=NUM_WARPS,
    )
    return out
