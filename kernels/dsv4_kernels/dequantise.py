"""FP8 cache records to matrix-product operands, on the device: gather, decode, scale.

The tiles cut the 512 columns where the formats change, so no padded tail reads rotary bytes as e4m3.
"""

# ruff: noqa: RUF005, SIM300
# (Triton compiles no starred tuples, and its constexprs compare from the left.)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(raw: tl.tensor, OPERAND: tl.constexpr) -> tl.tensor:
    """e4m3 bytes to ``OPERAND``, exactly.

    For bf16 the compiler would go through float16 and float32; here a byte's sign and its 7 other bits are
    moved to their place in a bf16, which is the value times 2^-120, four bytes at a time. (That reads an
    e4m3 NaN as 480.)
    """
    if OPERAND == tl.bfloat16:
        small = tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, s, t;
            prmt.b32 a, $2, 0, 0x1404;
            prmt.b32 b, $2, 0, 0x3424;
            and.b32 s, a, 0x80008000;
            shr.b32 t, a, 4;
            and.b32 t, t, 0x07f007f0;
            or.b32 $0, s, t;
            and.b32 s, b, 0x80008000;
            shr.b32 t, b, 4;
            and.b32 t, t, 0x07f007f0;
            or.b32 $1, s, t;
            }
            """,
            "=r,=r,r", [raw], dtype=tl.bfloat16, is_pure=True, pack=4,
        )  # fmt: skip
        return small * 1.329227995784916e36  # 2^120
    return raw.to(tl.float8e4nv, bitcast=True).to(OPERAND)


@triton.jit
def decode_e8m0(code: tl.tensor, OPERAND: tl.constexpr) -> tl.tensor:
    """A scale byte (int32, 0 to 254) as ``OPERAND``: it is the exponent field of a bf16 or a float32."""
    if OPERAND == tl.bfloat16:
        return (code << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return (code << 23).to(tl.float32, bitcast=True).to(OPERAND)


@triton.jit
def load_kv(
    kv_ptr: tl.tensor, page: tl.tensor, slot: tl.tensor, page_stride: tl.tensor, section: tl.tensor,
    valid: tl.tensor, TILES: tl.constexpr, OPERAND: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Gather and dequantise a block of tokens: ``[BLOCK_T, tile]`` for each of ``TILES``.

    The last tile is the 64 rotary columns, or a wider one that ends in them. Invalid tokens are not read
    (masked loads) and come out as 0, so that bytes which decode to NaN cannot leak into a product.
    """
    page_ptr = kv_ptr + page.to(tl.int64) * page_stride
    record = page_ptr + slot * 576
    # All seven scale bytes of a token in one load; byte i belongs to columns 64 i .. 64 i + 63.
    scale_ptr = (page_ptr + section + slot * 8).to(tl.pointer_type(tl.int64), bitcast=True)
    codes = tl.load(scale_ptr, mask=valid, other=0)[:, None]
    kv: tl.tensor = ()
    start = 0
    for i in tl.static_range(len(TILES) - 1):
        column = start + tl.arange(0, TILES[i])[None, :]
        raw = tl.load(record[:, None] + column, mask=valid[:, None], other=0)
        if TILES[i] == 64:
            code = (codes >> (start // 8)).to(tl.int32) & 0xFF
        else:
            code = (codes >> (column // 64 * 8)).to(tl.int32) & 0xFF
        kv = kv + (decode_e4m3(raw, OPERAND) * decode_e8m0(code, OPERAND),)
        start += TILES[i]
    rope_ptr = (record + 448).to(tl.pointer_type(tl.bfloat16), bitcast=True)
    if TILES[len(TILES) - 1] > 64:
        column = start + tl.arange(0, TILES[len(TILES) - 1])[None, :]
        raw = tl.load(record[:, None] + column, mask=valid[:, None] & (column < 448), other=0)
        code = (codes >> (tl.minimum(column // 64, 6) * 8)).to(tl.int32) & 0xFF
        nope = decode_e4m3(raw, OPERAND) * decode_e8m0(code, OPERAND)
        rope = tl.load(rope_ptr[:, None] + (column - 448), mask=valid[:, None] & (column >= 448), other=0.0)
        kv = kv + (tl.where(column < 448, nope, rope.to(OPERAND)),)
    else:
        rope = tl.load(rope_ptr[:, None] + tl.arange(0, 64)[None, :], mask=valid[:, None], other=0.0)
        kv = kv + (rope.to(OPERAND),)
    return kv
