"""Dense FP8 projection as DeepSeek-V4 serves it: 128x128 weight blocks, 1x128 activation groups, UE8M0 scales.

``y = dequant(x) @ dequant(w)^T`` with e4m3 operands, FP32 accumulation and power-of-two scales applied once per
128 channels. Two kernels: one quantises the activations, one multiplies. The weight tile is the left operand
(``w @ x^T``): at decode batch sizes the token count does not fill the 64 rows of a Hopper ``wgmma``, the weight
rows always do.

Some projections have fewer tiles than the GPU has SMs. Their K may be split over programs, whose partial sums a third
kernel adds (:func:`choose_splits`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP = 128  # channels per activation scale; rows and columns of a weight block
E4M3_MAX = 448.0


@triton.jit
def _per_token_group_quant_fp8_kernel(
    x_ptr: tl.tensor, q_ptr: tl.tensor, s_ptr: tl.tensor, row_stride: tl.tensor, groups: tl.tensor,
    GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (row, group of 128 channels): amax, power-of-two scale, e4m3 codes."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    cols = group * GROUP + tl.arange(0, GROUP)
    x = tl.load(x_ptr + row * row_stride + cols).to(tl.float32)
    amax = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-4)
    scale = tl.exp2(tl.ceil(tl.log2(amax / 448.0)))
    tl.store(q_ptr + row * groups * GROUP + cols, (x / scale).to(tl.float8e4nv))
    tl.store(s_ptr + row * groups + group, scale)


@triton.jit
def _fp8_block_gemm_kernel(
    x_ptr: tl.tensor, xs_ptr: tl.tensor, w_ptr: tl.tensor, ws_ptr: tl.tensor, y_ptr: tl.tensor,
    M: tl.tensor, N: tl.tensor, K: tl.tensor, batch: tl.tensor,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (BLOCK_N outputs, BLOCK_M tokens, member of the batch and part of K); walks K by 128.

    With more than one split ``y`` holds float32 sums, [SPLITS, M, batch, N], and every part has a group at least.
    """
    member = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, GROUP)
    groups = K // GROUP
    first = split * groups // SPLITS
    row = (m * batch + member).to(tl.int64)  # activations are [M, batch, K]
    w_row = (member * N + n).to(tl.int64)  # weights are [batch, N, K]
    x_at = x_ptr + row[None, :] * K + first * GROUP + k[:, None]
    w_at = w_ptr + w_row[:, None] * K + first * GROUP + k[None, :]
    xs_at = xs_ptr + row * groups
    ws_at = ws_ptr + ((member * N + tl.program_id(0) * BLOCK_N) // GROUP) * groups
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for g in range(first, (split + 1) * groups // SPLITS):
        x = tl.load(x_at, mask=m[None, :] < M, other=0.0)
        w = tl.load(w_at, mask=n[:, None] < N, other=0.0)
        xs = tl.load(xs_at + g, mask=m < M, other=0.0)
        ws = tl.load(ws_at + g)
        acc += tl.dot(w, x) * (xs * ws)[None, :]
        x_at += GROUP
        w_at += GROUP
    y_at = y_ptr + (row[None, :] + split.to(tl.int64) * M * batch) * N + n[:, None]
    tl.store(y_at, acc.to(y_ptr.dtype.element_ty), mask=(m[None, :] < M) & (n[:, None] < N))


@triton.jit
def _fp8_splitk_reduce_kernel(
    part_ptr: tl.tensor, y_ptr: tl.tensor, size: tl.tensor, SPLITS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """One program per BLOCK outputs: the sum of their parts, always in the same order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(part_ptr + split * size + at, mask=at < size, other=0.0)
    tl.store(y_ptr + at, total.to(tl.bfloat16), mask=at < size)


def quantize_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise per row and 128 channels.

    Args:
        x: [rows, K] bf16, K a multiple of 128, contiguous rows.

    Returns:
        e4m3 codes [rows, K] and FP32 power-of-two scales [rows, K/128].
    """
    rows, K = x.shape
    groups = K // GROUP
    if x.is_cuda:
        q = torch.empty((rows, K), dtype=torch.float8_e4m3fn, device=x.device)
        s = torch.empty((rows, groups), dtype=torch.float32, device=x.device)
        _per_token_group_quant_fp8_kernel[(rows, groups)](
            x, q, s, x.stride(0), groups, GROUP=GROUP, num_warps=1
        )
        return q, s
    blocks = x.float().view(rows, groups, GROUP)
    s = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1).clamp_min(1e-4) / E4M3_MAX)))
    return (blocks / s[..., None]).view(rows, K).to(torch.float8_e4m3fn), s


