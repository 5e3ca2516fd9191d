"""Does a step fit into memory? Said before anything is drawn, as drawing takes minutes and may take the host down."""

from __future__ import annotations

import os

import torch

from hta_dsv4.capture.config import C128_PAGE, KV_PAGE, WINDOW, ModelConfig, StepShape
from hta_dsv4.capture.state import CACHE_BUDGET, PAGE_BYTES

_SETS = 2  # of routed experts, in random_weights


def least_bytes(config: ModelConfig, shape: StepShape) -> int:
    """Bytes that a step's tensors take at least: caches, page tables, rotations, routed experts, vocabulary.

    Not counted are dense projections, activations and what an allocator adds, so that nothing that fits is refused.

    Args:
        config: the whole model; ranks draw all of it before each keeps its share.
        shape: requests, context and static maximum.
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
    return window + compressed + tables + rotations + experts + vocabulary


def memory_of(device: str) -> int:
    """Bytes of memory of a device: of the GPU, or of this machine."""
    if device != "cpu":
        return int(torch.cuda.get_device_properties(torch.device(device)).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _pool(used: int) -> int:
    """Pages of a pool, as :func:`~hta_dsv4.capture.caches.page_table` makes it."""
    return used + used // 4 + 1
