"""Sparse-MLA decode on tensor cores, one launch: a head group shares one read of the KV it attends to.

Grid ``(head groups, rows)``. Both scopes run in one softmax, the loop is bounded by the device-side
lengths. The weakness: at small batch the grid is a handful of programs on a GPU with 132 or 188 SMs, see
:mod:`dsv4_kernels.split_k`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels._device import operand
from dsv4_kernels.call import DecodeCall
from dsv4_kernels.core import attend, finish, load_q, reread_program_id, scope_length, store_tiles
from dsv4_kernels.runtime import LOG2_E, kernel_arguments, launch_options
from dsv4_kernels.select import MmaConfig


@triton.jit
def _sparse_mla_mma_kernel(
    q_ptr: tl.tensor, out_ptr: tl.tensor, lse_ptr: tl.tensor, sink_ptr: tl.tensor,
    kv_ptr: tl.tensor, page_stride: tl.tensor, index_ptr: tl.tensor, width: tl.tensor,
    length_ptr: tl.tensor, extra_kv_ptr: tl.tensor, extra_page_stride: tl.tensor, extra_index_ptr: tl.tensor,
    extra_width: tl.tensor, extra_length_ptr: tl.tensor, heads: tl.tensor, q_len: tl.tensor, scale_log2: tl.tensor,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, HAS_EXTRA: tl.constexpr,
    HAS_LENGTH: tl.constexpr, HAS_EXTRA_LENGTH: tl.constexpr, HAS_SINK: tl.constexpr, SGLANG: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(1)
    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    length = scope_length(length_ptr, row // q_len, width, HAS_LENGTH)
    extra_length = scope_length(extra_length_ptr, row // q_len, extra_width, HAS_EXTRA_LENGTH)
    q = load_q(q_ptr, row, head, heads, TILES, OPERAND)
    acc, m, l = attend(  # noqa: E741
        q, 0, 1, scale_log2, row, kv_ptr, page_stride, index_ptr, width, length,
        extra_kv_ptr, extra_page_stride, extra_index_ptr, extra_width, extra_length,
        PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_H, BLOCK_T, TILES, OPERAND, STAGES, AHEAD, SINGLE,
    )  # fmt: skip
    row = reread_program_id(1, OPERAND)
    head = reread_program_id(0, OPERAND) * BLOCK_H + tl.arange(0, BLOCK_H)
    factor, lse = finish(m, l, sink_ptr, head, heads, HAS_SINK, SGLANG)
    store_tiles(acc, factor, out_ptr, row, head, heads, TILES)
    tl.store(lse_ptr + row * heads + head, lse, mask=head < heads)


def mma_decode(
    call: DecodeCall, config: MmaConfig, out_dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """Run the single-launch tensor-core kernel.

    Args:
        call: A checked call.
        config: Tile sizes and launch shape, see :mod:`dsv4_kernels.select`.
        out_dtype: Type of the output; float32 shows the kernel's own error without the last rounding.

    Returns:
        ``[rows, H, 512]`` of ``out_dtype`` and float32 ``[rows, H]``.
    """
    out, lse = call.outputs(out_dtype)
    grid = (triton.cdiv(call.heads, config.block_h), call.rows)
    _sparse_mla_mma_kernel[grid](
        call.q, out, lse, **kernel_arguments(call), scale_log2=call.scale * LOG2_E,
        HAS_SINK=call.sink is not None, SGLANG=call.convention == "sglang",
        BLOCK_H=config.block_h, BLOCK_T=config.block_t, TILES=config.tiles,
        OPERAND=operand(tl.bfloat16), STAGES=config.stages,
        AHEAD=config.ahead, SINGLE=False, **launch_options(config.warps, config.pdl),
    )  # fmt: skip
    return out, lse
