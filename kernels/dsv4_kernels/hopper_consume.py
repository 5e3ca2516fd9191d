"""The consuming warps of the Hopper form: asynchronous wgmma on the tiles that :mod:`hopper_gather` makes.

Two groups of four warps share a block. The *scorer* computes scores and softmax and the left 256 output columns, the
*follower* only the right 256: it gets the weights and the rescaling factors through shared memory. So QK is done
once, and while the scorer is in its softmax the follower's product runs.
"""

# ruff: noqa: E741, RET505
# (l is the literature's name for the running sum; Triton wants an else beside a constexpr return.)
from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from dsv4_kernels.hopper_gather import help_first
from dsv4_kernels.hopper_produce import block_barrier, dependency_wait, launch_dependents
from dsv4_kernels.hopper_state import Lists, Ring, Share, Target

# As in :mod:`dsv4_kernels.core`.
NEGATIVE = gl.constexpr(-1.0e30)
LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def load_q(
    q_smem: gl.shared_memory_descriptor, q_ptr: gl.tensor, row: gl.tensor, group: gl.tensor, heads: gl.tensor
) -> None:  # fmt: skip
    """Copy 64 heads of a row's query to shared memory. What lies there for heads past the last stays in their rows."""
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    head = group * 64 + gl.arange(0, 64, gl.SliceLayout(1, LINES))
    base = q_ptr + row.to(gl.int64) * heads * 512
    for half in gl.static_range(2):
        column = half * 256 + gl.arange(0, 256, gl.SliceLayout(0, LINES))
        async_copy.async_copy_global_to_shared(
            q_smem.slice(half * 256, 256, dim=1), base + (head[:, None] * 512 + column[None, :]),
            mask=(head < heads)[:, None],
        )  # fmt: skip
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    block_barrier()


