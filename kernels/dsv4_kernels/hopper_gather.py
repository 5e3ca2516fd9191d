"""Which piece the producing warps of the Hopper form work on when: the loops around :mod:`hopper_produce`."""

# ruff: noqa: SIM113
# (Triton compiles no enumerate.)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsv4_kernels.hopper_produce import dependency_wait, fetch, load_slots, prefetch, publish


@gluon.jit
def gather_64(
    words: gl.shared_memory_descriptor, bias_smem: gl.shared_memory_descriptor, full: gl.shared_memory_descriptor,
    empty: gl.shared_memory_descriptor, first: gl.tensor, blocks: gl.tensor, step: gl.tensor, main_blocks: gl.tensor,
    kv_ptr: gl.tensor, page_stride: gl.tensor, index_ptr: gl.tensor, length: gl.tensor, extra_kv_ptr: gl.tensor,
    extra_page_stride: gl.tensor, extra_index_ptr: gl.tensor, extra_length: gl.tensor,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr, BUFFERS: gl.constexpr,
    PREFETCH: gl.constexpr, HELPED: gl.constexpr,
) -> None:  # fmt: skip
    """Blocks of 64 tokens, ``first, first + step, ...``: two pieces each, one of each kind always in flight.

    With ``HELPED`` the second piece of the first block is :func:`help_first`'s. ``PREFETCH`` counts how many blocks
    ahead of the one being written L2 is asked for; 0 for not at all.
    """
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    LINES: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [4, 1], [1, 0])
    # Helped, the loop starts a block later, and the second pieces' loads with it.
    LATER: gl.constexpr = 1 if HELPED else 0
    dependency_wait()
    low = gl.arange(0, 32, gl.SliceLayout(1, WORDS))
    high = low + 32
    every = gl.arange(0, 64, gl.SliceLayout(1, LINES))
    slots_a = load_slots(
        first, low, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
    )
    block_b = first + LATER * step
    slots_b = load_slots(
        block_b, high, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
    )
    raw_a, codes_a = fetch(
        slots_a, first >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
        EXTRA_PAGE_SIZE, WORDS,
    )  # fmt: skip
    valid_a = slots_a >= 0
    raw_b, codes_b = fetch(
        slots_b, block_b >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
        EXTRA_PAGE_SIZE, WORDS,
    )  # fmt: skip
    valid_b = slots_b >= 0
    following = first + step
    slots_a = load_slots(
        following, low, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
    )
    block_b += step
    slots_b = load_slots(
        block_b, high, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
    )
    if PREFETCH > 0:
        distant = following
        far = load_slots(
            distant, every, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
        )
        for _ in gl.static_range(1, PREFETCH):
            beyond = load_slots(
                distant + step,
                every,
                main_blocks,
                index_ptr,
                length,
                extra_index_ptr,
                extra_length,
                HAS_EXTRA,
                64,
            )
            prefetch(
                distant, far, main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
                EXTRA_PAGE_SIZE, LINES,
            )  # fmt: skip
            far = beyond
            distant += step
    i = 0
    start = first
    if HELPED:
        if first < blocks:
            publish(words.index(0).slice(0, 32, dim=0), bias_smem.index(0).slice(0, 32), full.index(0),
                    raw_a, codes_a, valid_a)  # fmt: skip
            raw_a, codes_a = fetch(
                slots_a, following >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
                PAGE_SIZE, EXTRA_PAGE_SIZE, WORDS,
            )  # fmt: skip
            valid_a = slots_a >= 0
            slots_a = load_slots(
                following + step,
                low,
                main_blocks,
                index_ptr,
                length,
                extra_index_ptr,
                extra_length,
                HAS_EXTRA,
                64,
            )
        i = 1
        start = following
    for block in range(start, blocks, step):
        buffer = i % BUFFERS
        following = block + step
        mbarrier.wait(empty.index(buffer), ((i // BUFFERS) & 1) ^ 1)
        tile = words.index(buffer)
        bias = bias_smem.index(buffer)
        if PREFETCH > 0:
            distant = block + (PREFETCH - LATER) * step
            beyond = load_slots(
                distant + step,
                every,
                main_blocks,
                index_ptr,
                length,
                extra_index_ptr,
                extra_length,
                HAS_EXTRA,
                64,
            )
            prefetch(
                distant, far, main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
                EXTRA_PAGE_SIZE, LINES,
            )  # fmt: skip
            far = beyond
        publish(tile.slice(0, 32, dim=0), bias.slice(0, 32), full.index(buffer), raw_a, codes_a, valid_a)
        raw_a, codes_a = fetch(
            slots_a, following >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
            PAGE_SIZE, EXTRA_PAGE_SIZE, WORDS,
        )  # fmt: skip
        valid_a = slots_a >= 0
        slots_a = load_slots(
            following + step,
            low,
            main_blocks,
            index_ptr,
            length,
            extra_index_ptr,
            extra_length,
            HAS_EXTRA,
            64,
        )
        publish(tile.slice(32, 32, dim=0), bias.slice(32, 32), full.index(buffer), raw_b, codes_b, valid_b)
        raw_b, codes_b = fetch(
            slots_b, following >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
            PAGE_SIZE, EXTRA_PAGE_SIZE, WORDS,
        )  # fmt: skip
        valid_b = slots_b >= 0
        slots_b = load_slots(
            following + step,
            high,
            main_blocks,
            index_ptr,
            length,
            extra_index_ptr,
            extra_length,
            HAS_EXTRA,
            64,
        )
        i += 1


@gluon.jit
def help_first(
    words: gl.shared_memory_descriptor, bias_smem: gl.shared_memory_descriptor, full: gl.shared_memory_descriptor,
    first: gl.tensor, blocks: gl.tensor, main_blocks: gl.tensor,
    kv_ptr: gl.tensor, page_stride: gl.tensor, index_ptr: gl.tensor, length: gl.tensor, extra_kv_ptr: gl.tensor,
    extra_page_stride: gl.tensor, extra_index_ptr: gl.tensor, extra_length: gl.tensor,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
) -> None:  # fmt: skip
    """The second piece of the first block, made by four warps that have nothing to do yet."""
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    dependency_wait()
    if first < blocks:
        high = 32 + gl.arange(0, 32, gl.SliceLayout(1, WORDS))
        slots = load_slots(
            first, high, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 64
        )
        raw, codes = fetch(
            slots, first >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
            EXTRA_PAGE_SIZE, WORDS,
        )  # fmt: skip
        publish(words.index(0).slice(32, 32, dim=0), bias_smem.index(0).slice(32, 32), full.index(0),
                raw, codes, slots >= 0)  # fmt: skip


@gluon.jit
def gather_32(
    words: gl.shared_memory_descriptor, bias_smem: gl.shared_memory_descriptor, full: gl.shared_memory_descriptor,
    empty: gl.shared_memory_descriptor, first: gl.tensor, blocks: gl.tensor, step: gl.tensor, main_blocks: gl.tensor,
    kv_ptr: gl.tensor, page_stride: gl.tensor, index_ptr: gl.tensor, length: gl.tensor, extra_kv_ptr: gl.tensor,
    extra_page_stride: gl.tensor, extra_index_ptr: gl.tensor, extra_length: gl.tensor,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr, BUFFERS: gl.constexpr,
) -> None:  # fmt: skip
    """Blocks of 32 tokens, ``first, first + step, ...``: a piece each, the next one's loads in flight."""
    WORDS: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    dependency_wait()
    token = gl.arange(0, 32, gl.SliceLayout(1, WORDS))
    following = first + step
    here = load_slots(
        first, token, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 32
    )
    there = load_slots(
        following, token, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 32
    )
    raw, codes = fetch(
        here, first >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
        EXTRA_PAGE_SIZE, WORDS,
    )  # fmt: skip
    next_raw, next_codes = fetch(
        there, following >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
        EXTRA_PAGE_SIZE, WORDS,
    )  # fmt: skip
    valid = here >= 0
    next_valid = there >= 0
    slots = load_slots(
        following + step, token, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, 32
    )
    i = 0
    for block in range(first, blocks, step):
        buffer = i % BUFFERS
        mbarrier.wait(empty.index(buffer), ((i // BUFFERS) & 1) ^ 1)
        publish(words.index(buffer), bias_smem.index(buffer), full.index(buffer), raw, codes, valid)
        raw = next_raw
        codes = next_codes
        valid = next_valid
        following = block + 2 * step
        next_raw, next_codes = fetch(
            slots, following >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
            PAGE_SIZE, EXTRA_PAGE_SIZE, WORDS,
        )  # fmt: skip
        next_valid = slots >= 0
        slots = load_slots(
            following + step,
            token,
            main_blocks,
            index_ptr,
            length,
            extra_index_ptr,
            extra_length,
            HAS_EXTRA,
            32,
        )
        i += 1
