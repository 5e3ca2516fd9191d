"""How do FP4 weights reach the tensor cores? Device code: load by words, decode in registers, match the inputs.

A 32-bit word holds eight codes of neighbouring columns. Taking the same nibble of every word gives a tile of every
eighth column, decoded in place without shuffling weights between threads; the inputs, a few rows, are split the same
way. The order of summation over K is all that changes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode(word: tl.tensor, scale: tl.tensor, OPERAND: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
    """The eight e2m1 codes of each 32-bit word times ``scale`` / 2^126: eight tensors of the words' shape.

    A code's three magnitude bits, placed at a bfloat16's low exponent and high mantissa bits, are its value times
    2^-126 (0.5 as a subnormal): multiplying by a scale that carries 2^126 decodes it, exactly. The assembly decodes
    the same nibble of two neighbouring words at once, which is how the tensor cores want their operand packed.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            asm="""
            {
            .reg .b32 t, u, v;
            prmt.b32 t, $8, $9, 0x4400;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 $0, u, $10;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 $1, u, $10;
            prmt.b32 t, $8, $9, 0x5511;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 $2, u, $10;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 $3, u, $10;
            prmt.b32 t, $8, $9, 0x6622;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 $4, u, $10;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 $5, u, $10;
            prmt.b32 t, $8, $9, 0x7733;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 $6, u, $10;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 $7, u, $10;
            }
            """,
            constraints="=r,=r,=r,=r,=r,=r,=r,=r,r,r,r",
            args=[word, scale],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=2,
        )
    # The same in float32, whose exponent field is as wide: for the interpreter, which has no assembly.
    values = ()
    for nibble in tl.static_range(8):
        code = word >> (4 * nibble)
        value = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True)
        values = values + ((value * scale.to(tl.float32)).to(OPERAND),)  # type: ignore[assignment]  # noqa: RUF005
    return values


@triton.jit
def load_weights(
    packed_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    shift: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
) -> tl.tensor:
    """Weights of columns ``start ..``, times 2^-shift: eight ``[ROWS, BLOCK_K // 8]``, the i-th of columns 8 k + i."""
    word = start // 8 + tl.arange(0, BLOCK_K // 8)
    group = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
    packed = tl.load(packed_ptr + row[:, None] * (width // 8) + word[None, :])
    stored = tl.load(scale_ptr + row[:, None] * (width // GROUP) + group[None, :])
    if GROUP == 32:
        # The byte is a bfloat16's exponent field; 126 more is the decode's factor.
        bits = tl.maximum(stored.to(tl.int32) + (126 - shift), 0) << 7
        scale = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        # An e4m3 scale reaches 448: 2^117 is all of the factor that bfloat16 has room for.
        scale = (stored.to(tl.float32) * 1.661534994731145e35).to(tl.bfloat16)
    spread = tl.broadcast_to(scale[:, :, None], (ROWS, BLOCK_K // GROUP, GROUP // 8))
    return decode(packed, tl.reshape(spread, (ROWS, BLOCK_K // 8)), OPERAND, ASM)


@triton.jit
def load_inputs(
    x_ptr: tl.tensor,
    row: tl.tensor,
    valid: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
) -> tl.tensor:
    """The rows' columns ``start ..``: eight ``[BLOCK_K // 8, BLOCK_M]``, the i-th of columns 8 k + i."""
    k = start + tl.arange(0, BLOCK_K)
    x = tl.load(x_ptr + row[:, None] * width + k[None, :], mask=valid[:, None], other=0.0).to(OPERAND)
    x0, x1 = tl.split(tl.reshape(x, (BLOCK_M, BLOCK_K // 8, 2, 2, 2)))
    x00, x01 = tl.split(x0)
    x10, x11 = tl.split(x1)
    # Bit by bit from the last: the names are the column's bits 0 and 1, split gives bit 2.
    c0, c4 = tl.split(x00)
    c2, c6 = tl.split(x01)
    c1, c5 = tl.split(x10)
    c3, c7 = tl.split(x11)
    return (
        tl.trans(c0),
        tl.trans(c1),
        tl.trans(c2),
        tl.trans(c3),
        tl.trans(c4),
        tl.trans(c5),
        tl.trans(c6),
        tl.trans(c7),
    )


@triton.jit
def undo_shift(shift: tl.tensor, overall_ptr: tl.tensor, expert: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """What the products are still to be multiplied by."""
    if GROUP == 32:
        return ((shift + 127) << 23).to(tl.float32, bitcast=True)
    return tl.load(overall_ptr + expert) * 512.0  # 2^126 / 2^117
