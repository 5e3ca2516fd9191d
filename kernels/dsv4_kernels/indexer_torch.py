"""What does the indexer cost without a kernel of its own? The torch fallback, launch for launch.

This is the "before" of a profile, so it does what such fallbacks do, no worse and no better: under CUDA graphs a
length cannot be read on the host, so every operation runs over the full static width of the page table
(``max_pages * 64``, a quarter of the maximum context), converts the whole gathered cache to the product's dtype, and
writes out the [B, width, 64] scores between each pair of elementwise operations. Bytes per entry and call in float32:
gather 132 read + 132 written, two copies of the same, convert 128 + 512, product 512 + 256, relu, times weights
256 + 256 each, sum over heads 256 + 4, and a handful of 4-byte passes: about 3.2 KB where a fused kernel needs 136 B.
"""

from __future__ import annotations

import torch

_PAGE = 64
_DIM = 128
_NEG_INF = float("-inf")


def logits_torch(
    q: torch.Tensor,
    data: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    dtype: torch.dtype,
    chunk: int | None,
) -> torch.Tensor:
    """Score all static columns with torch operations.

    Args:
        q: e4m3 or bfloat16 [B, 64, 128].
        data: uint8 [pages, 8448].
        weights: float32 [B, 64].
        page_table: int32 [B, max_pages].
        lengths: int32 [B].
        dtype: float32 or bfloat16: what keys and queries are converted to, and the product's output dtype.
        chunk: Requests at a time, None for all.

    Returns:
        float32 [B, max_pages * 64], -inf at and past each length.
    """
    batch = q.shape[0]
    step = batch if chunk is None else chunk
    if step >= batch:
        return _logits_rows(q, data, weights, page_table, lengths, dtype)
    rows = [
        _logits_rows(
            q[i : i + step],
            data,
            weights[i : i + step],
            page_table[i : i + step],
            lengths[i : i + step],
            dtype,
        )
        for i in range(0, batch, step)
    ]
    return torch.cat(rows)


def _logits_rows(
    q: torch.Tensor,
    data: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    batch, max_pages = page_table.shape
    width = max_pages * _PAGE
    pages = data[page_table]
    keys = pages[..., : _PAGE * _DIM].contiguous().view(torch.float8_e4m3fn)
    keys = keys.view(batch, width, _DIM).to(dtype)
    scales = pages[..., _PAGE * _DIM :].contiguous().view(torch.float32).view(batch, width)
    score = torch.bmm(keys, q.to(dtype).transpose(1, 2))
    score = torch.relu(score)
    score = score * weights[:, None, :]
    score = score.sum(dim=2)
    score = score * scales
    logits = score.new_full((batch, width), _NEG_INF)
    logits[:, :width].copy_(score)
    columns = torch.arange(width, device=q.device)
    return logits.masked_fill_(columns[None, :] >= lengths[:, None], _NEG_INF)


def topk_torch(
    logits: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, topk: int
) -> torch.Tensor:
    """Select with ``torch.topk`` and turn columns into cache slots, one elementwise launch at a time.

    Args:
        logits: float32 [B, max_pages * 64].
        lengths: int32 [B].
        page_table: int32 [B, max_pages].
        topk: How many to keep.

    Returns:
        int32 [B, topk], -1 padded.
    """
    batch, width = logits.shape
    keep = min(topk, width)
    slots = torch.full((batch, topk), -1, dtype=torch.int32, device=logits.device)
    columns = torch.arange(width, device=logits.device)
    scores = logits.clone()
    scores.masked_fill_(columns[None, :] >= lengths[:, None], _NEG_INF)
    picked = torch.topk(scores, keep, dim=1, sorted=False).indices
    valid = scores.gather(1, picked) != _NEG_INF
    in_order = torch.arange(keep, device=logits.device)[None, :]
    short = lengths[:, None] <= topk
    picked = torch.where(short, in_order, picked)
    valid = torch.where(short, in_order < lengths[:, None], valid)
    picked = torch.where(valid, picked, 0)
    page = page_table.gather(1, picked >> 6)
    flat = (page << 6) | (picked & 63).to(torch.int32)
    flat.masked_fill_(~valid, -1)
    slots[:, :keep].copy_(flat)
    return slots
