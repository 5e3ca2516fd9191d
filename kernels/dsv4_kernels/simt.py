"""The baseline: sparse-MLA decode without tensor cores, one head per program, one call per scope.

This is the kernel the optimisation campaign started from, rebuilt from its description, because every
table needs an honest "before": grid ``(rows, H)``, products and sums on CUDA cores, each head reading the
KV again, scales fetched per element, the 448 e4m3 columns padded to 512 by a mask, the loop running over
the *padded* width (lengths only mask), and the two scopes merged by torch operations, with the partial
outputs rounded to bf16 on the way. It is neither improved nor made worse.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.call import DecodeCall, Scope
from dsv4_kernels.reference import apply_sink
from dsv4_kernels.runtime import LOG2_E


@triton.jit
def _sparse_mla_simt_kernel(
    q_ptr: tl.tensor, kv_ptr: tl.tensor, page_stride: tl.tensor, index_ptr: tl.tensor, length_ptr: tl.tensor,
    out_ptr: tl.tensor, lse_ptr: tl.tensor, heads: tl.tensor, q_len: tl.tensor, scale_log2: tl.tensor,
    WIDTH: tl.constexpr, PAGE_SIZE: tl.constexpr, HAS_LENGTH: tl.constexpr, BLOCK_T: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    column = tl.arange(0, 512)
    rope_column = tl.arange(0, 64)
    is_nope = column < 448
    q_base = q_ptr + (row.to(tl.int64) * heads + head) * 512
    q_nope = tl.load(q_base + column, mask=is_nope, other=0.0).to(tl.float32) * scale_log2
    q_rope = tl.load(q_base + 448 + rope_column).to(tl.float32) * scale_log2
    length = WIDTH
    if HAS_LENGTH:
        length = tl.load(length_ptr + row // q_len)
    m = -1.0e30
    l = 0.0  # noqa: E741
    acc_nope = tl.zeros([512], tl.float32)
    acc_rope = tl.zeros([64], tl.float32)
    for start in range(0, WIDTH, BLOCK_T):
        position = start + tl.arange(0, BLOCK_T)
        index = tl.load(index_ptr + row.to(tl.int64) * WIDTH + position, mask=position < WIDTH, other=-1)
        valid = (index >= 0) & (position < length)
        index = tl.where(valid, index, 0)
        page = kv_ptr + (index // PAGE_SIZE).to(tl.int64) * page_stride
        slot = index % PAGE_SIZE
        record = page + slot * 576
        read = valid[:, None] & is_nope[None, :]
        raw = tl.load(record[:, None] + column[None, :], mask=read, other=0)
        scale_ptr = page[:, None] + PAGE_SIZE * 576 + slot[:, None] * 8 + column[None, :] // 64
        code = tl.load(scale_ptr, mask=read, other=127)
        nope = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32) * tl.exp2(code.to(tl.float32) - 127.0)
        rope_ptr = (record + 448).to(tl.pointer_type(tl.bfloat16), bitcast=True)
        rope = tl.load(rope_ptr[:, None] + rope_column[None, :], mask=valid[:, None], other=0.0).to(
            tl.float32
        )
        score = tl.sum(nope * q_nope[None, :], 1) + tl.sum(rope * q_rope[None, :], 1)
        score = tl.where(valid, score, -1.0e30)
        m_new = tl.maximum(m, tl.max(score, 0))
        alpha = tl.exp2(m - m_new)
        weight = tl.where(valid, tl.exp2(score - m_new), 0.0)
        l = l * alpha + tl.sum(weight, 0)  # noqa: E741
        acc_nope = acc_nope * alpha + tl.sum(weight[:, None] * nope, 0)
        acc_rope = acc_rope * alpha + tl.sum(weight[:, None] * rope, 0)
        m = m_new
    inverse = tl.where(l == 0.0, 0.0, 1.0 / l)
    out_base = out_ptr + (row.to(tl.int64) * heads + head) * 512
    tl.store(out_base + column, (acc_nope * inverse).to(out_ptr.dtype.element_ty), mask=is_nope)
    tl.store(out_base + 448 + rope_column, (acc_rope * inverse).to(out_ptr.dtype.element_ty))
    # Not "l > 0": a sum of NaN is no empty row.
    lse = tl.where(l == 0.0, float("-inf"), (m + tl.log2(l)) * 0.6931471805599453)
    tl.store(lse_ptr + row * heads + head, lse)


def _one_scope(call: DecodeCall, scope: Scope, block_t: int, warps: int) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(call.q)
    lse = torch.full((call.rows, call.heads), float("-inf"), dtype=torch.float32, device=call.q.device)
    _sparse_mla_simt_kernel[(call.rows, call.heads)](
        call.q, scope.cache.data, scope.cache.data.stride(0), scope.indices,
        scope.lengths if scope.lengths is not None else call.q, out, lse, call.heads, call.q_len,
        call.scale * LOG2_E, WIDTH=scope.width, PAGE_SIZE=scope.cache.page_size,
        HAS_LENGTH=scope.lengths is not None, BLOCK_T=block_t, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out, lse


def _merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge two finished softmaxes by their log-sum-exp, in plain torch operations."""
    high = torch.maximum(first[1], second[1])
    shift = torch.where(high == float("-inf"), torch.zeros_like(high), high)
    weights = torch.exp(first[1] - shift), torch.exp(second[1] - shift)
    total = weights[0] + weights[1]
    safe = torch.where(total == 0, torch.ones_like(total), total)
    out = (
        first[0].float() * (weights[0] / safe)[..., None] + second[0].float() * (weights[1] / safe)[..., None]
    )
    return out.to(torch.bfloat16), shift + torch.log(total)


def simt_decode(call: DecodeCall, block_t: int = 16, warps: int = 4) -> tuple[Tensor, Tensor]:
    """Run the baseline: one launch per scope, merged and given its sink in torch.

    Args:
        call: A checked call.
        block_t: Tokens per loop step; the original tunes over (16, 4), (16, 8) and (32, 8) warps.
        warps: Warps per program.

    Returns:
        bf16 ``[rows, H, 512]`` and float32 ``[rows, H]``.
    """
    out, lse = _one_scope(call, call.scopes[0], block_t, warps)
    for scope in call.scopes[1:]:
        out, lse = _merge((out, lse), _one_scope(call, scope, block_t, warps))
    merged, lse = apply_sink(out.float() if call.sink is not None else out, lse, call.sink, call.convention)
    return merged.to(torch.bfloat16), lse.float()
