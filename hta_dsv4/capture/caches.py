"""Paged FP8 caches of one server: scattered pages, stale table tails, and where the next token goes.

All layers share one set of page tables, as in a server; each layer has its own memory until the budget ends,
after which layers of one kind share it in turn. Every pool ends in one spare page that takes the writes of
requests with nothing to write, so that a step needs no branch on device data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from dsv4_kernels.indexer import PagedIndexK, pack_index_k
from dsv4_kernels.layout import PagedKV, pack_kv

from hta_dsv4.capture.config import C128_PAGE, HEAD_DIM, INDEX_DIM, KV_PAGE, WINDOW, StepShape

NOPE = 448  # unrotated channels, stored as e4m3
INDEX_PAGE = 64
_AT_ONCE = 1 << 20  # entries of a pool that are drawn together
_RING = WINDOW // KV_PAGE + 1  # pages that always cover a window of 128 tokens


@dataclass(frozen=True, slots=True)
class PageTable:
    """Which physical pages hold a request's entries.

    Attributes:
        pages: [B, width] int32. Past a request's own pages stand stale ids, as left by earlier requests.
        owned: how many leading columns are the request's own.
        pool_pages: pages of the pool, the spare one included.
        page_size: entries per page.
    """

    pages: torch.Tensor
    owned: int
    pool_pages: int
    page_size: int

    @property
    def spare_slot(self) -> int:
        """First slot of the spare page."""
        return (self.pool_pages - 1) * self.page_size


def page_table(batch: int, owned: int, width: int, page_size: int, generator: torch.Generator) -> PageTable:
    """Scattered pages for ``batch`` requests out of a pool a quarter larger than needed."""
    used = batch * owned
    pool = used + used // 4 + 1
    device = generator.device
    ids = torch.randperm(pool - 1, generator=generator, device=device)[:used].view(batch, owned)
    stale = torch.randint(0, pool - 1, (batch, max(width - owned, 0)), generator=generator, device=device)
    return PageTable(torch.cat([ids, stale], 1).int(), owned, pool, page_size)


@dataclass(frozen=True, slots=True)
class Tables:
    """The three page tables of a step; c4 entries and index keys share one."""

    swa: PageTable
    c4: PageTable
    c128: PageTable


def make_tables(shape: StepShape, generator: torch.Generator) -> Tables:
    """Page tables for a step shape; static widths follow ``max_context``, owned pages ``capacity``."""
    c4_pages = -(-shape.capacity // (4 * KV_PAGE))
    c128_pages = -(-shape.capacity // (128 * C128_PAGE))
    return Tables(
        swa=page_table(shape.batch, _RING, _RING, KV_PAGE, generator),
        c4=page_table(shape.batch, c4_pages, max(shape.index_pages, c4_pages), KV_PAGE, generator),
        c128=page_table(
            shape.batch, c128_pages, max(shape.c128_width // C128_PAGE, c128_pages), C128_PAGE, generator
        ),
    )


def random_kv_pool(table: PageTable, generator: torch.Generator) -> PagedKV:
    """A pool of unit-variance entries, quantised and paged."""

    def some(pages: int) -> torch.Tensor:
        kv = torch.randn((pages * table.page_size, HEAD_DIM), generator=generator, device=generator.device)
        return pack_kv(kv, table.page_size).data

    return PagedKV(_in_parts(some, table), table.page_size)


def random_index_pool(table: PageTable, generator: torch.Generator) -> PagedIndexK:
    """A pool of unit-variance index keys, quantised and paged."""

    def some(pages: int) -> torch.Tensor:
        k = torch.randn((pages * table.page_size, INDEX_DIM), generator=generator, device=generator.device)
        return pack_index_k(k).data

    return PagedIndexK(_in_parts(some, table))


def _in_parts(some: Callable[[int], torch.Tensor], table: PageTable) -> torch.Tensor:
    """Pages of a pool, drawn some at a time: an entry takes ten times its bytes while it is quantised.

    Args:
        some: draws that many pages, [pages, bytes].
        table: whose pool it is.
    """
    at_once = max(1, _AT_ONCE // table.page_size)
    first = some(min(at_once, table.pool_pages))
    if len(first) == table.pool_pages:
        return first
    whole = first.new_empty((table.pool_pages, first.shape[1]))
    whole[: len(first)] = first
    for begin in range(at_once, table.pool_pages, at_once):
        part = some(min(at_once, table.pool_pages - begin))
        whole[begin : begin + len(part)] = part
    return whole


def entry_slots(table: PageTable, entries: torch.Tensor) -> torch.Tensor:
    """Flat slots of entries.

    Args:
        table: page table.
        entries: [B, n] int64 entry numbers, within the table's width.

    Returns:
        [B, n] int64.
    """
    page = table.pages.gather(1, entries // table.page_size)
    return page * table.page_size + entries % table.page_size


def write_kv(pool: PagedKV, slots: torch.Tensor, kv: torch.Tensor) -> None:
    """Quantise one entry per request and store it.

    Scale per 64 channels is ``2 ** ceil(log2(amax / 448))``, kept as one exponent byte in the page's scale section.

    Args:
        pool: destination.
        slots: [B] int64 flat slots; the spare slot for requests that write nothing.
        kv: [B, 512] bf16, rotated.
    """
    nope = kv[:, :NOPE].float().reshape(-1, 7, 64)
    exponent = torch.ceil(torch.log2(nope.abs().amax(-1).clamp_min(1e-4) / 448.0))
    codes = (nope * torch.exp2(-exponent)[..., None]).flatten(1).to(torch.float8_e4m3fn)
    record = torch.cat([codes.view(torch.uint8), kv[:, NOPE:].contiguous().view(torch.uint8)], 1)
    page, slot = slots // pool.page_size, slots % pool.page_size
    pool.records()[page, slot] = record
    pool.scales()[page, slot, :7] = (exponent + 127.0).to(torch.uint8)


def write_index_k(pool: PagedIndexK, slots: torch.Tensor, k: torch.Tensor) -> None:
    """Quantise one index key per request and store it with its FP32 scale.

    Args:
        pool: destination, pages of [64 x 128 e4m3][64 x f32].
        slots: [B] int64 flat slots.
        k: [B, 128] bf16 or f32, rotated.
    """
    data = pool.data
    pages, page_bytes = data.shape
    k = k.float()
    scale = k.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 448.0
    page, slot = slots // INDEX_PAGE, slots % INDEX_PAGE
    codes = (k / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    data.as_strided((pages, INDEX_PAGE, INDEX_DIM), (page_bytes, INDEX_DIM, 1))[page, slot] = codes
    start = data.storage_offset() + INDEX_PAGE * INDEX_DIM
    data.as_strided((pages, INDEX_PAGE, 4), (page_bytes, 4, 1), start)[page, slot] = scale.view(torch.uint8)
