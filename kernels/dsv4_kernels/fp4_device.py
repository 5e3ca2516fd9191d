"""How do FP4 weights reach the tensor cores? Device code: load by words, decode in registers, match the inputs.

A 32-bit word holds eight codes of neighbouring columns. Decoding never moves a weight between threads: code ``j`` of a
word and code ``j + 4`` become one register of two bfloat16, because the same shifts and masks bring both into place.
Two neighbouring words so give eight registers, one of each of eight tiles, and which column a place of a tile stands
for is whatever that makes it: the inputs, a few rows, are stored in the same order once (``column_order``). The order
of summation over K is all that changes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def column_order(place: tl.tensor) -> tl.tensor:
    """The column that stands at ``place`` in the order of the decoded tiles.

    Within 128 columns, places ``16 i ..`` hold tile ``i``; its places ``2 m`` and ``2 m + 1`` are word ``2 m``'s codes
    ``i`` and ``i + 4``, or for ``i >= 4`` word ``2 m + 1``'s ``i - 4`` and ``i``.
    """
    tile = (place // 16) % 8
    pair = (place % 16) // 2
    return (place // 128) * 128 + 16 * pair + 8 * (tile // 4) + tile % 4 + 4 * (place % 2)


@triton.jit
def place_order(column: tl.tensor) -> tl.tensor:
    """Where ``column`` stands in that order: the inverse of ``column_order``."""
    tile = 4 * ((column // 8) % 2) + column % 4
    return (column // 128) * 128 + 16 * tile + 2 * ((column % 128) // 16) + (column // 4) % 2


@triton.jit
def decode(word: tl.tensor, scale: tl.tensor, OPERAND: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
    """The eight e2m1 codes of each 32-bit word times ``scale`` / 2^126: eight tiles of the words' shape.

    A code's three magnitude bits, placed at a bfloat16's low exponent and high mantissa bits, are its value times
    2^-126 (0.5 as a subnormal): multiplying by a scale that carries 2^126 decodes it, exactly. ``word``'s last axis is
    even, and ``scale`` the same for the two words of a pair.
    """
    if ASM:
        # A multiplication puts a code's sign and magnitude into place at once: the logic pipe, which takes an
        # instruction every other cycle, is what decoding loads most (9 of 17 instructions for 8 weights).
        return tl.inline_asm_elementwise(
            asm="""
            {
            .reg .b32 h, t;
            and.b32 t, $8, 0x000F000F;
            mul.lo.u32 t, t, 0x1040;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $0, t, $10;
            and.b32 t, $8, 0x00F000F0;
            mul.lo.u32 t, t, 0x104;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $1, t, $10;
            shr.u32 h, $8, 8;
            and.b32 t, h, 0x000F000F;
            mul.lo.u32 t, t, 0x1040;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $2, t, $10;
            and.b32 t, h, 0x00F000F0;
            mul.lo.u32 t, t, 0x104;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $3, t, $10;
            and.b32 t, $9, 0x000F000F;
            mul.lo.u32 t, t, 0x1040;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $4, t, $10;
            and.b32 t, $9, 0x00F000F0;
            mul.lo.u32 t, t, 0x104;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $5, t, $10;
            shr.u32 h, $9, 8;
            and.b32 t, h, 0x000F000F;
            mul.lo.u32 t, t, 0x1040;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $6, t, $10;
            and.b32 t, h, 0x00F000F0;
            mul.lo.u32 t, t, 0x104;
            and.b32 t, t, 0x81C081C0;
            mul.rn.bf16x2 $7, t, $10;
            }
            """,
            constraints="=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
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
    pairs: tl.constexpr = [word.shape[0], word.shape[1] // 2, 2]
    word0, word1 = tl.split(tl.reshape(word, pairs))
    factor, _ = tl.split(tl.reshape(scale.to(tl.float32), pairs))
    values = ()
    for tile in tl.static_range(8):
        code = (word0 if tile < 4 else word1) >> (4 * (tile % 4))
        low = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True) * factor
        code = code >> 16
        high = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True) * factor
        both = tl.reshape(tl.join(low, high), [word.shape[0], word.shape[1]])
        values = values + (both.to(OPERAND),)  # type: ignore[assignment]  # noqa: RUF005
    return values


@triton.jit
def load_weights(
    packed_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    words: tl.tensor,
    groups: tl.tensor,
    shift: tl.tensor,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
) -> tl.tensor:
    """Weights times 2^-shift: eight tiles ``[ROWS, 16]``, row ``v`` of them the ``v % PARTS``-th 128 columns.

    ``row`` names the weight row of each ``v``, the same for ``PARTS`` neighbours: two parts make the 128 bytes of a
    cache line, which one copy instruction then asks for whole (asking for 64 bytes at a time, DRAM gives 2.5 TB/s on an
    H200 where it gives 4.0). ``words`` and ``groups`` are a weight row's 32-bit words and scales. They are arguments,
    not ``width // 8``, so that the compiler knows them for multiples of 16: only then are copies 16 bytes wide, and the
    scales' copies wide enough (4 bytes) to be pipelined at all.
    """
    part = tl.arange(0, ROWS) % PARTS
    word = row * words + (start // 8 + part * 16)
    group = row * groups + (start // GROUP + part * (128 // GROUP))
    packed = tl.load(packed_ptr + word[:, None] + tl.arange(0, 16)[None, :])
    stored = tl.load(scale_ptr + group[:, None] + tl.arange(0, 128 // GROUP)[None, :])
    if GROUP == 32:
        # The byte is a bfloat16's exponent field; 126 more is the decode's factor.
        bits = tl.maximum(stored.to(tl.int32) + (126 - shift), 0) << 7
        scale = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        # An e4m3 scale reaches 448: 2^117 is all of the factor that bfloat16 has room for.
        scale = (stored.to(tl.float32) * 1.661534994731145e35).to(tl.bfloat16)
    spread = tl.broadcast_to(scale[:, :, None], (ROWS, 128 // GROUP, GROUP // 8))
    return decode(packed, tl.reshape(spread, (ROWS, 16)), OPERAND, ASM)


@triton.jit
def multiply(
    acc: tl.tensor,
    weights: tl.tensor,
    x_ptr: tl.tensor,
    row: tl.tensor,
    valid: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    PLACES: tl.constexpr,
    PARTS: tl.constexpr,
    OPERAND: tl.constexpr,
) -> tl.tensor:
    """``acc`` plus the eight tiles times the inputs, which are stored in ``column_order``.

    Place ``n`` holds the ``n % PARTS``-th 128 columns from ``start`` of token ``n // PARTS``, whose ``row`` and
    ``valid`` are given for each place. Places without a token are not read: their zeros cost no bandwidth.
    """
    part = tl.arange(0, PLACES) % PARTS
    column = row * width + (start + part * 128)
    for tile in tl.static_range(8):
        place = 16 * tile + tl.arange(0, 16)
        x = tl.load(x_ptr + column[None, :] + place[:, None], mask=valid[None, :], other=0.0)
        acc = tl.dot(weights[tile], x.to(OPERAND), acc)
    return acc


@triton.jit
def fold(acc: tl.tensor, ROWS: tl.constexpr, PLACES: tl.constexpr, PARTS: tl.constexpr) -> tl.tensor:
    """Sum over the parts: of ``[ROWS, PLACES]`` what met its own part, as ``[ROWS // PARTS, PLACES // PARTS]``."""
    if PARTS == 1:
        return acc
    own = (tl.arange(0, ROWS) % PARTS)[:, None] == (tl.arange(0, PLACES) % PARTS)[None, :]
    acc = tl.reshape(tl.where(own, acc, 0.0), (ROWS // PARTS, PARTS, PLACES // PARTS, PARTS))
    return tl.sum(tl.sum(acc, axis=3), axis=1)


@triton.jit
def undo_shift(shift: tl.tensor, overall_ptr: tl.tensor, expert: tl.tensor, GROUP: tl.constexpr) -> tl.tensor:
    """What the products are still to be multiplied by."""
    if GROUP == 32:
        return ((shift + 127) << 23).to(tl.float32, bitcast=True)
    return tl.load(overall_ptr + expert) * 512.0  # 2^126 / 2^117
