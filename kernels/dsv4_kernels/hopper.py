"""Sparse-MLA decode for sm_90 in Gluon: asynchronous wgmma, and warps with a job each.

The same split over programs as :mod:`dsv4_kernels.split_k`, with its combine; with one split the output itself is
written. A program is twelve warps: four gather and decode (:mod:`hopper_gather`), four score and four follow
(:mod:`hopper_consume`), so that loads, decoding, softmax and products of different blocks run side by side. It takes
an SM to itself (178 or 214 KB of shared memory, all registers).

Import this module only where :func:`dsv4_kernels.hopper_support.unavailable` returns None.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from dsv4_kernels.call import DecodeCall
from dsv4_kernels.hopper_consume import follow, score
from dsv4_kernels.hopper_gather import gather
from dsv4_kernels.hopper_l1 import leave_rest_to_l1
from dsv4_kernels.hopper_produce import dependency_wait
from dsv4_kernels.hopper_select import HopperConfig
from dsv4_kernels.hopper_state import Lists, Ring, Share, Target
from dsv4_kernels.runtime import LOG2_E, kernel_arguments
from dsv4_kernels.select import CombineConfig
from dsv4_kernels.split_k import Partials, combine_partials


@gluon.jit
def scope_length(
    length_ptr: gl.tensor, request: gl.tensor, width: gl.tensor, HAS_LENGTH: gl.constexpr
) -> gl.tensor:
    """As :func:`dsv4_kernels.core.scope_length`, a negative length being 0."""
    if HAS_LENGTH:
        return gl.maximum(gl.minimum(gl.load(length_ptr + request), width), 0)
    else:  # noqa: RET505  # (Triton wants the else)
        return gl.maximum(width, 0)


@gluon.jit
def _sparse_mla_hopper_kernel(
    q_ptr: gl.tensor, out_ptr: gl.tensor, lse_ptr: gl.tensor, sum_ptr: gl.tensor, sink_ptr: gl.tensor,
    kv_ptr: gl.tensor, page_stride: gl.tensor, index_ptr: gl.tensor, width: gl.tensor,
    length_ptr: gl.tensor, extra_kv_ptr: gl.tensor, extra_page_stride: gl.tensor, extra_index_ptr: gl.tensor,
    extra_width: gl.tensor, extra_length_ptr: gl.tensor, heads: gl.tensor, q_len: gl.tensor, scale_log2: gl.tensor,
    PAGE_SIZE: gl.constexpr, EXTRA_PAGE_SIZE: gl.constexpr, HAS_EXTRA: gl.constexpr,
    HAS_LENGTH: gl.constexpr, HAS_EXTRA_LENGTH: gl.constexpr, HAS_SINK: gl.constexpr, SGLANG: gl.constexpr,
    WHOLE: gl.constexpr, BLOCK_T: gl.constexpr, BUFFERS: gl.constexpr,
    SCORE_REGISTERS: gl.constexpr, FOLLOW_REGISTERS: gl.constexpr,
) -> None:  # fmt: skip
    WORDS: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    words = gl.allocate_shared_memory(gl.int32, [BUFFERS, BLOCK_T, 256], WORDS)
    kv = words._reinterpret(gl.bfloat16, [BUFFERS, BLOCK_T, 512], HALVES)
    staging = words._reinterpret(gl.bfloat16, [BUFFERS * BLOCK_T // 32, 64, 256], HALVES)
    q_smem = gl.allocate_shared_memory(gl.bfloat16, [64, 512], HALVES)
    weight_smem = gl.allocate_shared_memory(
        gl.bfloat16, [BUFFERS, 64, BLOCK_T], gl.NVMMASharedLayout(2 * BLOCK_T, 16, rank=2)
    )
    bias_smem = gl.allocate_shared_memory(gl.float32, [BUFFERS, BLOCK_T], PLAIN)
    factor_smem = gl.allocate_shared_memory(gl.float32, [BUFFERS, 64], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    weighted = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        mbarrier.init(full.index(i), count=BLOCK_T // 32)
        mbarrier.init(empty.index(i), count=2)
        mbarrier.init(weighted.index(i), count=1)
    if HAS_LENGTH or HAS_EXTRA_LENGTH:
        dependency_wait()
    split = gl.program_id(0)
    group = gl.program_id(1)
    row = gl.program_id(2)
    step = gl.num_programs(0)
    part = row * step + split
    length = scope_length(length_ptr, row // q_len, width, HAS_LENGTH)
    extra_length = scope_length(extra_length_ptr, row // q_len, extra_width, HAS_EXTRA_LENGTH)
    main_blocks = gl.cdiv(length, BLOCK_T)
    blocks = main_blocks
    if HAS_EXTRA:
        blocks += gl.cdiv(extra_length, BLOCK_T)
    lists = Lists(
        kv_ptr, page_stride, index_ptr + row.to(gl.int64) * width, length,
        extra_kv_ptr, extra_page_stride, extra_index_ptr + row.to(gl.int64) * extra_width, extra_length,
        main_blocks, PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_T,
    )  # fmt: skip
    share = Share(split, blocks, step)
    ring = Ring(words, bias_smem, weight_smem, factor_smem, full, empty, weighted, BLOCK_T, BUFFERS)
    target = Target(out_ptr, lse_ptr, sum_ptr, row, part, group, gl.to_tensor(heads), WHOLE)
    gl.warp_specialize(
        [
            (gather, (lists, share, ring)),
            (score, (share, ring, target, q_smem, kv, staging, q_ptr, sink_ptr, scale_log2, HAS_SINK, SGLANG)),
            (follow, (lists, share, ring, target, kv, staging)),
        ],
        [4, 4],
        [SCORE_REGISTERS, FOLLOW_REGISTERS],
    )  # fmt: skip


def hopper_decode(
    call: DecodeCall, config: HopperConfig, combine: CombineConfig, num_splits: int
) -> tuple[Tensor, Tensor]:
    """Run the Hopper form, and the combine if there is more than one split.

    Args:
        call: A checked call, on an sm_90 GPU.
        config: Shape of the kernel, see :mod:`dsv4_kernels.hopper_select`.
        combine: Shape of the combine; its ``partials`` are bf16 here whatever it says.
        num_splits: Programs that share one row's list, 1 or more.

    Returns:
        bf16 ``[rows, H, 512]`` and float32 ``[rows, H]``.
    """
    out, lse = call.outputs()
    partials = None if num_splits == 1 else Partials.allocate(call, num_splits, torch.bfloat16)
    arguments = kernel_arguments(call)
    kernel = _sparse_mla_hopper_kernel[(num_splits, triton.cdiv(call.heads, 64), call.rows)](
        call.q,
        partials.output if partials else out,
        partials.maxima if partials else lse,
        partials.sums if partials else lse,  # not touched in this case
        **arguments, scale_log2=call.scale * LOG2_E, HAS_SINK=call.sink is not None,
        SGLANG=call.convention == "sglang", WHOLE=partials is None, BLOCK_T=config.block_t, BUFFERS=config.buffers,
        SCORE_REGISTERS=config.score_registers, FOLLOW_REGISTERS=config.follow_registers,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    leave_rest_to_l1(kernel)
    if partials is not None:
        combine_partials(call, partials, combine, out, lse)
    return out, lse