def quantize_weight(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise by 128x128 blocks.

    Args:
        w: [..., N, K] float, N and K multiples of 128.

    Returns:
        e4m3 codes [..., N, K] and FP32 power-of-two scales [..., N/128, K/128].
    """
    *lead, N, K = w.shape
    blocks = w.float().view(*lead, N // GROUP, GROUP, K // GROUP, GROUP)
    s = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax((-3, -1)).clamp_min(1e-8) / E4M3_MAX)))
    codes = (blocks / s[..., :, None, :, None]).to(torch.float8_e4m3fn)
    return codes.view(*lead, N, K), s


def dequantize_weight(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """FP32 weights [..., N, K] from :func:`quantize_weight`'s pair; exact (power-of-two scales)."""
    *lead, N, K = codes.shape
    blocks = codes.float().view(*lead, N // GROUP, GROUP, K // GROUP, GROUP)
    return (blocks * scales[..., :, None, :, None]).view(*lead, N, K)


def block_n(outputs: int) -> int:
    """Weight rows of a program.

    64 rows keep 64 or more programs in flight on every projection but the first; 128 halves the activation re-reads
    where there are outputs enough to fill the GPU anyway.

    Args:
        outputs: of all members of a batch.
    """
    return 128 if outputs >= 16384 else 64


def choose_splits(outputs: int, inputs: int, rows: int, sms: int) -> int:
    """How many programs share the K of one tile.

    Up to four (more did not pay at any size measured), as long as two programs an SM are not exceeded, each walks eight
    groups, and writing and reading the partial sums is a quarter of the weights' bytes at most. On an H200 at 32 rows
    it takes the fastest count of ``benchmarks/fp8_splits.py`` or one within 2 % of it, at 1 row within 10 %; at 128
    rows the first projection could gain a quarter more.

    Args:
        outputs: of all members of a batch.
        inputs: K.
        rows: M.
        sms: streaming multiprocessors of the GPU.

    Returns:
        1 or more.
    """
    tiles = -(-outputs // block_n(outputs)) * -(-rows // 64)
    cheap = inputs // (4 * 8 * rows)  # 8 bytes, 4 out and 4 in, per split, row and output; one per weight
    return max(1, min(4, 2 * sms // tiles, inputs // GROUP // 8, cheap))


def fp8_block_matmul(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, splits: int = 1
) -> torch.Tensor:
    """Multiply activations with block-quantised weights, one product per member of a batch.

    Args:
        x: [M, G, K] bf16, contiguous.
        codes: [G, N, K] e4m3.
        scales: [G, N/128, K/128] f32.
        splits: programs that share the K of a tile, at most K/128; the CPU's torch form knows none.

    Returns:
        [M, G, N] bf16.
    """
    M, G, K = x.shape
    q, s = quantize_activations(x.view(M * G, K))
    if not x.is_cuda:
        activations = q.float().view(M, G, K // GROUP, GROUP) * s.view(M, G, K // GROUP, 1)
        return torch.einsum(
            "mgk,gnk->mgn", activations.view(M, G, K), dequantize_weight(codes, scales)
        ).bfloat16()
    return multiply(q, s, codes, scales, M, splits)


def multiply(
    q: torch.Tensor, s: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, rows: int, splits: int
) -> torch.Tensor:
    """The product's kernels.

    Args:
        q: [rows * G, K] e4m3, of :func:`quantize_activations`.
        s: [rows * G, K/128] f32, likewise.
        codes: [G, N, K] e4m3.
        scales: [G, N/128, K/128] f32.
        rows: M.
        splits: programs that share the K of a tile.

    Returns:
        [M, G, N] bf16.
    """
    G, N, K = codes.shape
    y = torch.empty((rows, G, N), dtype=torch.bfloat16, device=q.device)
    out = y if splits == 1 else torch.empty((splits, rows, G, N), dtype=torch.float32, device=q.device)
    block_m, rows_n = min(64, max(16, triton.next_power_of_2(rows))), block_n(G * N)
    grid = (triton.cdiv(N, rows_n), triton.cdiv(rows, block_m), G * splits)
    _fp8_block_gemm_kernel[grid](
        q, s, codes, scales, out, rows, N, K, G,
        BLOCK_M=block_m, BLOCK_N=rows_n, GROUP=GROUP, SPLITS=splits, num_warps=4, num_stages=4,
    )  # fmt: skip
    if splits > 1:
        block = 512
        _fp8_splitk_reduce_kernel[(triton.cdiv(y.numel(), block),)](
            out, y, y.numel(), SPLITS=splits, BLOCK=block, num_warps=4
        )
    return y
