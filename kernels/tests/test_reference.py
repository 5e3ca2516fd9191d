"""The reference against the definition, written out entry by entry in Python."""

from __future__ import annotations

import math

import pytest
import torch
from dsv4_kernels.call import Convention, make_call
from dsv4_kernels.layout import pack_kv, unpack_kv
from dsv4_kernels.reference import reference_attention

INF = float("inf")


def by_hand(
    q: torch.Tensor, tokens: list[torch.Tensor], scale: float, sink: float | None, convention: Convention
) -> tuple[torch.Tensor, float]:
    """One query head over a list of tokens, in float64."""
    logits = [float(q.double() @ token) * scale for token in tokens]
    total = sum(math.exp(logit) for logit in logits)
    denominator = total + (math.exp(sink) if sink is not None else 0.0)
    out = sum(
        (math.exp(x) / denominator * t for x, t in zip(logits, tokens, strict=True)),
        torch.zeros(512).double(),
    )
    if convention == "sglang":
        return out, math.log(denominator) if denominator else -INF
    return out, math.log(total) if total else INF


@pytest.mark.parametrize("convention", ["flashmla", "sglang"])
@pytest.mark.parametrize("with_sink", [False, True])
def test_matches_the_definition(convention: Convention, with_sink: bool) -> None:
    """Lengths, -1 inside, a scattered second scope, draft tokens, empty rows -> the softmax written out."""
    torch.manual_seed(0)
    kv, more = torch.randn(30, 512), torch.randn(50, 512)
    cache, extra = pack_kv(kv, 4), pack_kv(more, 2)
    main_values, extra_values = unpack_kv(cache).double(), unpack_kv(extra).double()
    q = torch.randn(3, 2, 2, 512).bfloat16()
    indices = torch.randint(-1, 30, (3, 2, 5), dtype=torch.int32)
    extra_indices = torch.randint(-1, 50, (3, 2, 9), dtype=torch.int32)
    length = torch.tensor([5, 0, 2], dtype=torch.int32)
    extra_length = torch.tensor([9, 0, 0], dtype=torch.int32)
    sink = torch.tensor([0.7, -3.0]) if with_sink else None
    call = make_call(
        q, cache, indices, topk_length=length, extra=extra, extra_indices=extra_indices,
        extra_topk_length=extra_length, attn_sink=sink, convention=convention,
    )  # fmt: skip
    out, lse = call.unflatten(*reference_attention(call, torch.float64, max_tokens=20))
    for b in range(3):
        for s in range(2):
            picked = [main_values[i] for i in indices[b, s, : length[b]].tolist() if i >= 0]
            picked += [extra_values[i] for i in extra_indices[b, s, : extra_length[b]].tolist() if i >= 0]
            for h in range(2):
                logit = None if sink is None else float(sink[h])
                expected, expected_lse = by_hand(q[b, s, h], picked, 512**-0.5, logit, convention)
                assert torch.allclose(out[b, s, h], expected, rtol=1e-10, atol=1e-12)
                assert float(lse[b, s, h]) == pytest.approx(expected_lse, abs=1e-10)


def test_float32_is_close_to_float64() -> None:
    """The same call in both precisions -> far closer than any kernel is asked to be."""
    torch.manual_seed(1)
    cache = pack_kv(torch.randn(300, 512) * 3, 64)
    call = make_call(
        torch.randn(2, 1, 8, 512).bfloat16(), cache, torch.randint(0, 300, (2, 1, 200), dtype=torch.int32)
    )
    single, double = reference_attention(call), reference_attention(call, torch.float64)
    assert torch.allclose(single[0].double(), double[0], rtol=1e-4, atol=1e-5)
    assert torch.allclose(single[1].double(), double[1], rtol=0, atol=2e-6)


def test_unwritten_slots_do_not_leak() -> None:
    """Invalid entries pointing at bytes that decode to NaN -> a finite output."""
    cache = pack_kv(torch.randn(8, 512), 4)
    cache.data.fill_(0xFF)
    indices = torch.tensor([[[-1, -1, 3]]], dtype=torch.int32)
    call = make_call(
        torch.randn(1, 1, 2, 512).bfloat16(), cache, indices, topk_length=torch.tensor([2], dtype=torch.int32)
    )
    out, lse = reference_attention(call)
    assert bool((out == 0).all())
    assert bool((lse == INF).all())


@pytest.mark.parametrize("sink", [-INF, INF, 1e4, -1e4])
def test_extreme_sinks(sink: float) -> None:
    """A sink of any size, infinite too -> no NaN; a huge one takes all the weight."""
    cache = pack_kv(torch.randn(8, 512), 4)
    indices = torch.tensor([[[0, 1, 2]]], dtype=torch.int32)
    for convention in ("flashmla", "sglang"):
        call = make_call(
            torch.randn(1, 1, 1, 512).bfloat16(), cache, indices, attn_sink=torch.tensor([sink]),
            convention=convention,
        )  # fmt: skip
        out, lse = reference_attention(call)
        assert not bool(torch.isnan(out).any() | torch.isnan(lse).any())
        assert bool((out == 0).all()) == (sink > 0)
