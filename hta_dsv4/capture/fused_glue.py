"""The step's small operations as servers fuse them: one Triton launch each.

Each kernel has a torch form of many launches (``glue.py``, ``caches.py``, ``compressor.py``) and computes the same
numbers; the ``glue`` switch chooses.
"""

from __future__ import annotations

import torch
import triton
from dsv4_kernels.indexer import PagedIndexK
from dsv4_kernels.layout import PagedKV

from hta_dsv4.capture.compressor import CompressorState, CompressorWeights
from hta_dsv4.capture.fused_kernels import (
    _compress_norm_rope_insert_kernel,
    _index_compress_insert_kernel,
    _index_q_rope_quant_kernel,
    _kv_norm_rope_insert_kernel,
    _q_norm_rope_kernel,
    _save_partial_state_kernel,
    _silu_mul_clamp_kernel,
)


def _pairs(factors: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(factors)


def _views(pool: PagedKV) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The pool as e4m3, as bf16 and as bytes, and its page stride in bytes."""
    data = pool.data
    return data.view(torch.float8_e4m3fn), data.view(torch.bfloat16), data, data.stride(0)


def q_norm_rope(q: torch.Tensor, factors: torch.Tensor, eps: float, *, norm: bool = True) -> torch.Tensor:
    """Per-head RMS norm (on request) and rotation in one launch.

    Args:
        q: [B, H, 512] bf16, contiguous.
        factors: [B, 32] complex64.
        eps: of the norm.
        norm: ``False`` rotates only (the inverse rotation of the output).

    Returns:
        [B, H, 512] bf16, a new tensor.
    """
    B, H, _ = q.shape
    out = torch.empty_like(q)
    _q_norm_rope_kernel[(B * H,)](q, out, _pairs(factors), eps, HEADS=H, NORM=norm, num_warps=1)
    return out


def kv_norm_rope_insert(
    pool: PagedKV,
    slots: torch.Tensor,
    kv: torch.Tensor,
    norm: torch.Tensor,
    factors: torch.Tensor,
    eps: float,
) -> None:
    """Normalise, rotate, quantise and store one entry per request in one launch.

    Args:
        pool: destination.
        slots: [B] int64.
        kv: [B, 512] bf16; rows may be strided.
        norm: [512] bf16 weight.
        factors: [B, 32] complex64.
        eps: of the norm.
    """
    codes, halves, data, stride = _views(pool)
    _kv_norm_rope_insert_kernel[(kv.shape[0],)](
        kv, kv.stride(0), norm, _pairs(factors), slots, codes, halves, data, stride, eps,
        PAGE=pool.page_size, num_warps=4,
    )  # fmt: skip


def _save(
    kv_gate: torch.Tensor, position: torch.Tensor, w: CompressorWeights, state: CompressorState
) -> None:
    _save_partial_state_kernel[(kv_gate.shape[0],)](
        kv_gate, w.ape, position, state.kv, state.score,
        RATIO=w.ratio, WIDTH=w.ape.shape[1], OVERLAP=w.overlap, num_warps=4,
    )  # fmt: skip


def compress_insert(
    kv_gate: torch.Tensor, position: torch.Tensor, w: CompressorWeights, state: CompressorState,
    pool: PagedKV, slots: torch.Tensor, factors: torch.Tensor, eps: float,
) -> None:  # fmt: skip
    """Fold a token into the partial group; store the entries of the groups it closes. Two launches.

    Args:
        kv_gate: [B, 2 * coff * 512] f32, the compressor's projection.
        position: [B] int64.
        w: the compressor's weights.
        state: its partial groups, updated.
        pool: destination of entries.
        slots: [B] int64.
        factors: [B, 32] complex64, at the group's start.
        eps: of the norm.
    """
    _save(kv_gate, position, w, state)
    codes, halves, data, stride = _views(pool)
    _compress_norm_rope_insert_kernel[(kv_gate.shape[0],)](
        state.kv, state.score, position, w.norm, _pairs(factors), slots, codes, halves, data, stride, eps,
        RATIO=w.ratio, OVERLAP=w.overlap, PAGE=pool.page_size, num_warps=4,
    )  # fmt: skip


def index_compress_insert(
    kv_gate: torch.Tensor, position: torch.Tensor, w: CompressorWeights, state: CompressorState,
    pool: PagedIndexK, slots: torch.Tensor, factors: torch.Tensor, hadamard: torch.Tensor, eps: float,
) -> None:  # fmt: skip
    """As :func:`compress_insert` for index keys; ``hadamard`` is [128, 128] bf16."""
    _save(kv_gate, position, w, state)
    data = pool.data
    _index_compress_insert_kernel[(kv_gate.shape[0],)](
        state.kv, state.score, position, w.norm, _pairs(factors), hadamard, slots,
        data.view(torch.float8_e4m3fn), data.view(torch.float32), data.stride(0), eps, RATIO=w.ratio, num_warps=4,
    )  # fmt: skip


def index_query(
    q: torch.Tensor, weights: torch.Tensor, factors: torch.Tensor, hadamard: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, turn and quantise the index queries; scale the head weights. One launch.

    Args:
        q: [B, heads, 128] bf16, contiguous.
        weights: [B, heads] bf16 or f32.
        factors: [B, 32] complex64.
        hadamard: [128, 128] bf16.
        factor: constant of the head weights.

    Returns:
        e4m3 [B, heads, 128] and f32 [B, heads].
    """
    B, H, D = q.shape
    codes = torch.empty((B, H, D), dtype=torch.float8_e4m3fn, device=q.device)
    out = torch.empty((B, H), dtype=torch.float32, device=q.device)
    _index_q_rope_quant_kernel[(B * H,)](
        q, weights, _pairs(factors), hadamard, codes, out, factor, HEADS=H, num_warps=4
    )
    return codes, out


def silu_mul_clamp(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """Clamped SwiGLU of [M, 2 * I] bf16 in one launch; see :func:`~hta_dsv4.capture.glue.clamped_swiglu`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=torch.bfloat16, device=gate_up.device)
    block = 1024
    _silu_mul_clamp_kernel[(rows, triton.cdiv(width, block))](
        gate_up, out, width, limit, BLOCK=block, num_warps=4
    )
    return out
