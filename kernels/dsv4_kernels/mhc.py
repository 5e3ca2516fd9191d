"""How do a block's input and output pass through the four residual streams? The manifold hyper-connections (mHC).

Around each attention and each MoE block (86 sites in V4-Flash) the state ``x [T, 4, D]`` is mixed down to the block's
input by ``mhc_pre`` and mixed back by ``mhc_post``; after the last block ``hc_head`` mixes the streams down for good.
The mixing weights come from a float32 product [T, 4 D] x [4 D, 24], bandwidth-bound (N = 24), and a 20-iteration
Sinkhorn normalisation of a 4 x 4 matrix. The torch form launches the product as a float32 ``F.linear`` and some 140
small kernels; the fused form is two launches before a block and one after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)

from . import _expect
from ._device import launching
from .mhc_fused import hc_head_fused, post_fused, pre_fused

STREAMS = 4
MIXES = STREAMS * (STREAMS + 2)
PRE_VARIANTS = ("auto", "torch", "fused")


@dataclass(frozen=True)
class MhcWeights:
    """One site's weights, finite.

    Attributes:
        fn: float32 [24, 4 * D]: rows 0-3 pre, 4-7 post, 8-23 the 4 x 4 combination, row-major.
        scale: float32 [3], one each for pre, post, combination.
        base: float32 [24], added after the scale.
    """

    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor

    def __post_init__(self) -> None:
        _expect.tensor("fn", self.fn, torch.float32, (MIXES, "4*D"))
        _expect.tensor("scale", self.scale, torch.float32, (3,), device=self.fn.device)
        _expect.tensor("base", self.base, torch.float32, (MIXES,), device=self.fn.device)


def mhc_pre(
    x: torch.Tensor,
    w: MhcWeights,
    *,
    eps: float = 1e-6,
    hc_eps: float = 1e-6,
    iters: int = 20,
    variant: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mix the streams down to a block's input, and compute the weights that mix its output back.

    Args:
        x: bfloat16 [T, 4, D], the residual streams. D a multiple of 64.
        w: The site's weights.
        eps: Under the root of the streams' mean square (the model's RMSNorm epsilon).
        hc_eps: Added to the pre weights and to every Sinkhorn sum.
        iters: Sinkhorn iterations, the softmax round included; at least 1.
        variant: ``"torch"``, ``"fused"`` (Triton, two launches) or ``"auto"`` (fused on CUDA).

    Returns:
        y bfloat16 [T, D] (the block's input **before** its RMSNorm), post float32 [T, 4] and comb float32 [T, 4, 4].

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, PRE_VARIANTS)
    _, _, width = _streams(x)
    _expect.instance("w", w, MhcWeights)
    _expect.tensor("w.fn", w.fn, torch.float32, (MIXES, STREAMS * width), device=x.device)
    _expect.count("iters", iters)
    eps, hc_eps = _expect.number("eps", eps), _expect.number("hc_eps", hc_eps)
    if _expect.fast_form(variant, "fused", "torch", x.device) == "fused":
        with launching(x):
            return pre_fused(x, w.fn, w.scale, w.base, eps, hc_eps, iters)
    flat = x.flatten(1).float()
    rsqrt = torch.rsqrt(flat.square().mean(dim=1, keepdim=True) + eps)
    mixes = F.linear(flat, w.fn) * rsqrt
    pre = torch.sigmoid(mixes[:, :4] * w.scale[0] + w.base[:4]) + hc_eps
    post = 2 * torch.sigmoid(mixes[:, 4:8] * w.scale[1] + w.base[4:8])
    comb = (mixes[:, 8:] * w.scale[2] + w.base[8:]).view(-1, STREAMS, STREAMS)
    comb = torch.softmax(comb, dim=2) + hc_eps
    comb = comb / (comb.sum(dim=1, keepdim=True) + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(dim=2, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(dim=1, keepdim=True) + hc_eps)
    y = (pre[:, :, None] * flat.view(x.shape)).sum(dim=1).to(x.dtype)
    return y, post, comb


def mhc_post(
    block: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    *,
    variant: str = "auto",
) -> torch.Tensor:
    """Mix a block's output back into the streams: ``out_j = post_j * block + sum_i comb[i, j] * x_i``.

    Args:
        block: bfloat16 [T, D].
        x: bfloat16 [T, 4, D], the streams that ``mhc_pre`` saw.
        post: float32 [T, 4].
        comb: float32 [T, 4, 4].
        variant: ``"torch"``, ``"fused"`` (Triton, one launch) or ``"auto"`` (fused on CUDA).

    Returns:
        bfloat16 [T, 4, D], a new tensor.

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, PRE_VARIANTS)
    tokens, _, width = _streams(x)
    _expect.tensor("block", block, torch.bfloat16, (tokens, width), device=x.device)
    _expect.tensor("post", post, torch.float32, (tokens, STREAMS), device=x.device)
    _expect.tensor("comb", comb, torch.float32, (tokens, STREAMS, STREAMS), device=x.device)
    if _expect.fast_form(variant, "fused", "torch", x.device) == "fused":
        with launching(x):
            return post_fused(block, x, post, comb)
    mixed = (comb[:, :, :, None] * x.float()[:, :, None, :]).sum(dim=1)
    return (post[:, :, None] * block.float()[:, None, :] + mixed).to(x.dtype)


def hc_head(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    eps: float = 1e-6,
    hc_eps: float = 1e-6,
    variant: str = "auto",
) -> torch.Tensor:
    """Mix the streams down after the last block.

    Args:
        x: bfloat16 [T, 4, D].
        fn: float32 [4, 4 * D].
        scale: float32 [1].
        base: float32 [4].
        eps: Under the root of the streams' mean square.
        hc_eps: Added to the weights.
        variant: ``"torch"``, ``"fused"`` (Triton, one launch) or ``"auto"`` (fused on CUDA).

    Returns:
        bfloat16 [T, D].

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, PRE_VARIANTS)
    _, _, width = _streams(x)
    _expect.tensor("fn", fn, torch.float32, (STREAMS, STREAMS * width), device=x.device)
    _expect.tensor("scale", scale, torch.float32, (1,), device=x.device)
    _expect.tensor("base", base, torch.float32, (STREAMS,), device=x.device)
    eps, hc_eps = _expect.number("eps", eps), _expect.number("hc_eps", hc_eps)
    if _expect.fast_form(variant, "fused", "torch", x.device) == "fused":
        with launching(x):
            return hc_head_fused(x, fn, scale, base, eps, hc_eps)
    flat = x.flatten(1).float()
    rsqrt = torch.rsqrt(flat.square().mean(dim=1, keepdim=True) + eps)
    weights = torch.sigmoid(F.linear(flat, fn) * rsqrt * scale + base) + hc_eps
    return (weights[:, :, None] * flat.view(x.shape)).sum(dim=1).to(x.dtype)


def _streams(x: torch.Tensor) -> tuple[int, ...]:
    sizes = _expect.tensor("x", x, torch.bfloat16, ("T", STREAMS, "D"))
    if sizes[0] == 0 or sizes[2] == 0 or sizes[2] % 64:
        raise ValueError(f"x: expected T > 0 and D a positive multiple of 64, got {list(sizes)}")
    return sizes