@gluon.jit
def close(
    target: Target, m: gl.tensor, l: gl.tensor, sink_ptr: gl.tensor, HAS_SINK: gl.constexpr, SGLANG: gl.constexpr,
    HEADS: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """Write lse, or a split's maximum and sum; the factor on the output, as :func:`dsv4_kernels.core.finish`."""
    head = target.group * 64 + gl.arange(0, 64, HEADS)
    inside = head < target.heads
    if target.WHOLE:
        empty = l == 0.0
        denominator = l
        lse = (m + gl.log2(l)) * LN_2
        if HAS_SINK:
            sink = gl.load(sink_ptr + head, mask=inside, other=float("-inf"))
            denominator = l + gl.exp2(sink * LOG2_E - m)
            if SGLANG:
                high = gl.maximum(lse, sink)
                total = high + gl.log(gl.exp(lse - high) + gl.exp(sink - high))
                lse = gl.where(empty | (high == float("inf")), sink, total)
            else:
                lse = gl.where(empty, float("inf"), lse)
        else:
            lse = gl.where(empty, float("-inf") if SGLANG else float("inf"), lse)
        gl.store(target.lse_ptr + target.row * target.heads + head, lse, mask=inside)
        return gl.where(empty, 0.0, 1.0 / denominator)
    else:
        gl.store(target.lse_ptr + target.part * target.heads + head, m, mask=inside)
        gl.store(target.sum_ptr + target.part * target.heads + head, l, mask=inside)
        return l


@gluon.jit
def opaque(value: gl.tensor) -> gl.tensor:
    """The same number, in a way the compiler cannot see through."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, $1;", "=r,r", [value], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def store_half(
    acc: gl.tensor,
    staging: gl.shared_memory_descriptor,
    ring: Ring,
    target: Target,
    i: gl.tensor,
    HALF: gl.constexpr,
) -> None:
    """Write 256 output columns in stores of 16 bytes, turned round in a buffer that nobody reads any more."""
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    if ring.BLOCK_T == 64:
        free = i % ring.BUFFERS
        mbarrier.wait(ring.empty.index(free), ((i // ring.BUFFERS) & 1) ^ 1)
        slot = staging.index(2 * free + HALF)
    else:
        free = (i + HALF) % ring.BUFFERS
        mbarrier.wait(ring.empty.index(free), (((i + HALF) // ring.BUFFERS) & 1) ^ 1)
        slot = staging.index(free)
    slot.store(acc.to(gl.bfloat16))
    result = slot.load(LINES)
    # Addresses computed from something the compiler knows would be computed before the loop, kept, and spilled.
    head = opaque(target.group) * 64 + gl.arange(0, 64, gl.SliceLayout(1, LINES))
    column = HALF * 256 + gl.arange(0, 256, gl.SliceLayout(0, LINES))
    base = target.out_ptr + target.part.to(gl.int64) * target.heads * 512
    gl.store(base + (head[:, None] * 512 + column[None, :]), result, mask=(head < target.heads)[:, None])


@gluon.jit
def score(
    share: Share, ring: Ring, target: Target, q_smem: gl.shared_memory_descriptor, kv: gl.shared_memory_descriptor,
    staging: gl.shared_memory_descriptor, q_ptr: gl.tensor, sink_ptr: gl.tensor, scale_log2: gl.tensor,
    HAS_SINK: gl.constexpr, SGLANG: gl.constexpr,
) -> None:  # fmt: skip
    """Scores, softmax and the left output columns."""
    QK: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ring.BLOCK_T, 16])
    PV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    HEADS: gl.constexpr = gl.SliceLayout(1, QK)
    dependency_wait()
    load_q(q_smem, q_ptr, target.row, target.group, target.heads)
    acc = gl.zeros([64, 256], gl.float32, PV)
    m = gl.full([64], NEGATIVE, gl.float32, HEADS)
    l = gl.zeros([64], gl.float32, HEADS)
    i = 0
    for _ in range(share.first, share.blocks, share.step):
        buffer = i % ring.BUFFERS
        mbarrier.wait(ring.full.index(buffer), (i // ring.BUFFERS) & 1)
        # Here and not in the gathering warps, where it would wait for the loads they have in flight too.
        fence_async_shared()
        tile = kv.index(buffer)
        scores = warpgroup_mma(
            q_smem,
            tile.permute((1, 0)),
            gl.zeros([64, ring.BLOCK_T], gl.float32, QK),
            use_acc=False,
            is_async=True,
        )
        bias = ring.bias.index(buffer).load(gl.SliceLayout(0, QK))
        scores = warpgroup_mma_wait(0, [scores]) * scale_log2 + bias[None, :]
        m_new = gl.maximum(m, gl.max(scores, 1))
        weights = gl.exp2(scores - m_new[:, None])
        alpha = gl.exp2(m - m_new)
        m = m_new
        l = l * alpha + gl.sum(weights, 1)
        operand = weights.to(gl.bfloat16)
        ring.weights.index(buffer).store(operand)
        ring.factors.index(buffer).store(alpha)
        block_barrier()
        mbarrier.arrive(ring.weighted.index(buffer), count=1)
        acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, PV))[:, None]
        operand = gl.convert_layout(operand, gl.DotOperandLayout(0, PV, 2))
        acc = warpgroup_mma(operand, tile.slice(0, 256, dim=1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        # One thread arrives for all, and every warp must have finished its product.
        block_barrier()
        mbarrier.arrive(ring.empty.index(buffer), count=1)
        i += 1
    launch_dependents()
    factor = close(target, m, l, sink_ptr, HAS_SINK, SGLANG, HEADS)
    if target.WHOLE:
        # The follower's factor goes the way of the others, as of one more block.
        buffer = i % ring.BUFFERS
        mbarrier.wait(ring.empty.index(buffer), ((i // ring.BUFFERS) & 1) ^ 1)
        ring.factors.index(buffer).store(factor)
        block_barrier()
        mbarrier.arrive(ring.weighted.index(buffer), count=1)
        acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, PV))[:, None]
    store_half(acc, staging, ring, target, i, 0)


@gluon.jit
def follow(
    lists: Lists, share: Share, ring: Ring, target: Target, kv: gl.shared_memory_descriptor,
    staging: gl.shared_memory_descriptor,
) -> None:  # fmt: skip
    """The right output columns, from the scorer's weights.

    These warps wait most; while there is nothing to follow yet they decode half of a first block of 64.
    """
    PV: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    if ring.BLOCK_T == 64:
        dependency_wait()
        help_first(lists, share, ring)
    acc = gl.zeros([64, 256], gl.float32, PV)
    i = 0
    for _ in range(share.first, share.blocks, share.step):
        buffer = i % ring.BUFFERS
        phase = (i // ring.BUFFERS) & 1
        mbarrier.wait(ring.full.index(buffer), phase)
        mbarrier.wait(ring.weighted.index(buffer), phase)
        fence_async_shared()
        acc = acc * ring.factors.index(buffer).load(gl.SliceLayout(1, PV))[:, None]
        acc = warpgroup_mma(
            ring.weights.index(buffer), kv.index(buffer).slice(256, 256, dim=1), acc, is_async=True
        )
        acc = warpgroup_mma_wait(0, [acc])
        block_barrier()
        mbarrier.arrive(ring.empty.index(buffer), count=1)
        i += 1
    if target.WHOLE:
        buffer = i % ring.BUFFERS
        mbarrier.wait(ring.weighted.index(buffer), (i // ring.BUFFERS) & 1)
        acc = acc * ring.factors.index(buffer).load(gl.SliceLayout(1, PV))[:, None]
    store_half(acc, staging, ring, target, i, 1)
