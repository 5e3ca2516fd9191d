"""How are FP4 weights stored, and what do they say? MXFP4 and NVFP4: pack, unpack, dequantise.

Both hold e2m1 codes, two to a byte along the last (K) axis, the even element in the low nibble; a code's values are
0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign. They differ in the scale:

====== ===== ================== ======================================
format block scale per block    second scale
====== ===== ================== ======================================
mxfp4  32    E8M0, 2^(byte-127) none
nvfp4  16    e4m3               one float32 per expert, on the product
====== ===== ================== ======================================
"""

from __future__ import annotations

import torch

from . import _expect

FORMATS = ("mxfp4", "nvfp4")
BLOCK = {"mxfp4": 32, "nvfp4": 16}
SCALE_DTYPE = {"mxfp4": torch.uint8, "nvfp4": torch.float8_e4m3fn}
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0


def byte_values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What each byte means: a table.

    Args:
        dtype: Floating point; every e2m1 value is exact in it.
        device: Where the table goes.

    Returns:
        ``dtype`` [256, 2]: low nibble's value, high nibble's value.
    """
    positive = torch.tensor(E2M1_VALUES, dtype=dtype, device=device)
    codes = torch.cat([positive, -positive])
    byte = torch.arange(256, device=device)
    return torch.stack([codes[byte & 15], codes[byte >> 4]], dim=1)


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest e2m1 value (ties to the even code), saturating at 6, and pack two to a byte.

    Args:
        values: float32 [..., K], K even, already divided by their scales.

    Returns:
        uint8 [..., K // 2].
    """
    magnitude = values.abs()
    # Midpoints between neighbours; at a midpoint the even code wins: odd codes give theirs away on both sides.
    code = torch.zeros_like(values, dtype=torch.uint8)
    for lower, midpoint in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        above = magnitude > midpoint if lower % 2 == 0 else magnitude >= midpoint
        code += above.to(torch.uint8)
    code |= torch.signbit(values).to(torch.uint8) << 3
    return code[..., 0::2] | (code[..., 1::2] << 4)


def quantize(
    weight: torch.Tensor, fmt: str, name: str = "weight"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Quantise a stack of matrices along their last axis.

    MXFP4 scales are the least power of two that keeps the block's maximum at or under 6, so nothing saturates. NVFP4's
    global scale puts the largest block scale at 448, the largest e4m3.

    Args:
        weight: Floating point [E, N, K], finite, K a multiple of the block.
        fmt: ``"mxfp4"`` or ``"nvfp4"``.
        name: What the caller calls ``weight``, for the message of an error.

    Returns:
        Packed uint8 [E, N, K // 2]; scales [E, N, K // block], uint8 (E8M0) or e4m3; global scales float32 [E] or None.

    Raises:
        ValueError: The format is unknown, ``weight`` has another shape, no elements or a value that is not finite.
    """
    _expect.choice("format", fmt, FORMATS)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 3 or not weight.numel():
        got = list(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"{name}: expected a floating point tensor [E, N, K], none of them 0, got {got}")
    _expect.finite(name, weight)
    experts, rows, width = weight.shape
    block = BLOCK[fmt]
    if width % block:
        raise ValueError(f"{name}: expected a last axis that is a multiple of {block} for {fmt}, got {width}")
    blocks = weight.float().reshape(experts, rows, width // block, block)
    amax = blocks.abs().amax(dim=3)
    if fmt == "mxfp4":
        # frexp: amax/6 = m * 2^e with m in [0.5, 1); 2^e is the power above it, unless m is exactly 0.5.
        mantissa, exponent = torch.frexp(amax / E2M1_MAX)
        exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
        stored = (exponent + 127).clamp(0, 254)
        stored = torch.where(amax == 0, torch.full_like(stored, 127), stored).to(torch.uint8)
        packed = encode_e2m1(blocks / e8m0_values(stored)[..., None])
        return packed.view(experts, rows, width // 2), stored, None
    tiny = torch.finfo(torch.float32).tiny
    overall = (amax.amax(dim=(1, 2)) / (E2M1_MAX * 448.0)).clamp_min(tiny)
    scales = (amax / E2M1_MAX / overall[:, None, None]).to(torch.float8_e4m3fn)
    divisor = scales.float() * overall[:, None, None]
    divisor = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
    packed = encode_e2m1(blocks / divisor[..., None])
    return packed.view(experts, rows, width // 2), scales, overall


def e8m0_values(stored: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes as numbers.

    Args:
        stored: uint8, any shape; 255 (NaN) does not occur in weights.

    Returns:
        float32 of the same shape: ``2 ** (byte - 127)``.
    """
    # The byte is a float32's exponent field; byte 0 is 2^-127, which float32 writes as half its least normal.
    return (stored.to(torch.int32) << 23).clamp_min(1 << 22).view(torch.float32)


def scale_values(scales: torch.Tensor, fmt: str) -> torch.Tensor:
    """A format's block scales as float32.

    Args:
        scales: uint8 (mxfp4) or e4m3 (nvfp4), any shape.
        fmt: The format.

    Returns:
        float32 of the same shape.
    """
    return e8m0_values(scales) if fmt == "mxfp4" else scales.float()


def dequantize(packed: torch.Tensor, scales: torch.Tensor, fmt: str, values: torch.Tensor) -> torch.Tensor:
    """Packed codes times their block scales (an NVFP4 global scale is not applied).

    Both products are exact in bfloat16: a code has 2 significant bits and an e4m3 scale 4.

    Args:
        packed: uint8 [..., K // 2].
        scales: [..., K // block].
        fmt: The format.
        values: ``byte_values``'s table, on the same device; its dtype is the answer's.

    Returns:
        [..., K] in the dtype of ``values``.
    """
    numbers = values[packed.int()].flatten(-2)
    factors = scale_values(scales, fmt).to(values.dtype)[..., None]
    return (numbers.view(*scales.shape, BLOCK[fmt]) * factors).view(numbers.shape)
