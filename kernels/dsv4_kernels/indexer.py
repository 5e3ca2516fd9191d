"""Which compressed tokens may a decode step attend to? The c4 indexer: scores over the index cache, then top-k.

``score[b, s] = kscale[s] * sum_h weights[b, h] * relu(q[b, h] . k[s])`` over the ``lengths[b]`` entries of a request's
compressed context (one entry per 4 tokens), and the flat cache slots of the ``topk`` best. Two slow forms show what a
torch fallback launches (``indexer_torch``: over the *static* width of the page table, whatever the real lengths);
the Triton forms (``paged_logits``, ``tiled_topk``) cost what the real lengths cost and write nothing past them.

Index cache page (64 entries, 8,448 bytes): ``[64 x 128 bytes e4m3][64 x float32 scale]``, two sections, not
interleaved per entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import _expect
from ._device import launching
from .indexer_torch import logits_torch, topk_torch
from .paged_logits import logits_triton
from .tiled_topk import topk_triton

INDEX_HEADS = 64
INDEX_DIM = 128
PAGE_SIZE = 64
PAGE_BYTES = PAGE_SIZE * (INDEX_DIM + 4)
E4M3_MAX = 448.0

LOGITS_VARIANTS = ("auto", "torch_fp32", "torch_bf16", "triton")
TOPK_VARIANTS = ("auto", "torch", "triton")


@dataclass(frozen=True)
class PagedIndexK:
    """The indexer's paged key cache.

    Attributes:
        data: uint8 [pages, 8448], contiguous, at least one page, starting on a multiple of 16 bytes; 64 x 128 bytes of
            e4m3, then 64 float32 scales.
        page_size: Entries per page; always 64.

    Raises:
        ValueError: ``data`` or ``page_size`` is not what is described here.
    """

    data: torch.Tensor
    page_size: int = PAGE_SIZE

    def __post_init__(self) -> None:
        if self.page_size != PAGE_SIZE:
            raise ValueError(f"page_size: expected {PAGE_SIZE} for the index cache, got {self.page_size}")
        pages, _ = _expect.tensor("data", self.data, torch.uint8, ("pages", PAGE_BYTES))
        _expect.that(pages > 0, "data", "at least one page", pages)
        # Read as float32 and 16 bytes at a time: a view into the middle of something else would fault.
        offset = self.data.data_ptr() % 16
        _expect.that(offset == 0, "data", "an address that is a multiple of 16", f"address % 16 = {offset}")


def pack_index_k(k: torch.Tensor) -> PagedIndexK:
    """Quantise keys to e4m3 with one float32 scale each and lay them out in pages.

    Args:
        k: Floating point [tokens, 128], finite. The last page's missing entries are zero bytes (scale 0).

    Returns:
        The cache; entry i is slot i (page ``i // 64``, place ``i % 64``).

    Raises:
        ValueError: ``k`` has another shape or dtype, no rows, or a value that float32 cannot hold.
    """
    tokens, _ = _expect.tensor(
        "k", k, (torch.float32, torch.bfloat16, torch.float16, torch.float64), ("tokens", INDEX_DIM)
    )
    if tokens == 0:
        raise ValueError("k: expected at least one row, got shape [0, 128]")
    _expect.finite("k", k)
    pages = -(-tokens // PAGE_SIZE)
    values = k.float()
    scales = values.abs().amax(dim=1).clamp_min(1e-4) / E4M3_MAX
    codes = (values / scales[:, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    data = torch.zeros(pages, PAGE_BYTES, dtype=torch.uint8, device=k.device)
    padded = torch.zeros(pages * PAGE_SIZE, INDEX_DIM, dtype=torch.uint8, device=k.device)
    padded[:tokens] = codes
    padded_scales = torch.zeros(pages * PAGE_SIZE, dtype=torch.float32, device=k.device)
    padded_scales[:tokens] = scales
    data[:, : PAGE_SIZE * INDEX_DIM] = padded.view(pages, PAGE_SIZE * INDEX_DIM)
    data[:, PAGE_SIZE * INDEX_DIM :] = padded_scales.view(torch.uint8).view(pages, PAGE_SIZE * 4)
    return PagedIndexK(data)


def unpack_index_k(cache: PagedIndexK) -> torch.Tensor:
    """The keys a cache holds, dequantised.

    Args:
        cache: The cache.

    Returns:
        float32 [pages * 64, 128].
    """
    pages = cache.data.shape[0]
    codes = cache.data[:, : PAGE_SIZE * INDEX_DIM].contiguous().view(torch.float8_e4m3fn)
    scales = cache.data[:, PAGE_SIZE * INDEX_DIM :].contiguous().view(torch.float32)
    keys = codes.float().view(pages, PAGE_SIZE, INDEX_DIM) * scales[:, :, None]
    return keys.view(pages * PAGE_SIZE, INDEX_DIM)


def indexer_logits(
    q: torch.Tensor,
    cache: PagedIndexK,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    variant: str = "auto",
    chunk: int | None = None,
) -> torch.Tensor:
    """Score every index entry of every request.

    Args:
        q: e4m3 or bfloat16 [B, 64, 128]; any q scale is folded into ``weights``.
        cache: The paged keys.
        weights: float32 [B, 64], one per head; may be negative.
        page_table: int32 [B, max_pages]; the entries past a request's length may hold -1 or anything that is a page.
            Checked on the CPU only.
        lengths: int32 [B], valid entries per request; less than 0 counts as 0, more than ``max_pages * 64`` as that.
        variant: ``"torch_fp32"`` and ``"torch_bf16"`` are the fallback's launch sequence over the full static width;
            ``"triton"`` is one launch whose cost follows ``lengths``; ``"auto"`` is triton on CUDA, else torch_fp32.
        chunk: The torch forms work on this many requests at a time, to bound memory (132 + 512 to 1,300 bytes per
            request and entry); None is all at once.

    Returns:
        float32 [B, max_pages * 64]. At and past a request's length the torch forms hold -inf and the Triton form
        holds **whatever the memory held**: pass ``lengths`` to whatever reads it.

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, LOGITS_VARIANTS)
    _expect.instance("cache", cache, PagedIndexK)
    batch, _, _ = _expect.tensor(
        "q", q, (torch.float8_e4m3fn, torch.bfloat16), ("B", INDEX_HEADS, INDEX_DIM), device=cache.data.device
    )
    _expect.tensor("weights", weights, torch.float32, (batch, INDEX_HEADS), device=q.device)
    _, max_pages = _expect.tensor(
        "page_table", page_table, torch.int32, (batch, "max_pages"), device=q.device
    )
    _expect.tensor("lengths", lengths, torch.int32, (batch,), device=q.device)
    if chunk is not None:
        _expect.count("chunk", chunk)
    if batch == 0 or max_pages == 0:
        raise ValueError(
            f"page_table: expected at least one request and one page, got [{batch}, {max_pages}]"
        )
    _check_pages(page_table, lengths, cache.data.shape[0])
    chosen = _expect.fast_form(variant, "triton", "torch_fp32", q.device)
    if chosen == "triton":
        with launching(q):
            return logits_triton(q, cache.data, weights, page_table, lengths)
    dtype = torch.float32 if chosen == "torch_fp32" else torch.bfloat16
    return logits_torch(q, cache.data, weights, page_table, lengths, dtype, chunk)


