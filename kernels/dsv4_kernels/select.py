"""Which configuration a kernel runs with: data and pure functions of static shapes, never a timing.

Tuning while serving would break CUDA graphs (a capture may not benchmark) and make results depend on
noise, so the choices are written down here, by device family and batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsv4_kernels.runtime import Device

K421 = (256, 128, 64)
K8 = (64,) * 7
BIG_SHARED = 200_000  # bytes; sm_90 and sm_100 allow 227 KiB a block, sm_120 99 KiB


@dataclass(frozen=True)
class MmaConfig:
    """Shape of a tensor-core kernel.

    Attributes:
        block_h: Heads per program.
        block_t: Tokens per block.
        tiles: How the 448 e4m3 dimensions are cut; they sum to 448.
        warps: Warps per program.
        stages: Software-pipelining depth of the token loop.
        operand: Type of the matrix products' operands, ``bf16`` or ``f16``.
        pdl: Programmatic dependent launch.
    """

    block_h: int
    block_t: int
    tiles: tuple[int, ...]
    warps: int
    stages: int
    operand: Literal["bf16", "f16"]
    pdl: bool = True


@dataclass(frozen=True)
class CombineConfig:
    """Shape of the combine: ``block_h`` heads by ``columns`` of 512 per program, and the partials' type."""

    block_h: int
    columns: int
    warps: int
    partials: Literal["bf16", "f32"] = "bf16"
    pdl: bool = True


def mma_config(device: Device, rows: int, heads: int) -> MmaConfig:
    """Configuration of the tensor-core kernel for ``rows`` query tokens."""
    if device.shared_limit >= BIG_SHARED and heads > 32:
        return MmaConfig(64, 64, K8, 8, 5, "f16")
    return MmaConfig(16 if heads <= 16 else 32, 32, K8, 8, 2, "bf16")


def combine_config(device: Device, rows: int, heads: int, splits: int) -> CombineConfig:
    """Configuration of the combine."""
    return CombineConfig(1, 128, 1)


def num_splits(rows: int, heads: int, widths: tuple[int, ...], num_sms: int, *, block_h: int, block_t: int) -> int:
    """Programs that share one row's list."""
    blocks = sum(-(-width // block_t) for width in widths)
    groups = -(-heads // block_h) * rows
    return max(1, min(blocks, num_sms // groups))
