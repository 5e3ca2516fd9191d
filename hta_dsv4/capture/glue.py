"""The small operations between the large kernels: rotary embedding, Hadamard rotation, clamped SwiGLU."""

from __future__ import annotations

import math

import torch

from hta_dsv4.capture.config import ROPE_DIM, LayerKind

_YARN_FACTOR, _YARN_ORIGINAL, _YARN_FAST, _YARN_SLOW = 16.0, 65536, 32, 1


def rope_table(kind: LayerKind, positions: int, device: torch.device) -> torch.Tensor:
    """Rotation factors per position: theta 10,000 in sliding-window layers, 160,000 with YaRN elsewhere.

    Args:
        kind: layer kind.
        positions: how many positions, from 0.
        device: where the table lives.

    Returns:
        [positions, 32] complex64, for interleaved pairs of the last 64 channels.
    """
    base = 10_000.0 if kind is LayerKind.SWA else 160_000.0
    freqs = base ** (-torch.arange(0, ROPE_DIM, 2, dtype=torch.float64) / ROPE_DIM)
    if kind is not LayerKind.SWA:

        def pair_turning(
            times: float,
        ) -> float:  # the pair that makes `times` turns over the original context
            return ROPE_DIM * math.log(_YARN_ORIGINAL / (times * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(pair_turning(_YARN_FAST)), 0)
        high = min(math.ceil(pair_turning(_YARN_SLOW)), ROPE_DIM - 1)
        ramp = ((torch.arange(ROPE_DIM // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
        freqs = freqs / _YARN_FACTOR * ramp + freqs * (1 - ramp)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), freqs)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(device)


def rotate_(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Rotate the last 64 channels in place.

    Args:
        x: [B, ..., d] with d >= 64, any float type.
        factors: [B, 32] complex64, a row of :func:`rope_table` per request (conjugated for the inverse).

    Returns:
        ``x``.
    """
    tail = x[..., -ROPE_DIM:]
    pairs = torch.view_as_complex(tail.float().reshape(*tail.shape[:-1], ROPE_DIM // 2, 2))
    factors = factors.view(factors.shape[0], *[1] * (x.dim() - 2), ROPE_DIM // 2)
    tail.copy_(torch.view_as_real(pairs * factors).flatten(-2))
    return x


def hadamard(size: int, device: torch.device) -> torch.Tensor:
    """The orthonormal Hadamard matrix [size, size], bf16; ``size`` a power of two."""
    h = torch.ones((1, 1))
    while h.shape[0] < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return torch.mul(h, size**-0.5).to(device, torch.bfloat16)


def clamped_swiglu(gate_up: torch.Tensor, limit: float) -> torch.Tensor:
    """``silu(min(gate, limit)) * clamp(up, -limit, limit)`` in FP32.

    Args:
        gate_up: [M, 2 * I] bf16, gate first.
        limit: clamp.

    Returns:
        [M, I] bf16.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return (gate * torch.sigmoid(gate) * up.clamp(-limit, limit)).bfloat16()
