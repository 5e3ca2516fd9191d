"""What a server holds between steps, and what it works out once per step: caches, lengths, slots, rotations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dsv4_kernels.indexer import PagedIndexK
from dsv4_kernels.layout import PagedKV

from hta_dsv4.capture.caches import Tables, entry_slots, random_index_pool, random_kv_pool
from hta_dsv4.capture.compressor import CompressorState, random_state
from hta_dsv4.capture.config import WINDOW, LayerKind, StepShape
from hta_dsv4.capture.glue import rope_table
from hta_dsv4.capture.weights import ModelWeights

CACHE_BUDGET = 24 << 30  # bytes; past it, layers of one kind share cache memory in turn
INDEX_PAGE_BYTES = 8_448
PAGE_BYTES = {"swa": 37_440, "c4": 37_440 + INDEX_PAGE_BYTES, "c128": 1_728}  # of c4: entries and index keys


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer remembers: KV pools and compressor states, where its kind has them."""

    swa: PagedKV
    extra: PagedKV | None = None
    index: PagedIndexK | None = None
    state: CompressorState | None = None
    index_state: CompressorState | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """What all layers of a step share; [B, ...] tensors on the device.

    Attributes:
        position: [B] int64, of the token being decoded.
        swa_slots: [B, 1, 128] int32, newest first, -1 past the start; swa_length: [B] int32.
        write_slot: [B] int64, where this token's KV goes.
        c4_length: [B] int32, complete ratio-4 entries; c4_topk_length: [B] int32, at least 1.
        c4_write, c128_write: [B] int64, where an entry closed by this token goes, else the spare slot.
        c128_slots: [B, 1, width] int32, all complete entries, -1 tail; c128_length: [B] int32, at least 1.
        rope: factors at this position per kind of rotary base: ("swa" | "c4"), and at the group's start for
            ("c4 entry" | "c128 entry"); [B, 32] complex64.
    """

    position: torch.Tensor
    swa_slots: torch.Tensor
    swa_length: torch.Tensor
    write_slot: torch.Tensor
    c4_length: torch.Tensor
    c4_topk_length: torch.Tensor
    c4_write: torch.Tensor
    c128_write: torch.Tensor
    c128_slots: torch.Tensor
    c128_length: torch.Tensor
    rope: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Rotation factors by position, [positions, 32] complex64, for both rotary bases and their inverses.

    The inverses are stored: a lazily conjugated table would be resolved by one more launch in every layer.
    """

    swa: torch.Tensor
    swa_inverse: torch.Tensor
    compressed: torch.Tensor
    compressed_inverse: torch.Tensor

    @classmethod
    def up_to(cls, positions: int, device: torch.device) -> RopeTables:
        """Tables for positions below ``positions``."""
        swa, compressed = (rope_table(kind, positions, device) for kind in (LayerKind.SWA, LayerKind.C4))
        return cls(swa, swa.conj().resolve_conj(), compressed, compressed.conj().resolve_conj())


def make_caches(
    layers: tuple[LayerKind, ...],
    weights: ModelWeights,
    tables: Tables,
    batch: int,
    generator: torch.Generator,
) -> tuple[tuple[LayerCache, ...], dict[str, int]]:
    """Caches of every layer, filled as if earlier tokens had been decoded.

    Args:
        layers: kind of each layer.
        weights: whose compressors the partial states belong to.
        tables: page tables shared by all layers.
        batch: requests.
        generator: its device is where the caches live.

    Returns:
        One cache per layer, and per kind how many distinct pools stand behind them (fewer than layers when memory
        would not hold one each).
    """
    per_layer = {
        LayerKind.C4: tables.c4.pool_pages * PAGE_BYTES["c4"],
        LayerKind.C128: tables.c128.pool_pages * PAGE_BYTES["c128"],
    }
    total = sum(layers.count(k) * v for k, v in per_layer.items())
    share = min(1.0, CACHE_BUDGET / max(total, 1))
    sets: dict[str, int] = {}
    pools: dict[LayerKind, list[tuple[PagedKV, PagedIndexK | None]]] = {}
    for kind in per_layer:
        table = tables.c4 if kind is LayerKind.C4 else tables.c128
        count = max(1, int(layers.count(kind) * share))
        sets[kind.value] = count
        pools[kind] = [
            (
                random_kv_pool(table, generator),
                random_index_pool(table, generator) if kind is LayerKind.C4 else None,
            )
            for _ in range(count)
        ]
    caches: list[LayerCache] = []
    seen = dict.fromkeys(LayerKind, 0)
    for kind, w in zip(layers, weights.layers, strict=True):
        swa = random_kv_pool(tables.swa, generator)
        if w.compressor is None:
            caches.append(LayerCache(swa))
            continue
        extra, index = pools[kind][seen[kind] % len(pools[kind])]
        seen[kind] += 1
        index_state = random_state(w.indexer.compressor, batch, generator) if w.indexer else None
        caches.append(
            LayerCache(swa, extra, index, random_state(w.compressor, batch, generator), index_state)
        )
    return tuple(caches), sets


def step_metadata(
    position: torch.Tensor, shape: StepShape, index_topk: int, tables: Tables, rope: RopeTables
) -> Metadata:
    """Work out once per step what every layer needs: slots to read, slots to write, lengths, rotation factors.

    Args:
        position: [B] int64.
        shape: sizes.
        index_topk: entries the indexer selects.
        tables: page tables.
        rope: rotation factors by position.
    """
    seen = position + 1
    back = position[:, None] - torch.arange(WINDOW, device=position.device)
    ring = tables.swa.owned * tables.swa.page_size
    swa = torch.where(back >= 0, entry_slots(tables.swa, back % ring), -1).int()
    c4_length = (seen // 4).int()
    entry = torch.arange(shape.c128_width, device=position.device).expand(position.shape[0], -1)
    c128_seen = seen // 128
    c128 = torch.where(entry < c128_seen[:, None], entry_slots(tables.c128, entry), -1).int()
    writes = {}
    for ratio, table in ((4, tables.c4), (128, tables.c128)):
        closed = (position // ratio)[:, None]
        writes[ratio] = torch.where(seen % ratio == 0, entry_slots(table, closed)[:, 0], table.spare_slot)
    return Metadata(
        position=position,
        swa_slots=swa[:, None],
        swa_length=seen.clamp(max=WINDOW).int(),
        write_slot=entry_slots(tables.swa, (position % ring)[:, None])[:, 0],
        c4_length=c4_length,
        c4_topk_length=c4_length.clamp(1, index_topk),
        c4_write=writes[4],
        c128_write=writes[128],
        c128_slots=c128[:, None],
        c128_length=c128_seen.clamp(min=1).int(),
        rope={
            "swa": rope.swa[position],
            "swa inverse": rope.swa_inverse[position],
            "c4": rope.compressed[position],
            "c4 inverse": rope.compressed_inverse[position],
            "c4 entry": rope.compressed[position // 4 * 4],
            "c128 entry": rope.compressed[position // 128 * 128],
        },
    )
