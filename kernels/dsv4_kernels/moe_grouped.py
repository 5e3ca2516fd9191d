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

from ._device import interpreting, operand
from .fp4 import BLOCK
from .fp4_device import load_inputs, load_weights, undo_shift

if TYPE_CHECKING:
    from .moe_fp4 import Fp4Experts

BLOCK_M = 16
# A 32-bit word holds 8 codes and a dot takes at least 16 words: not less, and D and I are only known multiples of it.
# (N, K, stages) on the H200, us for 1 / 32 tokens: (64, 128, 3) 76.7 / 946; (64, 128, 4) 79.5 / 1078;
# (64, 256, 2) 68.7 / 996; (64, 256, 3) 73.7 / 1084; (32, 128, 4) 102 / 1790; (128, 256, 3, 8 warps) 78.8 / 1126.
BLOCK_N = 64
BLOCK_K = 128
NUM_STAGES = 3
NUM_WARPS = 4


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
        inputs = load_inputs(x_ptr, token, valid, start, dim, BLOCK_M, BLOCK_K, OPERAND)
        weights = load_weights(
            packed_ptr, scale_ptr, row, start, dim, shift, 2 * BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        for i in tl.static_range(8):
            acc = tl.dot(weights[i], inputs[i], acc)
    acc *= undo_shift(shift, overall_ptr, expert, GROUP)
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
        inputs = load_inputs(hidden_ptr, pair, valid, start, inter, BLOCK_M, BLOCK_K, OPERAND)
        weights = load_weights(
            packed_ptr, scale_ptr, row, start, inter, shift, BLOCK_N, BLOCK_K, GROUP, OPERAND, ASM
        )
        for i in tl.static_range(8):
            acc = tl.dot(weights[i], inputs[i], acc)
    weight = tl.load(weights_ptr + pair) * undo_shift(shift, overall_ptr, expert, GROUP)
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
        "ASM": not interpreting(),
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
