"""How does one launch read every chosen FP4 expert once, with shapes that do not follow the routing?

Four launches, none of whose shapes depends on the routing (one CUDA graph fits any):

1. ``align``: token-expert pairs sorted by expert into blocks of 16, each block one expert's, padded with -1;
2. ``w13``: gate and up products, clamp, silu, product -> [pairs, I];
3. ``w2``: down product times the routing weight -> [pairs, D];
4. ``reduce``: the sum over a token's experts.

The grids have as many blocks as the worst routing can fill; blocks past the real count leave at once. At decode
batches an expert sees one or two tokens, so weights are the dot's M side and the 16 token places its N side: on Hopper
the dequantised weights then go from registers straight into the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from ._device import INTERPRETED, operand
from .fp4 import BLOCK

if TYPE_CHECKING:
    from .moe_fp4 import Fp4Experts

BLOCK_M = 16
BLOCK_N = 64
# A 32-bit word holds 8 codes and a dot takes at least 16 words: not less, and D and I are only known multiples of it.
BLOCK_K = 128
NUM_WARPS = 4
NUM_STAGES = 4


@triton.jit
def _moe_align_kernel(
    ids_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    expert_ptr: tl.tensor,
    total_ptr: tl.tensor,
    count: tl.tensor,
    SPAN: tl.constexpr,
    E_SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    mine = tl.program_id(0)
    pair = tl.arange(0, SPAN)
    inside = pair < count
    ids = tl.load(ids_ptr + pair, mask=inside, other=0)
    # Each program counts all experts for itself: a few hundred ids cost less than a second launch or an atomic.
    blocks = (tl.histogram(ids, E_SPAN, mask=inside) + (BLOCK_M - 1)) // BLOCK_M
    expert = tl.arange(0, E_SPAN)
    first = tl.sum(tl.where(expert < mine, blocks, 0), axis=0)
    own = tl.sum(tl.where(expert == mine, blocks, 0), axis=0)
    if mine == tl.num_programs(0) - 1:
        tl.store(total_ptr, first + own)
    if own == 0:
        return
    is_mine = (ids == mine) & inside
    rank = tl.cumsum(is_mine.to(tl.int32), axis=0) - 1
    tl.store(pairs_ptr + first * BLOCK_M + rank, pair, mask=is_mine)
    used = tl.sum(is_mine.to(tl.int32), axis=0)
    pad = used + tl.arange(0, BLOCK_M)
    tl.store(pairs_ptr + first * BLOCK_M + pad, tl.full((BLOCK_M,), -1, tl.int32), mask=pad < own * BLOCK_M)
    for block in range(own):
        tl.store(expert_ptr + first + block, mine)


@triton.jit
def _decode(word: tl.tensor, scale: tl.tensor, OPERAND: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
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
        values = values + ((value * scale.to(tl.float32)).to(OPERAND),)  # noqa: RUF005  (Triton has no unpacking)
    return values


@triton.jit
def _load_weights(
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
    return _decode(packed, tl.reshape(spread, (ROWS, BLOCK_K // 8)), OPERAND, ASM)


@triton.jit
def _load_inputs(
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
def _undo_shift(
    shift: tl.tensor, overall_ptr: tl.tensor, expert: tl.tensor, GROUP: tl.constexpr
) -> tl.tensor:
    """What the products are still to be multiplied by."""
    if GROUP == 32:
        return ((shift + 127) << 23).to(tl.float32, bitcast=True)
    return tl.load(overall_ptr + expert) * 512.0  # 2^126 / 2^117


@triton.jit(do_not_specialize=["shift"])
def _moe_fp4_gemm_w13_kernel(
    x_ptr: tl.tensor,
    packed_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    overall_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    expert_ptr: tl.tensor,
    total_ptr: tl.tensor,
    out_ptr: tl.tensor,
    dim: tl.tensor,
    inter: tl.tensor,
    topk: tl.tensor,
    limit: tl.tensor,
    shift: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
) -> None:
    block = tl.program_id(1)
    if block >= tl.load(total_ptr):
        return
    expert = tl.load(expert_ptr + block).to(tl.int64)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid = pair >= 0
    token = tl.where(valid, pair // topk, 0)
    # Gate and up rows alternate in one tile: one product instead of two, split when all is summed.
    index = tl.arange(0, 2 * BLOCK_N)
    row = (index % 2) * inter + tl.program_id(0) * BLOCK_N + index // 2
    packed_ptr += expert * inter * (dim // 4)
    scale_ptr += expert * 2 * inter * (dim // GROUP)
    acc = tl.zeros((2 * BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, dim, BLOCK_K, num_stages=STAGES):
        inputs = _load_inputs(x_ptr, token, valid, start, dim, BLOCK_M, BLOCK_K, OPERAND)
        weights = _load_weights(
            packed_ptr, scale_ptr, row, start, dim, shift, 2 * BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        for i in tl.static_range(8):
            acc = tl.dot(weights[i], inputs[i], acc)
    acc *= _undo_shift(shift, overall_ptr, expert, GROUP)
    gate, up = tl.split(tl.permute(tl.reshape(acc, (BLOCK_N, 2, BLOCK_M)), (0, 2, 1)))
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    hidden = gate * tl.sigmoid(gate) * up
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    target = out_ptr + tl.where(valid, pair, 0)[None, :] * inter + column[:, None]
    tl.store(target, hidden.to(tl.bfloat16), mask=valid[None, :])


@triton.jit(do_not_specialize=["shift"])
def _moe_fp4_gemm_w2_kernel(
    hidden_ptr: tl.tensor,
    packed_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    overall_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    expert_ptr: tl.tensor,
    total_ptr: tl.tensor,
    out_ptr: tl.tensor,
    dim: tl.tensor,
    inter: tl.tensor,
    shift: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
) -> None:
    block = tl.program_id(1)
    if block >= tl.load(total_ptr):
        return
    expert = tl.load(expert_ptr + block).to(tl.int64)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid = pair >= 0
    pair = tl.where(valid, pair, 0)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    packed_ptr += expert * dim * (inter // 8)
    scale_ptr += expert * dim * (inter // GROUP)
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, inter, BLOCK_K, num_stages=STAGES):
        inputs = _load_inputs(hidden_ptr, pair, valid, start, inter, BLOCK_M, BLOCK_K, OPERAND)
        weights = _load_weights(
            packed_ptr, scale_ptr, row, start, inter, shift, BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        for i in tl.static_range(8):
            acc = tl.dot(weights[i], inputs[i], acc)
    weight = tl.load(weights_ptr + pair) * _undo_shift(shift, overall_ptr, expert, GROUP)
    target = out_ptr + pair[None, :] * dim + row[:, None]
    tl.store(target, acc * weight[None, :], mask=valid[None, :])


@triton.jit
def _moe_reduce_kernel(
    pairs_ptr: tl.tensor, out_ptr: tl.tensor, dim: tl.tensor, TOPK: tl.constexpr, BLOCK_D: tl.constexpr
) -> None:
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = column < dim
    total = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for choice in tl.static_range(TOPK):
        total += tl.load(pairs_ptr + (token * TOPK + choice) * dim + column, mask=inside, other=0.0)
    tl.store(out_ptr + token * dim + column, total.to(tl.bfloat16), mask=inside)


def max_blocks(pairs: int, experts: int) -> int:
    """Blocks of 16 the worst routing fills: every expert's last block may hold a single pair.

    Args:
        pairs: Token-expert pairs, T * topk.
        experts: E.

    Returns:
        At least 1, a function of static shapes alone.
    """
    return max(1, min(pairs, (pairs + (BLOCK_M - 1) * min(pairs, experts)) // BLOCK_M))


def moe_triton(
    x: torch.Tensor, experts: Fp4Experts, ids: torch.Tensor, weights: torch.Tensor, limit: float
) -> torch.Tensor:
    """Launch the four kernels of ``moe_fp4.moe_fp4``, which has checked the arguments.

    Args:
        x: bfloat16 [T, D].
        experts: The layer's experts.
        ids: int32 [T, topk].
        weights: float32 [T, topk].
        limit: The swiglu clamp.

    Returns:
        bfloat16 [T, D].
    """
    tokens, dim = x.shape
    topk, inter, device = ids.shape[1], experts.inter, x.device
    count = tokens * topk
    blocks = max_blocks(count, experts.count)
    pairs = torch.empty(blocks * BLOCK_M, dtype=torch.int32, device=device)
    expert_of = torch.empty(blocks, dtype=torch.int32, device=device)
    total = torch.empty(1, dtype=torch.int32, device=device)
    hidden = torch.empty(count, inter, dtype=torch.bfloat16, device=device)
    partial = torch.empty(count, dim, dtype=torch.float32, device=device)
    out = torch.empty_like(x)
    align: Any = _moe_align_kernel
    w13: Any = _moe_fp4_gemm_w13_kernel
    w2: Any = _moe_fp4_gemm_w2_kernel
    reduce: Any = _moe_reduce_kernel
    align[(experts.count,)](
        ids, pairs, expert_of, total, count,
        SPAN=triton.next_power_of_2(count), E_SPAN=triton.next_power_of_2(experts.count), BLOCK_M=BLOCK_M,
        num_warps=4,
    )  # fmt: skip
    shared = {
        "BLOCK_M": BLOCK_M,
        "BLOCK_N": BLOCK_N,
        "BLOCK_K": BLOCK_K,
        "GROUP": BLOCK[experts.format],
        "STAGES": NUM_STAGES,
        "OPERAND": operand(tl.bfloat16),
        "ASM": not INTERPRETED,
        "num_warps": NUM_WARPS,
    }
    w13[(inter // BLOCK_N, blocks)](
        x, experts.w13.view(torch.int32), experts.s13, total if experts.g13 is None else experts.g13,
        pairs, expert_of, total, hidden, dim, inter, topk, limit, experts.shift13, **shared,
    )  # fmt: skip
    w2[(dim // BLOCK_N, blocks)](
        hidden, experts.w2.view(torch.int32), experts.s2, total if experts.g2 is None else experts.g2,
        weights, pairs, expert_of, total, partial, dim, inter, experts.shift2, **shared,
    )  # fmt: skip
    block_d = min(1024, triton.next_power_of_2(dim))
    reduce[(tokens, triton.cdiv(dim, block_d))](partial, out, dim, TOPK=topk, BLOCK_D=block_d, num_warps=4)
    return out
