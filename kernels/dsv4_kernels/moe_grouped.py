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
def _decode(packed: tl.tensor, scale: tl.tensor, OPERAND: tl.constexpr, ASM: tl.constexpr) -> tl.tensor:
    """Two e2m1 codes per byte times their block's scale: the low nibbles' and the high nibbles' values.

    A code's three magnitude bits, placed at a bfloat16's low exponent and high mantissa bits, are its value times
    2^-126 (0.5 as a subnormal), so one exact multiplication decodes it. The assembly does two codes per instruction.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            asm="""
            {
            .reg .b32 t, u, v, k;
            mov.b32 k, 0x7E807E80;
            prmt.b32 t, $4, 0, 0x1404;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 u, u, k;
            mul.rn.bf16x2 $0, u, $5;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 u, u, k;
            mul.rn.bf16x2 $2, u, $5;
            prmt.b32 t, $4, 0, 0x3424;
            shr.b32 u, t, 2;
            shl.b32 v, t, 4;
            and.b32 u, u, 0x01C001C0;
            and.b32 v, v, 0x80008000;
            or.b32 u, u, v;
            mul.rn.bf16x2 u, u, k;
            mul.rn.bf16x2 $1, u, $6;
            shr.b32 u, t, 6;
            and.b32 v, t, 0x80008000;
            and.b32 u, u, 0x01C001C0;
            or.b32 u, u, v;
            mul.rn.bf16x2 u, u, k;
            mul.rn.bf16x2 $3, u, $6;
            }
            """,
            constraints="=r,=r,=r,=r,r,r,r",
            args=[packed, scale],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    # The same in float32, whose exponent field is as wide: for the interpreter, which has no assembly.
    code = packed.to(tl.int32)
    low = (((code & 8) << 28) | ((code & 7) << 22)).to(tl.float32, bitcast=True)
    high = (((code & 128) << 24) | ((code & 112) << 18)).to(tl.float32, bitcast=True)
    factor = scale.to(tl.float32)
    power = 8.507059173023462e37  # 2^126
    return (low * power * factor).to(OPERAND), (high * power * factor).to(OPERAND)


@triton.jit
def _load_weights(
    packed_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    row: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
) -> tl.tensor:
    """``[BLOCK_N, BLOCK_K // 2]`` even and odd weights of columns ``start ..``; an e4m3 scale unless GROUP is 32."""
    byte = start // 2 + tl.arange(0, BLOCK_K // 2)
    group = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
    packed = tl.load(packed_ptr + row[:, None] * (width // 2) + byte[None, :])
    stored = tl.load(scale_ptr + row[:, None] * (width // GROUP) + group[None, :])
    if GROUP == 32:
        # The byte is a bfloat16's exponent field; byte 0 is 2^-127, half the least normal.
        bits = tl.maximum(stored.to(tl.int32) << 7, 64)
        scale = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        scale = stored.to(tl.bfloat16)
    spread = tl.broadcast_to(scale[:, :, None], (BLOCK_N, BLOCK_K // GROUP, GROUP // 2))
    return _decode(packed, tl.reshape(spread, (BLOCK_N, BLOCK_K // 2)), OPERAND, ASM)


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
    """``[BLOCK_K // 2, BLOCK_M]`` even and odd columns ``start ..`` of the block's input rows."""
    k = start + tl.arange(0, BLOCK_K)
    x = tl.load(x_ptr + row[:, None] * width + k[None, :], mask=valid[:, None], other=0.0)
    even, odd = tl.split(tl.reshape(x, (BLOCK_M, BLOCK_K // 2, 2)))
    return tl.trans(even.to(OPERAND)), tl.trans(odd.to(OPERAND))


@triton.jit
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OVERALL: tl.constexpr,
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
    packed_ptr += expert * inter * dim
    scale_ptr += expert * 2 * inter * (dim // GROUP)
    acc = tl.zeros((2 * BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, dim, BLOCK_K, num_stages=STAGES):
        even, odd = _load_inputs(x_ptr, token, valid, start, dim, BLOCK_M, BLOCK_K, OPERAND)
        low, high = _load_weights(
            packed_ptr, scale_ptr, row, start, dim, 2 * BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        acc = tl.dot(low, even, acc)
        acc = tl.dot(high, odd, acc)
    gate, up = tl.split(tl.permute(tl.reshape(acc, (BLOCK_N, 2, BLOCK_M)), (0, 2, 1)))
    if HAS_OVERALL:
        overall = tl.load(overall_ptr + expert)
        gate *= overall
        up *= overall
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    hidden = gate * tl.sigmoid(gate) * up
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    target = out_ptr + tl.where(valid, pair, 0)[None, :] * inter + column[:, None]
    tl.store(target, hidden.to(tl.bfloat16), mask=valid[None, :])


@triton.jit
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OVERALL: tl.constexpr,
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
    packed_ptr += expert * dim * (inter // 2)
    scale_ptr += expert * dim * (inter // GROUP)
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, inter, BLOCK_K, num_stages=STAGES):
        even, odd = _load_inputs(hidden_ptr, pair, valid, start, inter, BLOCK_M, BLOCK_K, OPERAND)
        low, high = _load_weights(
            packed_ptr, scale_ptr, row, start, inter, BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        acc = tl.dot(low, even, acc)
        acc = tl.dot(high, odd, acc)
    weight = tl.load(weights_ptr + pair)
    if HAS_OVERALL:
        weight *= tl.load(overall_ptr + expert)
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
        "GROUP": BLOCK[experts.format],
        "HAS_OVERALL": experts.g13 is not None,
        "STAGES": NUM_STAGES,
        "OPERAND": operand(tl.bfloat16),
        "ASM": not INTERPRETED,
        "num_warps": NUM_WARPS,
    }
    w13[(inter // BLOCK_N, blocks)](
        x, experts.w13, experts.s13, total if experts.g13 is None else experts.g13,
        pairs, expert_of, total, hidden, dim, inter, topk, limit, BLOCK_K=_block_k(dim), **shared,
    )  # fmt: skip
    w2[(dim // BLOCK_N, blocks)](
        hidden, experts.w2, experts.s2, total if experts.g2 is None else experts.g2,
        weights, pairs, expert_of, total, partial, dim, inter, BLOCK_K=_block_k(inter), **shared,
    )  # fmt: skip
    block_d = min(1024, triton.next_power_of_2(dim))
    reduce[(tokens, triton.cdiv(dim, block_d))](partial, out, dim, TOPK=topk, BLOCK_D=block_d, num_warps=4)
    return out


def _block_k(width: int) -> int:
    return BLOCK_K if width % BLOCK_K == 0 else 64
