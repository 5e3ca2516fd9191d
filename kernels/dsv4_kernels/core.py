"""The device code the MMA kernels share: walk token blocks of both scopes and attend to them.

A program owns ``BLOCK_H`` heads of one row and walks blocks of ``BLOCK_T`` tokens. The 512 head dimensions
are cut into ``TILES``, which add up to them exactly. K and V are the same vectors, so each token is read and
dequantised (:mod:`dsv4_kernels.dequantise`) once and used in both products.
"""

# ruff: noqa: E741, RUF005, SIM300, RET505
# (l is the literature's name for the running sum; Triton compiles no starred tuples, wants an else beside a
# constexpr return, and its constexprs compare from the left.)
from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.dequantise import load_kv

# Scores below this are "nothing seen yet". Finite, so that differences of two of them are 0 and not NaN.
NEGATIVE = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def reread_program_id(AXIS: tl.constexpr, OPERAND: tl.constexpr) -> tl.tensor:
    """``tl.program_id`` read afresh from its special register.

    The token loop uses every register there is. What is computed from program ids before it and needed
    again after it would be kept, and spilled; a value the compiler cannot recognise is computed anew.
    """
    if OPERAND == tl.bfloat16:
        if AXIS == 0:
            return tl.inline_asm_elementwise(
                "mov.u32 $0, %ctaid.x;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
        elif AXIS == 1:
            return tl.inline_asm_elementwise(
                "mov.u32 $0, %ctaid.y;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
        else:
            return tl.inline_asm_elementwise(
                "mov.u32 $0, %ctaid.z;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
    else:
        return tl.program_id(AXIS)


@triton.jit
def scope_length(
    length_ptr: tl.tensor, request: tl.tensor, width: tl.tensor, HAS_LENGTH: tl.constexpr
) -> tl.tensor:
    """Valid entries of a scope: its device-side length, held within the padded width."""
    if HAS_LENGTH:
        return tl.minimum(tl.load(length_ptr + request), width)
    return width


@triton.jit
def _zeros(ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    # A call of its own: an element of a constexpr tuple is a plain int where it is unrolled.
    return tl.zeros([ROWS, COLUMNS], tl.float32)


@triton.jit
def load_q(
    q_ptr: tl.tensor, row: tl.tensor, head: tl.tensor, heads: tl.tensor,
    TILES: tl.constexpr, OPERAND: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Query tiles of a head group: ``[BLOCK_H, tile]`` for each of ``TILES``; heads past the last are 0."""
    base = q_ptr + (row.to(tl.int64) * heads + head[:, None]) * 512
    inside = head[:, None] < heads
    q: tl.tensor = ()
    start = 0
    for i in tl.static_range(len(TILES)):
        q = q + (tl.load(base + start + tl.arange(0, TILES[i])[None, :], mask=inside, other=0.0).to(OPERAND),)
        start += TILES[i]
    return q


@triton.jit
def load_index(
    block: tl.tensor, main_blocks: tl.tensor, index_ptr: tl.tensor, length: tl.tensor,
    extra_index_ptr: tl.tensor, extra_length: tl.tensor, HAS_EXTRA: tl.constexpr, BLOCK_T: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Flat slots of one block of the concatenated [main | extra] list; -1 past its scope's length."""
    if HAS_EXTRA:
        is_extra = block >= main_blocks
        position = tl.where(is_extra, block - main_blocks, block) * BLOCK_T + tl.arange(0, BLOCK_T)
        limit = tl.where(is_extra, extra_length, length)
        return tl.load(
            tl.where(is_extra, extra_index_ptr, index_ptr) + position, mask=position < limit, other=-1
        )
    position = block * BLOCK_T + tl.arange(0, BLOCK_T)
    return tl.load(index_ptr + position, mask=position < length, other=-1)


@triton.jit
def load_block(
    index: tl.tensor, is_extra: tl.tensor, kv_ptr: tl.tensor, page_stride: tl.tensor,
    extra_kv_ptr: tl.tensor, extra_page_stride: tl.tensor, HAS_EXTRA: tl.constexpr,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, TILES: tl.constexpr, OPERAND: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """KV tiles of one block, from whichever pool its scope points into."""
    valid = index >= 0
    # Unsigned, so that a division by a page size is a shift where that is a power of two.
    index = tl.where(valid, index, 0).to(tl.uint32)
    if HAS_EXTRA:
        page = tl.where(is_extra, index // EXTRA_PAGE_SIZE, index // PAGE_SIZE)
        slot = tl.where(is_extra, index % EXTRA_PAGE_SIZE, index % PAGE_SIZE)
        pool = tl.where(is_extra, extra_kv_ptr, kv_ptr)
        stride = tl.where(is_extra, extra_page_stride, page_stride)
        section = tl.where(is_extra, EXTRA_PAGE_SIZE * 576, PAGE_SIZE * 576)
        return load_kv(pool, page, slot, stride, section, valid, TILES, OPERAND)
    return load_kv(
        kv_ptr, index // PAGE_SIZE, index % PAGE_SIZE, page_stride, PAGE_SIZE * 576, valid, TILES, OPERAND
    )


@triton.jit
def scores(q: tl.tensor, kv: tl.tensor, valid: tl.tensor, TILES: tl.constexpr) -> tl.tensor:
    """Unscaled scores ``[BLOCK_H, BLOCK_T]``; -inf where a token is invalid."""
    score = tl.dot(q[0], tl.trans(kv[0]))
    for i in tl.static_range(1, len(TILES)):
        score = tl.dot(q[i], tl.trans(kv[i]), score)
    return tl.where(valid[None, :], score, float("-inf"))


@triton.jit
def attend(
    q: tl.tensor, first: tl.tensor, step: tl.tensor, scale_log2: tl.tensor, row: tl.tensor,
    kv_ptr: tl.tensor, page_stride: tl.tensor, index_ptr: tl.tensor, width: tl.tensor, length: tl.tensor,
    extra_kv_ptr: tl.tensor, extra_page_stride: tl.tensor, extra_index_ptr: tl.tensor,
    extra_width: tl.tensor, extra_length: tl.tensor,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, HAS_EXTRA: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, SINGLE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Attend to blocks ``first, first + step, ...`` of the concatenated [main | extra] list of one row.

    The loop is bounded by the device-side lengths, not by the padded widths; a block never straddles the
    two scopes. Without ``HAS_EXTRA`` there is one scope only. ``SINGLE`` promises that the
    loop would run once. ``AHEAD`` reads a block's slots while the block before it is worked on, instead of
    leaving that to the software pipeline.

    Returns:
        Unnormalised output tiles (float32), row maxima in base 2 (``NEGATIVE`` if nothing was valid) and
        sums, both ``[BLOCK_H]``.
    """
    index_ptr += row.to(tl.int64) * width
    extra_index_ptr += row.to(tl.int64) * extra_width
    main_blocks = tl.cdiv(length, BLOCK_T)
    acc: tl.tensor = ()
    if SINGLE:
        index = load_index(
            first, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, BLOCK_T
        )
        kv = load_block(
            index, first >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
            PAGE_SIZE, EXTRA_PAGE_SIZE, TILES, OPERAND,
        )  # fmt: skip
        score = scores(q, kv, index >= 0, TILES)
        m = tl.maximum(tl.max(score, 1) * scale_log2, NEGATIVE)
        weight = tl.exp2(score * scale_log2 - m[:, None])
        l = tl.sum(weight, 1)
        for i in tl.static_range(len(TILES)):
            acc = acc + (tl.dot(weight.to(OPERAND), kv[i]),)
    else:
        for i in tl.static_range(len(TILES)):
            acc = acc + (_zeros(BLOCK_H, TILES[i]),)
        m = tl.full([BLOCK_H], NEGATIVE, tl.float32)
        l = tl.zeros([BLOCK_H], tl.float32)
        blocks = main_blocks + (tl.cdiv(extra_length, BLOCK_T) if HAS_EXTRA else 0)
        if AHEAD:
            index = load_index(
                first, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, BLOCK_T
            )
        for block in tl.range(first, blocks, step, num_stages=STAGES):
            if not AHEAD:
                index = load_index(
                    block, main_blocks, index_ptr, length, extra_index_ptr, extra_length, HAS_EXTRA, BLOCK_T
                )
            kv = load_block(
                index, block >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA,
                PAGE_SIZE, EXTRA_PAGE_SIZE, TILES, OPERAND,
            )  # fmt: skip
            valid = index >= 0
            if AHEAD:
                following = block + step
                index = load_index(
                    following,
                    main_blocks,
                    index_ptr,
                    length,
                    extra_index_ptr,
                    extra_length,
                    HAS_EXTRA,
                    BLOCK_T,
                )
            score = scores(q, kv, valid, TILES)
            m_new = tl.maximum(m, tl.max(score, 1) * scale_log2)
            alpha = tl.exp2(m - m_new)
            weight = tl.exp2(score * scale_log2 - m_new[:, None])
            l = l * alpha + tl.sum(weight, 1)
            scaled: tl.tensor = ()
            for i in tl.static_range(len(TILES)):
                scaled = scaled + (tl.dot(weight.to(OPERAND), kv[i], acc[i] * alpha[:, None]),)
            acc = scaled
            m = m_new
    return acc, m, l


@triton.jit
def finish(
    m: tl.tensor, l: tl.tensor, sink_ptr: tl.tensor, head: tl.tensor, heads: tl.tensor,
    HAS_SINK: tl.constexpr, SGLANG: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Close a softmax: the factor on the unnormalised output, and ``lse`` by the convention.

    Returns:
        float32 ``[BLOCK_H]`` factor (0 for an empty row) and natural-log lse.
    """
    empty = l == 0.0
    lse2 = m + tl.log2(l)
    denominator = l
    lse = lse2 * LN_2
    if HAS_SINK:
        sink = tl.load(sink_ptr + head, mask=head < heads, other=float("-inf"))
        # A sink far above the scores overflows to an infinite denominator: output 0, as it should be.
        denominator = l + tl.exp2(sink * LOG2_E - m)
        if SGLANG:
            high = tl.maximum(lse, sink)
            total = high + tl.log(tl.exp(lse - high) + tl.exp(sink - high))
            lse = tl.where(empty | (high == float("inf")), sink, total)
        else:
            lse = tl.where(empty, float("inf"), lse)
    else:
        lse = tl.where(empty, float("-inf") if SGLANG else float("inf"), lse)
    return tl.where(empty, 0.0, 1.0 / denominator), lse


@triton.jit
def store_tiles(
    acc: tl.tensor, factor: tl.tensor, out_ptr: tl.tensor, row: tl.tensor, head: tl.tensor, heads: tl.tensor,
    TILES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Write output tiles times ``factor[head]`` to ``out[row, head, :]``, in ``out_ptr``'s element type."""
    base = out_ptr + (row.to(tl.int64) * heads + head[:, None]) * 512
    inside = head[:, None] < heads
    start = 0
    for i in tl.static_range(len(TILES)):
        value = (acc[i] * factor[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(base + start + tl.arange(0, TILES[i])[None, :], value, mask=inside)
        start += TILES[i]
