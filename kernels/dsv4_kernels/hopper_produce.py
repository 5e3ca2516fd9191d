"""The producing warps of the Hopper form: cached FP8 tokens to bf16 tiles in shared memory.

A block is 64 or 32 tokens of one row's concatenated [main | extra] list and is worked on in *pieces* of 32, two of
them in flight: while one is decoded the other's bytes are on their way, in registers. A finished piece is announced
on the ``full`` barrier of its buffer; a buffer is written again once the consumers have arrived on ``empty``.

A piece is handled as 32-bit words, four e4m3 values each: a single byte carried in a register would take all of it.
"""

# ruff: noqa: RUF005, RET505
# (Triton compiles no starred tuples, and wants an else beside a constexpr return.)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

# Triton 3.7 renamed it.
block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

PIECE = gl.constexpr(32)


@gluon.jit
def dependency_wait() -> None:
    """Wait for the kernel before this one (programmatic dependent launch); without one, no wait."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def launch_dependents() -> None:
    """Let the next kernel's blocks be placed."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )  # fmt: skip


@gluon.jit
def decode_words(words: gl.tensor, scale: gl.tensor) -> gl.tensor:
    """Four e4m3 values a word, times their scale, as two words of bf16 pairs.

    As :func:`dsv4_kernels.dequantise.decode_e4m3`: sign and 7 bits moved to their place in a bf16, which is the
    value times 2^-120, then two exact products. The moves are written as multiplications and shifts to the left
    where they can be, which other execution units do than the masks.

    Args:
        words: int32, any shape.
        scale: int32, broadcast to ``words``: the scale's bf16 bits, twice.

    Returns:
        Values 0 and 1, and values 2 and 3 of each word, both int32.
    """
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, s, t, k;
        mov.b32 k, 0x7b807b80;
        prmt.b32 a, $2, 0, 0x4140;
        prmt.b32 b, $2, 0, 0x4342;
        and.b32 s, a, 0x00800080;
        shl.b32 t, a, 4;
        mad.lo.u32 a, s, 240, t;
        and.b32 s, b, 0x00800080;
        shl.b32 t, b, 4;
        mad.lo.u32 b, s, 240, t;
        mul.rn.bf16x2 a, a, k;
        mul.rn.bf16x2 b, b, k;
        mul.rn.bf16x2 $0, a, $3;
        mul.rn.bf16x2 $1, b, $3;
        }
        """,
        "=r,=r,r,r", [words, scale], dtype=(gl.int32, gl.int32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def load_slots(
    block: gl.tensor, token: gl.tensor, main_blocks: gl.tensor, index_ptr: gl.tensor, length: gl.tensor,
    extra_index_ptr: gl.tensor, extra_length: gl.tensor, HAS_EXTRA: gl.constexpr, BLOCK_T: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """Flat slots of tokens ``token`` of a block; -1 past its scope's length, and for blocks past the last."""
    if HAS_EXTRA:
        is_extra = block >= main_blocks
        position = gl.where(is_extra, block - main_blocks, block) * BLOCK_T + token
        limit = gl.where(is_extra, extra_length, length)
        pointer = gl.where(is_extra, extra_index_ptr, index_ptr)
        return gl.load(pointer + position, mask=position < limit, other=-1)
    else:
        position = block * BLOCK_T + token
        return gl.load(index_ptr + position, mask=position < length, other=-1)


