"""How few launches does mHC need? Two before a block (split-K product, finish), one after it, one at the head.

The product [T, 4 D] x [4 D, 24] is too narrow to fill a GPU by its output, so K is split over as many programs as
there are SMs; each also sums its part's squares, so that x is read once. The finish adds the parts up, makes the
weights (Sinkhorn in registers, by one program per token) and mixes the streams.

float32 accuracy from TF32 tensor cores: x is bfloat16, exact in TF32, and each weight is split into a TF32 number and
its remainder, so two products give about 22 bits where one would give 11.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK_T = 16
BLOCK_K = 128
# Split-K parts in all: near the SM count of the parts in use (132 to 188); a power of two, so it divides 4 D evenly.
# 64 (with 2 warps and 512 columns in the finish): 11.3 us a site at one token, 26.6 at 128 (H200).
PARTS = 128
# One warp: Sinkhorn's sums need no barriers. H200, 1 / 32 / 128 tokens: 9.0 / 10.4 / 16.8 us a site for 1 warp and 256
# columns, 9.8 / 11.0 / 17.0 for 1 and 1024, 10.5 / 12.3 / 17.9 for 4 and 1024.
FINISH_WARPS = 1
FINISH_BLOCK_D = 256
_COLUMNS = 32  # 24 mixes, column 24 the sum of squares, the rest unused


@triton.jit
def _mhc_pre_gemm_kernel(
    x_ptr: tl.tensor,
    fn_ptr: tl.tensor,
    part_ptr: tl.tensor,
    tokens: tl.tensor,
    width: tl.tensor,
    share: tl.tensor,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    part = tl.program_id(0)
    token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, 32)
    mixes = tl.zeros((BLOCK_T, 32), dtype=tl.float32)
    squares = tl.zeros((BLOCK_T, BLOCK_K), dtype=tl.float32)
    for start in range(part * share, tl.minimum((part + 1) * share, width), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < width
        x_mask = (token < tokens)[:, None] & inside[None, :]
        x = tl.load(x_ptr + token.to(tl.int64)[:, None] * width + k[None, :], mask=x_mask, other=0.0)
        x = x.to(tl.float32)
        fn_mask = (column < 24)[None, :] & inside[:, None]
        fn = tl.load(fn_ptr + column[None, :] * width + k[:, None], mask=fn_mask, other=0.0)
        coarse = (fn.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        mixes = tl.dot(x, coarse, mixes, input_precision="tf32")
        mixes = tl.dot(x, fn - coarse, mixes, input_precision="tf32")
        squares += x * x
    row = (part * tokens + token)[:, None] * 32 + column[None, :]
    value = tl.where((column == 24)[None, :], tl.sum(squares, axis=1)[:, None], mixes)
    tl.store(part_ptr + row, value, mask=(token < tokens)[:, None] & (column < 25)[None, :])


@triton.jit
def _element(vector: tl.tensor, index: tl.constexpr) -> tl.tensor:
    """One element of a vector of 4, as a scalar."""
    return tl.sum(tl.where(tl.arange(0, 4) == index, vector, 0.0), axis=0)


@triton.jit
def _mhc_pre_finish_kernel(
    x_ptr: tl.tensor,
    part_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    base_ptr: tl.tensor,
    y_ptr: tl.tensor,
    post_ptr: tl.tensor,
    comb_ptr: tl.tensor,
    tokens: tl.tensor,
    dim: tl.tensor,
    eps: tl.tensor,
    hc_eps: tl.tensor,
    iters: tl.tensor,
    PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    block = tl.program_id(1)
    four = tl.arange(0, 4)
    part = part_ptr + (tl.arange(0, PARTS) * tokens + token) * 32
    rsqrt = tl.rsqrt(tl.sum(tl.load(part + 24), axis=0) / (4 * dim) + eps)
    mix = tl.sum(tl.load(part[:, None] + four[None, :]), axis=0) * rsqrt
    pre = tl.sigmoid(mix * tl.load(scale_ptr) + tl.load(base_ptr + four)) + hc_eps
    column = block * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = column < dim
    x_ptr += token.to(tl.int64) * 4 * dim
    y = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for stream in tl.static_range(4):
        x = tl.load(x_ptr + stream * dim + column, mask=inside, other=0.0).to(tl.float32)
        y += _element(pre, stream) * x
    tl.store(y_ptr + token.to(tl.int64) * dim + column, y.to(tl.bfloat16), mask=inside)
    if block == 0:
        mix = tl.sum(tl.load(part[:, None] + 4 + four[None, :]), axis=0) * rsqrt
        post = 2.0 * tl.sigmoid(mix * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + four))
        tl.store(post_ptr + token * 4 + four, post)
        cell = four[:, None] * 4 + four[None, :]
        mixes = tl.sum(tl.load(part[:, None, None] + 8 + cell[None, :, :]), axis=0) * rsqrt
        comb = mixes * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + cell)
        comb = tl.exp(comb - tl.max(comb, axis=1)[:, None])
        comb = comb / tl.sum(comb, axis=1)[:, None] + hc_eps
        comb = comb / (tl.sum(comb, axis=0)[None, :] + hc_eps)
        for _ in range(1, iters):
            comb = comb / (tl.sum(comb, axis=1)[:, None] + hc_eps)
            comb = comb / (tl.sum(comb, axis=0)[None, :] + hc_eps)
        tl.store(comb_ptr + token * 16 + cell, comb)


@triton.jit
def _mhc_post_kernel(
    block_ptr: tl.tensor,
    x_ptr: tl.tensor,
    post_ptr: tl.tensor,
    comb_ptr: tl.tensor,
    out_ptr: tl.tensor,
    dim: tl.tensor,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = column < dim
    start = token.to(tl.int64) * 4 * dim
    block = tl.load(block_ptr + token.to(tl.int64) * dim + column, mask=inside, other=0.0).to(tl.float32)
    x0 = tl.load(x_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
    x1 = tl.load(x_ptr + start + dim + column, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + start + 2 * dim + column, mask=inside, other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + start + 3 * dim + column, mask=inside, other=0.0).to(tl.float32)
    comb_ptr += token * 16
    for j in tl.static_range(4):
        out = tl.load(comb_ptr + j) * x0 + tl.load(comb_ptr + 4 + j) * x1
        out += tl.load(comb_ptr + 8 + j) * x2 + tl.load(comb_ptr + 12 + j) * x3
        out += tl.load(post_ptr + token * 4 + j) * block
        tl.store(out_ptr + start + j * dim + column, out.to(tl.bfloat16), mask=inside)


@triton.jit
def _hc_head_kernel(
    x_ptr: tl.tensor,
    fn_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    base_ptr: tl.tensor,
    y_ptr: tl.tensor,
    dim: tl.tensor,
    eps: tl.tensor,
    hc_eps: tl.tensor,
    BLOCK_D: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    four = tl.arange(0, 4)
    x_ptr += token.to(tl.int64) * 4 * dim
    mixes = tl.zeros((4, BLOCK_D), dtype=tl.float32)
    squares = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for start in range(0, 4 * dim, BLOCK_D):
        k = start + tl.arange(0, BLOCK_D)
        inside = k < 4 * dim
        x = tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
        fn = tl.load(fn_ptr + four[:, None] * 4 * dim + k[None, :], mask=inside[None, :], other=0.0)
        mixes += fn * x[None, :]
        squares += x * x
    rsqrt = tl.rsqrt(tl.sum(squares, axis=0) / (4 * dim) + eps)
    mix = tl.sum(mixes, axis=1) * rsqrt
    weight = tl.sigmoid(mix * tl.load(scale_ptr) + tl.load(base_ptr + four)) + hc_eps
    w0, w1 = _element(weight, 0), _element(weight, 1)
    w2, w3 = _element(weight, 2), _element(weight, 3)
    for start in range(0, dim, BLOCK_D):
        k = start + tl.arange(0, BLOCK_D)
        inside = k < dim
        y = w0 * tl.load(x_ptr + k, mask=inside, other=0.0).to(tl.float32)
        y += w1 * tl.load(x_ptr + dim + k, mask=inside, other=0.0).to(tl.float32)
        y += w2 * tl.load(x_ptr + 2 * dim + k, mask=inside, other=0.0).to(tl.float32)
        y += w3 * tl.load(x_ptr + 3 * dim + k, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + token.to(tl.int64) * dim + k, y.to(tl.bfloat16), mask=inside)


def pre_parts(tokens: int, width: int) -> int:
    """Split-K parts: enough programs for the device whatever the batch, a function of static shapes alone.

    Args:
        tokens: T.
        width: K, 4 * D.

    Returns:
        A power of two, at least 1; no part is narrower than one block of K.
    """
    groups = -(-tokens // BLOCK_T)
    parts = 1
    while parts * 2 * groups <= PARTS and parts * 2 * BLOCK_K <= width:
        parts *= 2
    return parts


def pre_fused(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    eps: float,
    hc_eps: float,
    iters: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Launch the two kernels of ``mhc.mhc_pre``, which has checked the arguments.

    Args:
        x: bfloat16 [T, 4, D].
        fn: float32 [24, 4 * D].
        scale: float32 [3].
        base: float32 [24].
        eps: Under the root of the mean square.
        hc_eps: Added to weights and Sinkhorn sums.
        iters: Sinkhorn iterations.

    Returns:
        y bfloat16 [T, D], post float32 [T, 4], comb float32 [T, 4, 4].
    """
    tokens, _, dim = x.shape
    width = 4 * dim
    parts = pre_parts(tokens, width)
    share = triton.cdiv(triton.cdiv(width, parts), BLOCK_K) * BLOCK_K
    partial = torch.empty(parts, tokens, _COLUMNS, dtype=torch.float32, device=x.device)
    y = torch.empty(tokens, dim, dtype=torch.bfloat16, device=x.device)
    post = torch.empty(tokens, 4, dtype=torch.float32, device=x.device)
    comb = torch.empty(tokens, 4, 4, dtype=torch.float32, device=x.device)
    gemm: Any = _mhc_pre_gemm_kernel
    finish: Any = _mhc_pre_finish_kernel
    gemm[(parts, triton.cdiv(tokens, BLOCK_T))](
        x, fn, partial, tokens, width, share, BLOCK_T=BLOCK_T, BLOCK_K=BLOCK_K, num_warps=4
    )
    block_d = min(FINISH_BLOCK_D, triton.next_power_of_2(dim))
    finish[(tokens, triton.cdiv(dim, block_d))](
        x, partial, scale, base, y, post, comb, tokens, dim, eps, hc_eps, iters,
        PARTS=parts, BLOCK_D=block_d, num_warps=FINISH_WARPS,
    )  # fmt: skip
    return y, post, comb