def _check_pages(page_table: torch.Tensor, lengths: torch.Tensor, pages: int) -> None:
    """On the CPU: -1 only where no entry is read, and nothing past the pool anywhere."""
    _expect.ids("page_table", page_table, pages, low=-1)
    if page_table.device.type == "cpu":
        first = torch.arange(page_table.shape[1])[None, :] * PAGE_SIZE
        _expect.ids("page_table below lengths", page_table[first < lengths[:, None]], pages)


def indexer_topk(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    topk: int,
    *,
    variant: str = "auto",
) -> torch.Tensor:
    """The cache slots of each request's ``topk`` highest scores.

    Args:
        logits: float32 [B, max_pages * 64]; nothing at or past a request's length is read as a score. A score of -inf
            is the lowest for the Triton form and none for the torch form; NaN ranks anywhere.
        lengths: int32 [B].
        page_table: int32 [B, max_pages].
        topk: How many to keep; 512 (Flash) or 1024 (Pro), any positive number works up to what the Triton form can
            hold (32,768, over the tiles of a row together).
        variant: ``"torch"`` is the fallback's launch sequence around ``torch.topk``; ``"triton"`` selects exactly,
            costing by real length; ``"auto"`` is triton on CUDA, else torch.

    Returns:
        int32 [B, topk] of flat slots ``page_table[b, s >> 6] << 6 | s & 63``, each at most once, in no promised
        order, then -1. A request with ``length <= topk`` gets entries 0 .. length-1 in order. Between equal scores
        at the threshold either may be taken.

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, TOPK_VARIANTS)
    batch, max_pages = _expect.tensor("page_table", page_table, torch.int32, ("B", "max_pages"))
    if batch == 0 or max_pages == 0:
        raise ValueError(
            f"page_table: expected at least one request and one page, got [{batch}, {max_pages}]"
        )
    _expect.tensor("logits", logits, torch.float32, (batch, max_pages * PAGE_SIZE), device=page_table.device)
    _expect.tensor("lengths", lengths, torch.int32, (batch,), device=page_table.device)
    _expect.count("topk", topk)
    if _expect.fast_form(variant, "triton", "torch", logits.device) == "triton":
        with launching(logits):
            return topk_triton(logits, lengths, page_table, topk)
    return topk_torch(logits, lengths, page_table, topk)
