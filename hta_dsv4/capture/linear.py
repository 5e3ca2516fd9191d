"""Dense projections in three number formats over the same weights.

Weights are drawn once, rounded to block-scaled FP8, and kept as that, as BF16 or as FP32. All three hold the
same values exactly (e4m3 times a power of two fits BF16), so switching the format changes the arithmetic and
not the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hta_dsv4.capture.fp8_gemm import choose_splits, dequantize_weight, fp8_block_matmul, quantize_weight
from hta_dsv4.capture.switches import Gemm


@dataclass(frozen=True, slots=True)
class Linear:
    """``y = x @ w^T``, per group.

    Attributes:
        weight: [G, N, K]: e4m3, bf16 or f32.
        scales: [G, N/128, K/128] f32 with e4m3 weights, else ``None``.
    """

    weight: torch.Tensor
    scales: torch.Tensor | None

    def __call__(self, x: torch.Tensor, split: bool = False) -> torch.Tensor:
        """Project.

        Args:
            x: [M, K] bf16 for one group, [M, G, K] for several.
            split: e4m3 weights on a GPU only: divide K over programs where there are fewer tiles than SMs.

        Returns:
            [M, N] or [M, G, N] bf16.
        """
        grouped = x.dim() == 3
        if self.scales is not None:
            splits = self._splits(x.shape[0]) if split else 1
            y = fp8_block_matmul(
                (x if grouped else x[:, None]).contiguous(), self.weight, self.scales, splits
            )
            return y if grouped else y[:, 0]
        x = x.to(self.weight.dtype)
        if grouped:
            return torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1).bfloat16()
        return (x @ self.weight[0].t()).bfloat16()

    def _splits(self, rows: int) -> int:
        if not self.weight.is_cuda:
            return 1
        G, N, K = self.weight.shape
        sms = torch.cuda.get_device_properties(self.weight.device).multi_processor_count
        return choose_splits(G * N, K, rows, sms)


def random_linear(n: int, k: int, gemm: Gemm, generator: torch.Generator, groups: int = 1) -> Linear:
    """Random weights of variance 1/k, in the format ``gemm`` asks for.

    Args:
        n: outputs, a multiple of 128.
        k: inputs, a multiple of 128.
        gemm: number format.
        generator: its device is where the weights live.
        groups: independent products.
    """
    w = torch.randn((groups, n, k), generator=generator, device=generator.device).mul_(k**-0.5)
    codes, scales = quantize_weight(w)
    if gemm in ("fp8", "fp8_split"):
        return Linear(codes, scales)
    exact = dequantize_weight(codes, scales)
    return Linear(exact if gemm == "fp32" else exact.bfloat16(), None)


def project_f32(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """BF16 activations times BF16 or FP32 weights with an FP32 result (router, compressor).

    Args:
        x: [M, K] bf16.
        w: [N, K] bf16 or f32; f32 takes the FP32 path, conversion of ``x`` included.

    Returns:
        [M, N] f32.
    """
    if w.dtype == torch.float32:
        return x.float() @ w.t()
    if x.is_cuda:
        return torch.mm(x, w.t(), out_dtype=torch.float32)
    return x.float() @ w.float().t()
