"""Sparse-MLA decode on tensor cores with the token list split over programs, and the N-way combine.

Grid ``(NSPLIT, head groups, rows)``: split ``s`` takes the blocks ``s, s + NSPLIT, ...`` of the valid
[main | extra] list, so the splits of a row differ by at most one block whatever its length. Each leaves an
unnormalised partial output with its running maximum and sum; ``_sparse_mla_combine_kernel`` merges them by
log-sum-exp and folds the sink. Nothing about the launch depends on device values, so one CUDA graph per
batch captures it.
"""

# ruff: noqa: E741, RUF005
# (l is the literature's name for the running sum; Triton compiles no starred tuples.)
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels._device import operand
from dsv4_kernels.call import DecodeCall
from dsv4_kernels.core import NEGATIVE, attend, finish, load_q, reread_program_id, scope_length, store_tiles
from dsv4_kernels.runtime import LOG2_E, kernel_arguments, launch_options
from dsv4_kernels.select import EAGER_SPLITS, CombineConfig, MmaConfig


@triton.jit
def _sparse_mla_split_k_kernel(
    q_ptr: tl.tensor, partial_ptr: tl.tensor, max_ptr: tl.tensor, sum_ptr: tl.tensor, sink_ptr: tl.tensor,
    kv_ptr: tl.tensor, page_stride: tl.tensor, index_ptr: tl.tensor, width: tl.tensor,
    length_ptr: tl.tensor, extra_kv_ptr: tl.tensor, extra_page_stride: tl.tensor, extra_index_ptr: tl.tensor,
    extra_width: tl.tensor, extra_length_ptr: tl.tensor, heads: tl.tensor, q_len: tl.tensor, scale_log2: tl.tensor,
    PAGE_SIZE: tl.constexpr, EXTRA_PAGE_SIZE: tl.constexpr, HAS_EXTRA: tl.constexpr,
    HAS_LENGTH: tl.constexpr, HAS_EXTRA_LENGTH: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr, TILES: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    split = tl.program_id(0)
    row = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    length = scope_length(length_ptr, row // q_len, width, HAS_LENGTH)
    extra_length = scope_length(extra_length_ptr, row // q_len, extra_width, HAS_EXTRA_LENGTH)
    if split >= tl.cdiv(length, BLOCK_T) + tl.cdiv(extra_length, BLOCK_T):
        slot = (row * tl.num_programs(0) + split) * heads + head
        # Nothing for this split: say so in the sum, and leave the partial output unwritten and unread.
        tl.store(max_ptr + slot, tl.full([BLOCK_H], NEGATIVE, tl.float32), mask=head < heads)
        tl.store(sum_ptr + slot, tl.zeros([BLOCK_H], tl.float32), mask=head < heads)
    else:
        q = load_q(q_ptr, row, head, heads, TILES, OPERAND)
        acc, m, l = attend(
            q, split, tl.num_programs(0), scale_log2, row, kv_ptr, page_stride, index_ptr, width, length,
            extra_kv_ptr, extra_page_stride, extra_index_ptr, extra_width, extra_length,
            PAGE_SIZE, EXTRA_PAGE_SIZE, HAS_EXTRA, BLOCK_H, BLOCK_T, TILES, OPERAND, STAGES, AHEAD, SINGLE,
        )  # fmt: skip
        part = reread_program_id(2, OPERAND) * tl.num_programs(0) + reread_program_id(0, OPERAND)
        head = reread_program_id(1, OPERAND) * BLOCK_H + tl.arange(0, BLOCK_H)
        slot = part * heads + head
        store_tiles(acc, tl.full([BLOCK_H], 1.0, tl.float32), partial_ptr, part, head, heads, TILES)
        tl.store(max_ptr + slot, m, mask=head < heads)
        tl.store(sum_ptr + slot, l, mask=head < heads)


@triton.jit
def _merge(
    partial_ptr: tl.tensor, max_ptr: tl.tensor, sum_ptr: tl.tensor, row: tl.tensor, head: tl.tensor,
    column: tl.tensor, heads: tl.tensor, NSPLIT: tl.constexpr, SPLITS_POW2: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Maximum, sum and unnormalised output over the splits, of as many registers as one split takes."""
    splits = tl.arange(0, SPLITS_POW2)
    slots = (row * NSPLIT + splits[:, None]) * heads + head[None, :]
    inside = (splits[:, None] < NSPLIT) & (head[None, :] < heads)
    maxima = tl.load(max_ptr + slots, mask=inside, other=NEGATIVE)
    sums = tl.load(sum_ptr + slots, mask=inside, other=0.0)
    m = tl.max(maxima, 0)
    l = tl.sum(sums * tl.exp2(maxima - m[None, :]), 0)
    acc = tl.zeros([head.shape[0], column.shape[0]], tl.float32)
    for split in tl.static_range(NSPLIT):
        slot = (row * NSPLIT + split) * heads + head
        # Loaded again (from L1) rather than picked out of the tile above, which costs a reduction a split.
        split_max = tl.load(max_ptr + slot, mask=head < heads, other=NEGATIVE)
        split_sum = tl.load(sum_ptr + slot, mask=head < heads, other=0.0)
        used = (split_sum != 0.0) & (head < heads)
        offsets = slot.to(tl.int64)[:, None] * 512 + column[None, :]
        part = tl.load(partial_ptr + offsets, mask=used[:, None], other=0.0).to(tl.float32)
        acc += part * tl.exp2(split_max - m)[:, None]
    return m, l, acc


@triton.jit
def _merge_eagerly(
    partial_ptr: tl.tensor, max_ptr: tl.tensor, sum_ptr: tl.tensor, row: tl.tensor, head: tl.tensor,
    column: tl.tensor, heads: tl.tensor, NSPLIT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """As :func:`_merge` with all loads under way at once: one latency instead of two, and all in registers.

    An empty split's partial output was never written; what is read there is dropped by its sum, which is 0.
    """
    maxima: tl.tensor = ()
    sums: tl.tensor = ()
    parts: tl.tensor = ()
    for split in tl.static_range(NSPLIT):
        slot = (row * NSPLIT + split) * heads + head
        maxima = maxima + (tl.load(max_ptr + slot, mask=head < heads, other=NEGATIVE),)
        sums = sums + (tl.load(sum_ptr + slot, mask=head < heads, other=0.0),)
        offsets = slot.to(tl.int64)[:, None] * 512 + column[None, :]
        parts = parts + (tl.load(partial_ptr + offsets, mask=(head < heads)[:, None], other=0.0),)
    m = maxima[0]
    for split in tl.static_range(1, NSPLIT):
        m = tl.maximum(m, maxima[split])
    l = tl.zeros([head.shape[0]], tl.float32)
    acc = tl.zeros([head.shape[0], column.shape[0]], tl.float32)
    for split in tl.static_range(NSPLIT):
        weight = tl.exp2(maxima[split] - m)
        l += sums[split] * weight
        part = tl.where((sums[split] != 0.0)[:, None], parts[split].to(tl.float32), 0.0)
        acc += part * weight[:, None]
    return m, l, acc


@triton.jit
def _sparse_mla_combine_kernel(
    partial_ptr: tl.tensor, max_ptr: tl.tensor, sum_ptr: tl.tensor, out_ptr: tl.tensor, lse_ptr: tl.tensor,
    sink_ptr: tl.tensor, heads: tl.tensor, NSPLIT: tl.constexpr, SPLITS_POW2: tl.constexpr,
    HAS_SINK: tl.constexpr, SGLANG: tl.constexpr, BLOCK_H: tl.constexpr, COLUMNS: tl.constexpr,
    EAGER: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if EAGER:
        m, l, acc = _merge_eagerly(partial_ptr, max_ptr, sum_ptr, row, head, column, heads, NSPLIT)
    else:
        m, l, acc = _merge(partial_ptr, max_ptr, sum_ptr, row, head, column, heads, NSPLIT, SPLITS_POW2)
    factor, lse = finish(m, l, sink_ptr, head, heads, HAS_SINK, SGLANG)
    out = (row.to(tl.int64) * heads + head)[:, None] * 512 + column[None, :]
    tl.store(out_ptr + out, (acc * factor[:, None]).to(out_ptr.dtype.element_ty), mask=head[:, None] < heads)
    tl.store(lse_ptr + row * heads + head, lse, mask=(head < heads) & (tl.program_id(0) == 0))


@dataclass(frozen=True)
class Partials:
    """What the splits of a call leave for the combine.

    Attributes:
        output: Unnormalised outputs ``[rows, splits, H, 512]``; a split that saw no token leaves its part unwritten.
        maxima: Base-2 running maxima, float32 ``[rows, splits, H]``.
        sums: Running sums of the same shape, 0 where nothing was seen.
    """

    output: Tensor
    maxima: Tensor
    sums: Tensor

    @staticmethod
    def allocate(call: DecodeCall, num_splits: int, dtype: torch.dtype) -> Partials:
        """Fresh, unwritten partials; ``dtype`` is the outputs'."""
        shape = (call.rows, num_splits, call.heads)
        output = torch.empty(*shape, call.q.shape[2], dtype=dtype, device=call.q.device)
        maxima = torch.empty(shape, dtype=torch.float32, device=call.q.device)
        return Partials(output, maxima, torch.empty_like(maxima))


def combine_partials(
    call: DecodeCall, partials: Partials, config: CombineConfig, out: Tensor, lse: Tensor
) -> None:
    """Merge the splits by log-sum-exp, fold the sink, and write ``out`` and ``lse``."""
    num_splits = partials.maxima.shape[1]
    grid = (call.q.shape[2] // config.columns, triton.cdiv(call.heads, config.block_h), call.rows)
    _sparse_mla_combine_kernel[grid](
        partials.output, partials.maxima, partials.sums, out, lse,
        call.sink if call.sink is not None else call.q, call.heads, NSPLIT=num_splits,
        SPLITS_POW2=triton.next_power_of_2(num_splits), HAS_SINK=call.sink is not None,
        SGLANG=call.convention == "sglang", BLOCK_H=config.block_h, COLUMNS=config.columns,
        EAGER=config.eager and num_splits <= EAGER_SPLITS, **launch_options(config.warps, config.pdl),
    )  # fmt: skip


def split_k_decode(
    call: DecodeCall,
    config: MmaConfig,
    combine: CombineConfig,
    num_splits: int,
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor]:
    """Run the split kernel and its combine.

    Args:
        call: A checked call.
        config: Tile sizes and launch shape of the split kernel, see :mod:`dsv4_kernels.select`.
        combine: Those of the combine.
        num_splits: Programs that share one row's list; usually 2 or more (1 is :mod:`dsv4_kernels.mma`'s).
        out_dtype: Type of the output; float32 shows the kernel's own error without the last rounding.

    Returns:
        ``[rows, H, 512]`` of ``out_dtype`` and float32 ``[rows, H]``.
    """
    out, lse = call.outputs(out_dtype)
    dtype = torch.bfloat16 if combine.partials == "bf16" else torch.float32
    partials = Partials.allocate(call, num_splits, dtype)
    single = num_splits >= sum(triton.cdiv(width, config.block_t) for width in call.widths)
    _sparse_mla_split_k_kernel[(num_splits, triton.cdiv(call.heads, config.block_h), call.rows)](
        call.q, partials.output, partials.maxima, partials.sums, **kernel_arguments(call),
        scale_log2=call.scale * LOG2_E,
        BLOCK_H=config.block_h, BLOCK_T=config.block_t, TILES=config.tiles,
        OPERAND=operand(tl.bfloat16), STAGES=config.stages, AHEAD=config.ahead,
        SINGLE=single, **launch_options(config.warps, config.pdl),
    )  # fmt: skip
    combine_partials(call, partials, combine, out, lse)
    return out, lse
