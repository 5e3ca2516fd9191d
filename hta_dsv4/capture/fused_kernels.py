"""Device code of the step's fused small operations; :mod:`hta_dsv4.capture.fused_glue` launches it.

Vectors of 512 channels are handled as 8 groups of 64: seven with one cache scale each, and the rotary one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rotate_last_group(x: tl.tensor, factor_ptr: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """Rotate interleaved pairs of the last of GROUPS groups of 64; ``factor_ptr`` at 32 (cos, sin) pairs."""
    pair = tl.arange(0, 32)
    last = tl.arange(0, GROUPS)[:, None] == GROUPS - 1
    cos = tl.where(last, tl.load(factor_ptr + 2 * pair)[None, :], 1.0)
    sin = tl.where(last, tl.load(factor_ptr + 2 * pair + 1)[None, :], 0.0)
    even, odd = tl.split(tl.reshape(x, (GROUPS, 32, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (GROUPS, 64))


@triton.jit
def _insert_kv(
    x: tl.tensor, slot: tl.tensor, codes_ptr: tl.tensor, bf16_ptr: tl.tensor, bytes_ptr: tl.tensor,
    page_stride: tl.tensor, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """Quantise [8, 64] channels of one entry and store its record and its seven scale bytes."""
    group = tl.arange(0, 8)
    cols = tl.arange(0, 64)
    amax = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-4)
    exponent = tl.ceil(tl.log2(amax / 448.0))
    codes = (x * tl.exp2(-exponent)[:, None]).to(tl.float8e4nv)
    page = (slot // PAGE) * page_stride
    record = page + (slot % PAGE) * 576
    channel = group[:, None] * 64 + cols[None, :]
    nope = group[:, None] < 7
    tl.store(codes_ptr + record + channel, codes, mask=nope)
    tl.store(bf16_ptr + (record + 448) // 2 + channel - 448, x.to(tl.bfloat16), mask=group[:, None] == 7)
    scales = bytes_ptr + page + PAGE * 576 + (slot % PAGE) * 8 + group
    tl.store(scales, (exponent + 127.0).to(tl.uint8), mask=group < 7)


@triton.jit
def _q_norm_rope_kernel(
    x_ptr: tl.tensor,
    y_ptr: tl.tensor,
    factor_ptr: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
) -> None:
    """One program per (request, head): RMS norm without weight where NORM, then rotation."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 64)[None, :]
    x = tl.load(x_ptr + row * 512 + channel).to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / 512 + eps)
    y = _rotate_last_group(x, factor_ptr + row // HEADS * 64, 8)
    tl.store(y_ptr + row * 512 + channel, y.to(tl.bfloat16))


@triton.jit
def _kv_norm_rope_insert_kernel(
    x_ptr: tl.tensor, row_stride: tl.tensor, norm_ptr: tl.tensor, factor_ptr: tl.tensor, slot_ptr: tl.tensor,
    codes_ptr: tl.tensor, bf16_ptr: tl.tensor, bytes_ptr: tl.tensor, page_stride: tl.tensor, eps: tl.tensor,
    PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """One program per request: RMS norm, rotation, quantisation, store into the paged cache."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 64)[None, :]
    x = tl.load(x_ptr + row * row_stride + channel).to(tl.float32)
    x = (
        x
        * tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / 512 + eps)
        * tl.load(norm_ptr + channel).to(tl.float32)
    )
    x = _rotate_last_group(x, factor_ptr + row * 64, 8)
    _insert_kv(x, tl.load(slot_ptr + row), codes_ptr, bf16_ptr, bytes_ptr, page_stride, PAGE)


@triton.jit
def _save_partial_state_kernel(
    kv_gate_ptr: tl.tensor, ape_ptr: tl.tensor, position_ptr: tl.tensor, kv_ptr: tl.tensor, score_ptr: tl.tensor,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, OVERLAP: tl.constexpr,
) -> None:  # fmt: skip
    """One program per request: the token's key/value and gate score into the partial group."""
    row = tl.program_id(0).to(tl.int64)
    phase = tl.load(position_ptr + row) % RATIO
    cols = tl.arange(0, WIDTH)
    kv = tl.load(kv_gate_ptr + row * 2 * WIDTH + cols)
    gate = tl.load(kv_gate_ptr + row * 2 * WIDTH + WIDTH + cols)
    slot = (row * 2 * RATIO + RATIO + phase) if OVERLAP else (row * RATIO + phase)
    tl.store(kv_ptr + slot * WIDTH + cols, kv)
    tl.store(score_ptr + slot * WIDTH + cols, gate + tl.load(ape_ptr + phase * WIDTH + cols))


@triton.jit
def _compress_group(
    kv_ptr: tl.tensor, score_ptr: tl.tensor, row: tl.tensor,
    RATIO: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Per-channel softmax over the group's rows and the weighted mean of its values, [GROUPS, 64]."""
    DIM: tl.constexpr = GROUPS * 64
    WIDTH: tl.constexpr = 2 * DIM if OVERLAP else DIM
    ROWS: tl.constexpr = 2 * RATIO if OVERLAP else RATIO
    channel = tl.arange(0, GROUPS)[:, None] * 64 + tl.arange(0, 64)[None, :]
    top = tl.full((GROUPS, 64), float("-inf"), tl.float32)
    total = tl.zeros((GROUPS, 64), tl.float32)
    mean = tl.zeros((GROUPS, 64), tl.float32)
    for i in range(ROWS):
        at = (row * ROWS + i) * WIDTH + channel
        if OVERLAP:
            at += tl.where(i >= RATIO, DIM, 0)
        score = tl.load(score_ptr + at)
        higher = tl.maximum(top, score)
        old, new = tl.exp(top - higher), tl.exp(score - higher)
        total = total * old + new
        mean = mean * old + new * tl.load(kv_ptr + at)
        top = higher
    return mean / total


@triton.jit
def _shift_group(state_ptr: tl.tensor, row: tl.tensor, RATIO: tl.constexpr, WIDTH: tl.constexpr) -> None:
    """The group just closed becomes the previous one."""
    cols = tl.arange(0, WIDTH)
    for i in range(RATIO):
        at = (row * 2 * RATIO + i) * WIDTH + cols
        tl.store(state_ptr + at, tl.load(state_ptr + at + RATIO * WIDTH))


@triton.jit
def _compress_norm_rope_insert_kernel(
    kv_ptr: tl.tensor, score_ptr: tl.tensor, position_ptr: tl.tensor, norm_ptr: tl.tensor, factor_ptr: tl.tensor,
    slot_ptr: tl.tensor, codes_ptr: tl.tensor, bf16_ptr: tl.tensor, bytes_ptr: tl.tensor, page_stride: tl.tensor,
    eps: tl.tensor, RATIO: tl.constexpr, OVERLAP: tl.constexpr, PAGE: tl.constexpr,
) -> None:  # fmt: skip
    """One program per request; those whose group is not complete leave at once."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(position_ptr + row) % RATIO == RATIO - 1:
        channel = tl.arange(0, 8)[:, None] * 64 + tl.arange(0, 64)[None, :]
        x = _compress_group(kv_ptr, score_ptr, row, RATIO, 8, OVERLAP)
        x = x * tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / 512 + eps)
        x = x * tl.load(norm_ptr + channel).to(tl.float32)
        x = _rotate_last_group(x, factor_ptr + row * 64, 8)
        _insert_kv(x, tl.load(slot_ptr + row), codes_ptr, bf16_ptr, bytes_ptr, page_stride, PAGE)
        if OVERLAP:
            _shift_group(kv_ptr, row, RATIO, 1024)
            _shift_group(score_ptr, row, RATIO, 1024)


@triton.jit
def _hadamard_quant(x: tl.tensor, hadamard_ptr: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Rotate [2, 64] channels by the Hadamard matrix and quantise: codes [128], scale."""
    k = tl.arange(0, 128)
    vector = tl.reshape(x, (128,)).to(tl.bfloat16).to(tl.float32)
    matrix = tl.load(hadamard_ptr + k[:, None] * 128 + k[None, :]).to(tl.float32)
    turned = tl.sum(matrix * vector[None, :], axis=1).to(tl.bfloat16).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(turned), axis=0), 1e-4) / 448.0
    return (turned / scale).to(tl.float8e4nv), scale


@triton.jit
def _index_compress_insert_kernel(
    kv_ptr: tl.tensor, score_ptr: tl.tensor, position_ptr: tl.tensor, norm_ptr: tl.tensor, factor_ptr: tl.tensor,
    hadamard_ptr: tl.tensor, slot_ptr: tl.tensor, codes_ptr: tl.tensor, scale_ptr: tl.tensor, page_stride: tl.tensor,
    eps: tl.tensor, RATIO: tl.constexpr,
) -> None:  # fmt: skip
    """As :func:`_compress_norm_rope_insert_kernel` for the indexer's 128-channel keys."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(position_ptr + row) % RATIO == RATIO - 1:
        channel = tl.arange(0, 2)[:, None] * 64 + tl.arange(0, 64)[None, :]
        x = _compress_group(kv_ptr, score_ptr, row, RATIO, 2, True)
        x = x * tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) / 128 + eps)
        x = x * tl.load(norm_ptr + channel).to(tl.float32)
        codes, scale = _hadamard_quant(_rotate_last_group(x, factor_ptr + row * 64, 2), hadamard_ptr)
        slot = tl.load(slot_ptr + row)
        page = (slot // 64) * page_stride
        tl.store(codes_ptr + page + (slot % 64) * 128 + tl.arange(0, 128), codes)
        tl.store(scale_ptr + (page + 64 * 128) // 4 + slot % 64, scale)
        _shift_group(kv_ptr, row, RATIO, 256)
        _shift_group(score_ptr, row, RATIO, 256)


@triton.jit
def _index_q_rope_quant_kernel(
    q_ptr: tl.tensor, weight_ptr: tl.tensor, factor_ptr: tl.tensor, hadamard_ptr: tl.tensor, codes_ptr: tl.tensor,
    out_ptr: tl.tensor, factor: tl.tensor, HEADS: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (request, index head): rotation, Hadamard, quantisation; folds the scale into the weight."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, 2)[:, None] * 64 + tl.arange(0, 64)[None, :]
    q = tl.load(q_ptr + row * 128 + channel).to(tl.float32)
    codes, scale = _hadamard_quant(_rotate_last_group(q, factor_ptr + row // HEADS * 64, 2), hadamard_ptr)
    tl.store(codes_ptr + row * 128 + tl.arange(0, 128), codes)
    tl.store(out_ptr + row, tl.load(weight_ptr + row).to(tl.float32) * scale * factor)


@triton.jit
def _silu_mul_clamp_kernel(
    x_ptr: tl.tensor, y_ptr: tl.tensor, width: tl.tensor, limit: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """``silu(min(gate, limit)) * clamp(up)``, BLOCK outputs a program."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    gate = tl.load(x_ptr + row * 2 * width + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + cols, mask=inside, other=0.0).to(tl.float32)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * width + cols, y.to(tl.bfloat16), mask=inside)
