"""The producing warps of the Hopper form: cached FP8 tokens to bf16 tiles in shared memory.

A block of 64 or 32 tokens is worked on in *pieces* of 32, and a piece in two halves of its columns: four groups of 64
e4m3 values, then three groups and the rotary columns. Raw bytes wait in registers, and a half's registers are loaded
anew as soon as they have been decoded, so that most of two pieces is on its way at any time (:mod:`hopper_gather`).

Words of 32 bits are handled, four e4m3 values each: a single byte carried in a register would take all of it.
"""

# ruff: noqa: RUF005
# (Triton compiles no starred tuples.)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Triton 3.7 renamed it.
block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

PIECE = gl.constexpr(32)
# Four lanes take the 64 bytes of a scale group, eight tokens a warp.
WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))


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
def group_words(words: gl.tensor, codes: gl.tensor, GROUP: gl.constexpr) -> gl.tensor:
    """The 64 values of one scale group (int32 ``[32, 16]``) as bf16 pairs: int32 ``[32, 32]``."""
    code = (codes >> (8 * GROUP)).to(gl.int32) & 0xFF
    # A scale byte is the exponent field of a bf16.
    low, high = decode_words(words, (code * 0x00800080)[:, None])
    return gl.join(low, high).reshape([PIECE, 32])


@gluon.jit
def load_codes(where: gl.tensor, valid: gl.tensor) -> gl.tensor:
    """Start the load of a piece's scales: int64 ``[32]``, a byte a group."""
    page, _, scales = where
    return gl.load((page + scales).to(gl.pointer_type(gl.int64), bitcast=True), mask=valid, other=0)


@gluon.jit
def load_half(where: gl.tensor, valid: gl.tensor, RIGHT: gl.constexpr) -> gl.tensor:
    """Start a half's loads: four int32 ``[32, 16]`` of e4m3, or three and one int64 ``[32, 16]`` of rotary bf16.

    Invalid tokens are not read and come out as 0, so that bytes which decode to NaN cannot leak into a product.
    """
    page, record, _ = where
    column = gl.arange(0, 16, gl.SliceLayout(0, WORDS))[None, :]
    nope = (page + record).to(gl.pointer_type(gl.int32), bitcast=True)[:, None] + column
    raw: gl.tensor = ()
    for group in gl.static_range(4 * RIGHT, 4 + 3 * RIGHT):
        raw = raw + (gl.load(nope + 16 * group, mask=valid[:, None], other=0),)
    if RIGHT:
        rope = (page + record + 448).to(gl.pointer_type(gl.int64), bitcast=True)[:, None] + column
        raw = raw + (gl.load(rope, mask=valid[:, None], other=0),)
    return raw


@gluon.jit
def write_half(
    tile: gl.shared_memory_descriptor, raw: gl.tensor, codes: gl.tensor, RIGHT: gl.constexpr
) -> None:  # fmt: skip
    """Decode a half into its 128 columns of ``tile`` (int32 ``[32, 256]``: 512 bf16 a token).

    One wide store instead of four narrow ones, between which the compiler would put barriers.
    """
    FIRST: gl.constexpr = 4 * RIGHT
    a = group_words(raw[0], codes, FIRST)
    b = group_words(raw[1], codes, FIRST + 1)
    c = group_words(raw[2], codes, FIRST + 2)
    if RIGHT:
        d = gl.join(raw[3].to(gl.int32), (raw[3] >> 32).to(gl.int32)).reshape([PIECE, 32])
    else:
        d = group_words(raw[3], codes, FIRST + 3)
    words = gl.join(gl.join(a, c), gl.join(b, d))  # [32, 32, group bit 1, group bit 0]
    tile.slice(128 * RIGHT, 128, dim=1).store(words.permute((0, 2, 3, 1)).reshape([PIECE, 128]))
