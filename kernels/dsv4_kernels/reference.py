"""What a sparse-MLA decode must return: plain torch, in float32 or float64, one row group at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.call import Convention, DecodeCall, Scope
from dsv4_kernels.layout import HEAD_DIM, gather_kv


def valid_entries(scope: Scope, q_len: int) -> Tensor:
    """Which entries of a scope's list count: inside the row's length, and not -1.

    Returns:
        bool ``[rows, width]``.
    """
    valid = scope.indices >= 0
    if scope.lengths is not None:
        position = torch.arange(scope.width, device=scope.indices.device)
        valid &= position[None, :] < scope.lengths.repeat_interleave(q_len)[:, None]
    return valid


def apply_sink(
    out: Tensor, lse: Tensor, sink: Tensor | None, convention: Convention
) -> tuple[Tensor, Tensor]:
    """Fold the attention sink into a finished softmax and give ``lse`` the convention's meaning.

    Args:
        out: float ``[rows, H, 512]``, attention without the sink; 0 where a row has no valid token.
        lse: float ``[rows, H]``, natural log of its denominator; -inf where a row has no valid token.
        sink: float ``[H]`` or None.
        convention: See :data:`~dsv4_kernels.call.Convention`.

    Returns:
        ``out`` times ``exp(lse) / (exp(lse) + exp(sink))``, and ``lse`` by the convention.
    """
    empty = lse == float("-inf")
    if sink is not None:
        logit = sink.to(lse.dtype).expand_as(lse)
        total = torch.logaddexp(lse, logit)
        # An empty row's weight would be exp(-inf - -inf) under a sink of -inf.
        weight = torch.where(empty, 0.0, torch.exp(lse - total))
        out = out * weight[..., None]
        if convention == "sglang":
            return out, total
    return out, torch.where(empty, float("inf"), lse) if convention == "flashmla" else lse


def reference_attention(
    call: DecodeCall, dtype: torch.dtype = torch.float32, max_tokens: int = 1 << 16
) -> tuple[Tensor, Tensor]:
    """The call by its definition: gather, dequantise, one softmax over the union of the scopes, sink.

    Args:
        call: A checked call.
        dtype: Arithmetic and result type, float32 or float64.
        max_tokens: Rows are taken in groups of at most this many gathered tokens, to bound memory
            (2 KiB each in float32).

    Returns:
        Output ``[rows, H, 512]`` and lse ``[rows, H]``, both of ``dtype``, not rounded to bf16.
    """
    step = max(1, max_tokens // sum(call.widths))
    outs, lses = [], []
    for start in range(0, call.rows, step):
        rows = slice(start, start + step)
        keys, masks = [], []
        for scope in call.scopes:
            valid = valid_entries(scope, call.q_len)[rows]
            kv = gather_kv(scope.cache, scope.indices[rows].clamp_min(0), dtype)
            # Zeroed, not merely weighted 0: an unwritten slot may decode to NaN, and 0 * NaN is NaN.
            keys.append(torch.where(valid[..., None], kv, 0.0))
            masks.append(valid)
        kv, valid = torch.cat(keys, dim=1), torch.cat(masks, dim=1)
        scores = torch.einsum("rhd,rtd->rht", call.q[rows].to(dtype), kv) * call.scale
        scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
        lse = torch.logsumexp(scores, dim=-1)
        shift = torch.where(lse == float("-inf"), 0.0, lse)
        outs.append(torch.einsum("rht,rtd->rhd", torch.exp(scores - shift[..., None]), kv))
        lses.append(lse)
    out, lse = torch.cat(outs), torch.cat(lses)
    assert out.shape == (call.rows, call.heads, HEAD_DIM)
    return apply_sink(out, lse, call.sink, call.convention)


def relative_error(out: Tensor, expected: Tensor) -> float:
    """``||out - expected|| / ||expected||`` in float64; the plain norm of ``out`` where ``expected`` is 0."""
    difference = torch.linalg.vector_norm(out.double() - expected.double())
    norm = torch.linalg.vector_norm(expected.double())
    return float(difference / norm) if float(norm) > 0 else float(difference)
