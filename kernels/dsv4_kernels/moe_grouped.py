"""How does one launch read every chosen FP4 expert once, with shapes that do not follow the routing?

Four launches, none of whose shapes depends on the routing (one CUDA graph fits any):

1. ``align``: token-expert pairs sorted by expert into blocks, each block one expert's, padded with -1; and the tokens
   copied in the order of columns in which weights are decoded;
2. ``w13``: gate and up products, clamp, silu, product -> [pairs, I], in that order too;
3. ``w2``: down product times the routing weight -> [pairs, D];
4. ``reduce``: the sum over a token's experts.

The grids have as many blocks as the worst routing can fill; blocks past the real count leave at once. At decode
batches an expert sees one or two tokens, so weights are the dot's M side, a block's few tokens its N side, and the time
is that of streaming weights. A program is one warp: Triton then takes ``mma.sync``, whose operands lie in registers
where decoding leaves them, and not ``wgmma``, which four warps would wait for after each of eight products an
iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from . import moe_select
from ._device import interpreting, operand
from .fp4 import BLOCK
from .fp4_device import column_order, fold, load_weights, multiply, place_order, undo_shift
from .moe_select import Tile, max_blocks
from .runtime import launch_options

if TYPE_CHECKING:
    from .moe_fp4 import Fp4Experts

COPY_SPAN = 1024  # columns a program of align copies


@triton.jit
def _moe_align_kernel(
    ids_ptr: tl.tensor,
    x_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    expert_ptr: tl.tensor,
    total_ptr: tl.tensor,
    ordered_ptr: tl.tensor,
    count: tl.tensor,
    experts: tl.tensor,
    dim: tl.tensor,
    SPAN: tl.constexpr,
    E_SPAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COPY_SPAN: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    mine = tl.program_id(0)
    if mine >= experts:
        chunks = tl.cdiv(dim, COPY_SPAN)
        token = (mine - experts) // chunks
        place = (mine - experts) % chunks * COPY_SPAN + tl.arange(0, COPY_SPAN)
        inside = place < dim
        x = tl.load(x_ptr + token * dim + column_order(place), mask=inside, other=0.0)
        tl.store(ordered_ptr + token * dim + place, x, mask=inside)
        return
    pair = tl.arange(0, SPAN)
    inside = pair < count
    ids = tl.load(ids_ptr + pair, mask=inside, other=0)
    # Each program counts all experts for itself: a few hundred ids cost less than a second launch or an atomic.
    blocks = (tl.histogram(ids, E_SPAN, mask=inside) + (BLOCK_M - 1)) // BLOCK_M
    expert = tl.arange(0, E_SPAN)
    first = tl.sum(tl.where(expert < mine, blocks, 0), axis=0)
    own = tl.sum(tl.where(expert == mine, blocks, 0), axis=0)
    if mine == experts - 1:
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
    words: tl.tensor,
    groups: tl.tensor,
    topk: tl.tensor,
    limit: tl.tensor,
    shift: tl.tensor,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    PLACES: tl.constexpr = BLOCK_M * PARTS
    block = tl.program_id(1)
    # All three at once, before the branch: one round trip to memory. What lies past the total is not used.
    total = tl.load(total_ptr)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, PLACES) // PARTS)
    if block >= total:
        return
    # Gate rows, then the same rows of up: one product, and one thread holds both of a pair.
    HALF: tl.constexpr = ROWS // 2
    index = tl.arange(0, ROWS * PARTS) // PARTS
    row = (index // HALF) * inter + tl.program_id(0) * HALF + index % HALF
    packed_ptr += expert * (2 * inter * words)
    scale_ptr += expert * (2 * inter * groups)
    acc = tl.zeros((ROWS * PARTS, PLACES), dtype=tl.float32)
    for start in tl.range(0, dim, BLOCK_K, num_stages=STAGES):
        for unit in tl.static_range(0, BLOCK_K, 128 * PARTS):
            weights = load_weights(
                packed_ptr, scale_ptr, row, start + unit, words, groups, shift,
                ROWS * PARTS, PARTS, GROUP, OPERAND, ASM,
            )  # fmt: skip
            acc = multiply(
                acc, weights, x_ptr, pair // topk, pair >= 0, start + unit, dim, PLACES, PARTS, OPERAND
            )
    acc = fold(acc, ROWS * PARTS, PLACES, PARTS)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid = pair >= 0
    acc *= undo_shift(shift, overall_ptr, expert, GROUP)
    gate, up = tl.split(tl.permute(tl.reshape(acc, (2, HALF, BLOCK_M)), (1, 2, 0)))
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    hidden = gate * tl.sigmoid(gate) * up
    column = place_order(tl.program_id(0) * HALF + tl.arange(0, HALF))
    tl.store(out_ptr + pair[None, :] * inter + column[:, None], hidden.to(tl.bfloat16), mask=valid[None, :])


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
    words: tl.tensor,
    groups: tl.tensor,
    shift: tl.tensor,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    OPERAND: tl.constexpr,
    ASM: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    PLACES: tl.constexpr = BLOCK_M * PARTS
    block = tl.program_id(1)
    # All three at once, before the branch: one round trip to memory. What lies past the total is not used.
    total = tl.load(total_ptr)
    expert = tl.load(expert_ptr + block).to(tl.int64)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, PLACES) // PARTS)
    if block >= total:
        return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS * PARTS) // PARTS
    packed_ptr += expert * (dim * words)
    scale_ptr += expert * (dim * groups)
    acc = tl.zeros((ROWS * PARTS, PLACES), dtype=tl.float32)
    for start in tl.range(0, inter, BLOCK_K, num_stages=STAGES):
        for unit in tl.static_range(0, BLOCK_K, 128 * PARTS):
            weights = load_weights(
                packed_ptr, scale_ptr, row, start + unit, words, groups, shift,
                ROWS * PARTS, PARTS, GROUP, OPERAND, ASM,
            )  # fmt: skip
            acc = multiply(
                acc, weights, hidden_ptr, pair, pair >= 0, start + unit, inter, PLACES, PARTS, OPERAND
            )
    acc = fold(acc, ROWS * PARTS, PLACES, PARTS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.load(pairs_ptr + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid = pair >= 0
    weight = tl.load(weights_ptr + pair, mask=valid, other=0.0) * undo_shift(
        shift, overall_ptr, expert, GROUP
    )
    tl.store(out_ptr + pair[None, :] * dim + row[:, None], acc * weight[None, :], mask=valid[None, :])


@triton.jit
def _moe_reduce_kernel(
    pairs_ptr: tl.tensor,
    out_ptr: tl.tensor,
    dim: tl.tensor,
    TOPK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = column < dim
    total = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for choice in tl.static_range(TOPK):
        total += tl.load(pairs_ptr + (token * TOPK + choice) * dim + column, mask=inside, other=0.0)
    tl.store(out_ptr + token * dim + column, total.to(tl.bfloat16), mask=inside)


def _product(tile: Tile, columns: int, group: int, parts: int, pdl: bool) -> dict[str, Any]:
    """Launch keywords of a product over ``columns``."""
    return {
        "words": columns // 8,
        "groups": columns // group,
        "ROWS": tile.rows,
        "PARTS": parts,
        # An iteration too long for the layer is cut to the least there is.
        "BLOCK_K": tile.block_k if columns % tile.block_k == 0 else 128 * parts,
        "GROUP": group,
        "STAGES": tile.stages,
        "OPERAND": operand(tl.bfloat16),
        "ASM": not interpreting(),
        **launch_options(tile.warps, pdl),
    }


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
    count, group = tokens * topk, BLOCK[experts.format]
    choice = moe_select.choose(count, experts.count)
    parts = 2 if dim % 256 == 0 and inter % 256 == 0 else 1
    block_m, pdl = choice.places // parts, choice.pdl
    blocks = max_blocks(count, experts.count, block_m)
    pairs = torch.empty(blocks * block_m, dtype=torch.int32, device=device)
    expert_of = torch.empty(blocks, dtype=torch.int32, device=device)
    total = torch.empty(1, dtype=torch.int32, device=device)
    ordered = torch.empty_like(x)
    hidden = torch.empty(count, inter, dtype=torch.bfloat16, device=device)
    partial = torch.empty(count, dim, dtype=torch.float32, device=device)
    out = torch.empty_like(x)
    align: Any = _moe_align_kernel
    w13: Any = _moe_fp4_gemm_w13_kernel
    w2: Any = _moe_fp4_gemm_w2_kernel
    reduce: Any = _moe_reduce_kernel
    align[(experts.count + tokens * triton.cdiv(dim, COPY_SPAN),)](
        ids, x, pairs, expert_of, total, ordered, count, experts.count, dim,
        SPAN=triton.next_power_of_2(count), E_SPAN=triton.next_power_of_2(experts.count), BLOCK_M=block_m,
        COPY_SPAN=COPY_SPAN, **launch_options(4, pdl),
    )  # fmt: skip
    w13[(2 * inter // choice.w13.rows, blocks)](
        ordered, experts.w13.view(torch.int32), experts.s13, total if experts.g13 is None else experts.g13,
        pairs, expert_of, total, hidden, dim, inter,
        topk=topk, limit=limit, shift=experts.shift13, BLOCK_M=block_m,
        **_product(choice.w13, dim, group, parts, pdl),
    )  # fmt: skip
    w2[(dim // choice.w2.rows, blocks)](
        hidden, experts.w2.view(torch.int32), experts.s2, total if experts.g2 is None else experts.g2,
        weights, pairs, expert_of, total, partial, dim, inter,
        shift=experts.shift2, BLOCK_M=block_m, **_product(choice.w2, inter, group, parts, pdl),
    )  # fmt: skip
    block_d = min(1024, triton.next_power_of_2(dim))
    reduce[(tokens, triton.cdiv(dim, block_d))](
        partial, out, dim, TOPK=topk, BLOCK_D=block_d, **launch_options(4, pdl)
    )
    return out