def post_fused(block: torch.Tensor, x: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """Launch the kernel of ``mhc.mhc_post``, which has checked the arguments.

    Args:
        block: bfloat16 [T, D].
        x: bfloat16 [T, 4, D].
        post: float32 [T, 4].
        comb: float32 [T, 4, 4].

    Returns:
        bfloat16 [T, 4, D].
    """
    tokens, _, dim = x.shape
    out = torch.empty_like(x)
    block_d = min(1024, triton.next_power_of_2(dim))
    kernel: Any = _mhc_post_kernel
    kernel[(tokens, triton.cdiv(dim, block_d))](block, x, post, comb, out, dim, BLOCK_D=block_d, num_warps=4)
    return out


def hc_head_fused(
    x: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, eps: float, hc_eps: float
) -> torch.Tensor:
    """Launch the kernel of ``mhc.hc_head``, which has checked the arguments.

    Args:
        x: bfloat16 [T, 4, D].
        fn: float32 [4, 4 * D].
        scale: float32 [1].
        base: float32 [4].
        eps: Under the root of the mean square.
        hc_eps: Added to the weights.

    Returns:
        bfloat16 [T, D].
    """
    tokens, _, dim = x.shape
    y = torch.empty(tokens, dim, dtype=torch.bfloat16, device=x.device)
    block_d = min(1024, triton.next_power_of_2(dim))
    kernel: Any = _hc_head_kernel
    kernel[(tokens,)](x, fn, scale, base, y, dim, eps, hc_eps, BLOCK_D=block_d, num_warps=8)
    return y
