"""Does a step fit into memory? Said before anything is drawn, as drawing takes minutes and may take the host down."""

from __future__ import annotations

import os

import torch

from hta_dsv4.capture.config import (
    C128_PAGE,
    HEAD_DIM,
    INDEX_DIM,
    KV_PAGE,
    WINDOW,
    LayerKind,
    ModelConfig,
    StepShape,
)
from hta_dsv4.capture.state import CACHE_BUDGET, INDEX_PAGE_BYTES, PAGE_BYTES

_SETS = 2  # of routed experts, in random_weights


_SCORED = {"torch_fp32": (512, 4 + 4), "torch_bf16": (256, 2 + 4), "triton": (0, 0)}
"""Per request and static column of the indexer: bytes of its key, and of a head's score before and after a product."""


def least_bytes(config: ModelConfig, shape: StepShape, indexer: str = "triton") -> int:
    """Bytes that a step's tensors take at least.

    Counted are caches, compressors' states, page tables, rotations, routed experts, vocabulary, and what the torch
    forms of the indexer score over the static width. Not counted are dense projections, other activations and what an
    allocator adds, so that nothing that fits is refused. On an H200 torch allocated 1.02 to 1.15 times this at the most
    (flash, context 4,096, GB):

    | variant | C | static maximum | said | built | at the most |
    | --- | --- | --- | --- | --- | --- |
    | split_k | 32 | 1M | 19.5 | 11.2 | 20.9 |
    | split_k | 256 | 1M | 96.3 | 20.0 | 98.1 |
    | tuned | 32 | 1M | 9.8 | 11.2 | 11.3 |
    | tuned | 256 | 1M | 18.7 | 20.0 | 20.6 |
    | tuned | 4,096 | 64k | 104.9 | 109.4 | 118.1 |

    Args:
        config: the whole model; ranks draw all of it before each keeps its share.
        shape: requests, context and static maximum.
        indexer: its form, of :class:`~hta_dsv4.capture.switches.Switches`.
    """
    window = _pool(shape.batch * (WINDOW // KV_PAGE + 1)) * PAGE_BYTES["swa"] * len(config.layers)
    one_each = {
        "c4": _pool(shape.batch * -(-shape.capacity // (4 * KV_PAGE))) * PAGE_BYTES["c4"],
        "c128": _pool(shape.batch * -(-shape.capacity // (128 * C128_PAGE))) * PAGE_BYTES["c128"],
    }
    every = sum(pages * sum(k.value == kind for k in config.layers) for kind, pages in one_each.items())
    # past the budget layers share; counts are rounded down, so a budget may stay unused by one pool of each kind
    compressed = min(every, max(CACHE_BUDGET - sum(one_each.values()), sum(one_each.values())))
    tables = 4 * shape.batch * (shape.index_pages + shape.c128_width // C128_PAGE)
    rotations = 4 * 8 * 32 * shape.capacity
    experts = _SETS * config.experts * 3 * config.hidden * config.moe_inter // 2
    vocabulary = 2 * 2 * config.vocab * config.hidden
    key, score = _SCORED[indexer]
    pages = INDEX_PAGE_BYTES // KV_PAGE if key else 0
    scored = shape.batch * shape.index_pages * KV_PAGE * (pages + key + config.index_heads * score)
    return (
        window
        + compressed
        + _states(config, shape.batch)
        + tables
        + rotations
        + experts
        + vocabulary
        + scored
    )


def _states(config: ModelConfig, batch: int) -> int:
    """Partial groups of the compressors, keys and scores in FP32: two of ratio 4, of twice the channels, one of 128."""
    c4 = 2 * 4 * (2 * 4) * (2 * HEAD_DIM + 2 * INDEX_DIM)
    c128 = 2 * 4 * 128 * HEAD_DIM
    return batch * (config.count(LayerKind.C4) * c4 + config.count(LayerKind.C128) * c128)


def memory_of(device: str) -> int:
    """Bytes of memory of a device: of the GPU, or of this machine."""
    if device != "cpu":
        return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _pool(used: int) -> int:
    """Pages of a pool, as :func:`~hta_dsv4.capture.caches.page_table` makes it."""
    return used + used // 4 + 1