@gluon.jit
def locate(
    slots: gl.tensor, is_extra: gl.tensor, kv_ptr: gl.tensor, page_stride: gl.tensor, extra_kv_ptr: gl.tensor,
    extra_page_stride: gl.tensor, HAS_EXTRA: gl.constexpr, PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """Where tokens lie: their page's address, and the offsets of record and scales in it (slot 0 for -1)."""
    # Unsigned, so that a division by a page size is a shift where that is a power of two.
    token = gl.where(slots >= 0, slots, 0).to(gl.uint32)
    if HAS_EXTRA:
        page = gl.where(is_extra, token // EXTRA_PAGE_SIZE, token // PAGE_SIZE)
        slot = gl.where(is_extra, token % EXTRA_PAGE_SIZE, token % PAGE_SIZE)
        start = gl.where(is_extra, extra_kv_ptr, kv_ptr)
        stride = gl.where(is_extra, extra_page_stride, page_stride)
        section = gl.where(is_extra, EXTRA_PAGE_SIZE * 576, PAGE_SIZE * 576)
        return start + page.to(gl.int64) * stride, slot * 576, section + slot * 8
    else:
        slot = token % PAGE_SIZE
        return (
            kv_ptr + (token // PAGE_SIZE).to(gl.int64) * page_stride,
            slot * 576,
            slot * 8 + PAGE_SIZE * 576,
        )


@gluon.jit
def fetch(
    slots: gl.tensor, is_extra: gl.tensor, kv_ptr: gl.tensor, page_stride: gl.tensor, extra_kv_ptr: gl.tensor,
    extra_page_stride: gl.tensor, HAS_EXTRA: gl.constexpr, PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr,
    WORDS: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """Start a piece's loads: seven int32 ``[32, 16]`` of e4m3, one int64 ``[32, 16]`` of rotary bf16, the scales.

    Invalid tokens are not read and come out as 0, so that bytes which decode to NaN cannot leak into a product.
    """
    page, record, scales = locate(
        slots,
        is_extra,
        kv_ptr,
        page_stride,
        extra_kv_ptr,
        extra_page_stride,
        HAS_EXTRA,
        PAGE_SIZE,
        EXTRA_PAGE_SIZE,
    )
    valid = slots >= 0
    codes = gl.load((page + scales).to(gl.pointer_type(gl.int64), bitcast=True), mask=valid, other=0)
    column = gl.arange(0, 16, gl.SliceLayout(0, WORDS))[None, :]
    nope = (page + record).to(gl.pointer_type(gl.int32), bitcast=True)[:, None] + column
    rope = (page + record + 448).to(gl.pointer_type(gl.int64), bitcast=True)[:, None] + column
    raw: gl.tensor = ()
    for group in gl.static_range(7):
        raw = raw + (gl.load(nope + 16 * group, mask=valid[:, None], other=0),)
    return raw + (gl.load(rope, mask=valid[:, None], other=0),), codes


@gluon.jit
def group_words(raw: gl.tensor, codes: gl.tensor, GROUP: gl.constexpr) -> gl.tensor:
    """The 64 values of one scale group as bf16 pairs: int32 ``[32, 32]``."""
    code = (codes >> (8 * GROUP)).to(gl.int32) & 0xFF
    # A scale byte is the exponent field of a bf16.
    low, high = decode_words(raw[GROUP], (code * 0x00800080)[:, None])
    return gl.join(low, high).reshape([PIECE, 32])


@gluon.jit
def publish(
    tile: gl.shared_memory_descriptor, bias: gl.shared_memory_descriptor, full: gl.shared_memory_descriptor,
    raw: gl.tensor, codes: gl.tensor, valid: gl.tensor,
) -> None:  # fmt: skip
    """Decode a piece into ``tile`` (int32 ``[32, 256]``: 512 bf16 a token) and announce it.

    ``bias`` (float32 ``[32]``) gets 0 for a valid token and -inf for another. One wide store instead of eight narrow
    ones, between which the compiler would put barriers.
    """
    bias.store(gl.where(valid, 0.0, float("-inf")))
    rope = gl.join(raw[7].to(gl.int32), (raw[7] >> 32).to(gl.int32)).reshape([PIECE, 32])
    a = gl.join(group_words(raw, codes, 0), group_words(raw, codes, 4))
    b = gl.join(group_words(raw, codes, 2), group_words(raw, codes, 6))
    c = gl.join(group_words(raw, codes, 1), group_words(raw, codes, 5))
    d = gl.join(group_words(raw, codes, 3), rope)
    words = gl.join(gl.join(a, b), gl.join(c, d))  # [32, 32, group bit 2, bit 1, bit 0]
    tile.store(words.permute((0, 2, 3, 4, 1)).reshape([PIECE, 256]))
    fence_async_shared()
    block_barrier()
    mbarrier.arrive(full, count=1)


@gluon.jit
def prefetch(
    block: gl.tensor, slots: gl.tensor, main_blocks: gl.tensor, kv_ptr: gl.tensor, page_stride: gl.tensor,
    extra_kv_ptr: gl.tensor, extra_page_stride: gl.tensor, HAS_EXTRA: gl.constexpr, PAGE_SIZE: gl.constexpr,
    EXTRA_PAGE_SIZE: gl.constexpr, LINES: gl.constexpr,
) -> None:  # fmt: skip
    """Ask L2 for a block's records, five lines of 128 bytes each, and their scales."""
    page, record, scales = locate(
        slots, block >= main_blocks, kv_ptr, page_stride, extra_kv_ptr, extra_page_stride, HAS_EXTRA, PAGE_SIZE,
        EXTRA_PAGE_SIZE,
    )  # fmt: skip
    line = gl.arange(0, 8, gl.SliceLayout(0, LINES))[None, :]
    offset = gl.where(line < 5, record.to(gl.int32)[:, None] + 128 * line, scales.to(gl.int32)[:, None])
    wanted = (slots >= 0)[:, None] & (line < 6)
    gl.inline_asm_elementwise(
        """
        {
        .reg .pred p;
        setp.ne.s32 p, $2, 0;
        @p prefetch.global.L2 [$1];
        mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [page.to(gl.int64, bitcast=True)[:, None] + offset, wanted.to(gl.int32)], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
