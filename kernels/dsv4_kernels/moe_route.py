"""Which experts, with which weights, in one launch: sqrt(softplus), top-k, normalise.

One program per token holds all scores in registers and takes the maximum ``topk`` times; 6 of 256 needs no sort.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _score(logit: tl.tensor) -> tl.tensor:
    """sqrt(log(1 + exp(x))), accurate for very negative x too, where 1 + exp(x) would round to 1."""
    small = tl.exp(-tl.abs(logit))
    sum1 = 1.0 + small
    # log(1 + z) = log(u) * z / (u - 1) with u the rounded 1 + z: the rounding errors cancel.
    rounded = sum1 - 1.0
    log1p = tl.where(rounded == 0.0, small, tl.log(sum1) * (small / tl.where(rounded == 0.0, 1.0, rounded)))
    return tl.sqrt(tl.maximum(logit, 0.0) + log1p)


@triton.jit
def _moe_route_kernel(
    logits_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    hash_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    weights_ptr: tl.tensor,
    experts: tl.tensor,
    scaling: tl.tensor,
    TOPK: tl.constexpr,
    TOPK_SPAN: tl.constexpr,
    E_SPAN: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_HASH: tl.constexpr,
) -> None:
    token = tl.program_id(0)
    place = tl.arange(0, TOPK_SPAN)
    kept = place < TOPK
    if HAS_HASH:
        ids = tl.load(hash_ptr + token * TOPK + place, mask=kept, other=0)
        picked = tl.where(
            kept, _score(tl.load(logits_ptr + token * experts + ids, mask=kept, other=0.0)), 0.0
        )
    else:
        expert = tl.arange(0, E_SPAN)
        inside = expert < experts
        score = _score(tl.load(logits_ptr + token * experts + expert, mask=inside, other=0.0))
        biased = score
        if HAS_BIAS:
            biased += tl.load(bias_ptr + expert, mask=inside, other=0.0)
        # -inf marks what is taken already: an expert barred by its bias must not be taken for one.
        biased = tl.where(biased == float("-inf"), -3.0e38, biased)
        biased = tl.where(inside, biased, float("-inf"))
        ids = tl.zeros((TOPK_SPAN,), dtype=tl.int32)
        picked = tl.zeros((TOPK_SPAN,), dtype=tl.float32)
        for turn in tl.static_range(TOPK):
            best = tl.argmax(biased, axis=0)
            ids = tl.where(place == turn, best, ids)
            picked = tl.where(place == turn, tl.sum(tl.where(expert == best, score, 0.0), axis=0), picked)
            biased = tl.where(expert == best, float("-inf"), biased)
    weights = picked / tl.sum(picked, axis=0) * scaling
    tl.store(ids_ptr + token * TOPK + place, ids, mask=kept)
    tl.store(weights_ptr + token * TOPK + place, weights, mask=kept)


def route_triton(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    topk: int,
    scaling: float,
    hash_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel of ``moe_fp4.route``, which has checked the arguments.

    Args:
        logits: float32 [T, E].
        bias: float32 [E] or None.
        topk: Experts per token.
        scaling: What the normalised weights are multiplied by.
        hash_ids: int32 [T, topk] or None.

    Returns:
        ids int32 [T, topk], weights float32 [T, topk].
    """
    tokens, experts = logits.shape
    ids = torch.empty(tokens, topk, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, topk, dtype=torch.float32, device=logits.device)
    kernel: Any = _moe_route_kernel
    kernel[(tokens,)](
        logits,
        logits if bias is None else bias,
        ids if hash_ids is None else hash_ids,
        ids,
        weights,
        experts,
        scaling,
        TOPK=topk,
        TOPK_SPAN=triton.next_power_of_2(topk),
        E_SPAN=triton.next_power_of_2(experts),
        HAS_BIAS=bias is not None,
        HAS_HASH=hash_ids is not None,
        num_warps=1,
    )
    return ids, weights
