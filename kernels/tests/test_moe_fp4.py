"""FP4 formats bit by bit, routing, and the experts in both forms against plain float64 arithmetic."""

from __future__ import annotations

from typing import Any

import aot
import decode_requests
import pytest
import torch
import triton
import triton.language as tl
from dsv4_kernels import fp4, moe_select
from dsv4_kernels.fp4_device import column_order, place_order
from dsv4_kernels.moe_fp4 import Fp4Experts, moe_fp4, quantize_experts, random_experts, route
from dsv4_kernels.moe_select import max_blocks
from hypothesis import given, settings
from hypothesis import strategies as st

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
# Triton's interpreter cuts float32 to bfloat16 instead of rounding, here twice: the hidden values and the answer.
TOLERANCE = {"torch": 5e-3, "triton": 1.2e-2}


@triton.jit
def _order_kernel(place_ptr: tl.tensor, column_ptr: tl.tensor, back_ptr: tl.tensor) -> None:
    index = tl.arange(0, 256)
    column = column_order(tl.load(place_ptr + index))
    tl.store(column_ptr + index, column)
    tl.store(back_ptr + index, place_order(column))


def plain_weights(packed: torch.Tensor, scales: torch.Tensor, overall: torch.Tensor | None) -> torch.Tensor:
    """Dequantise in float64, nibble by nibble."""
    table = torch.tensor(E2M1, dtype=torch.float64)
    experts, rows, half = packed.shape
    out = torch.empty(experts, rows, 2 * half, dtype=torch.float64)
    out[..., 0::2] = table[(packed & 15).long()]
    out[..., 1::2] = table[(packed >> 4).long()]
    block = 2 * half // scales.shape[2]
    numbers = torch.pow(2.0, scales.double() - 127) if scales.dtype == torch.uint8 else scales.double()
    out *= numbers.repeat_interleave(block, dim=2)
    return out if overall is None else out * overall.double()[:, None, None]


def plain_moe(
    x: torch.Tensor, experts: Fp4Experts, ids: torch.Tensor, weights: torch.Tensor, limit: float
) -> torch.Tensor:
    """The definition, pair by pair in float64."""
    w13 = plain_weights(experts.w13, experts.s13, experts.g13)
    w2 = plain_weights(experts.w2, experts.s2, experts.g2)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = (w13[expert] @ x[token].double()).chunk(2)
            gate = gate.clamp(max=limit)
            hidden = gate / (1 + torch.exp(-gate)) * up.clamp(-limit, limit)
            out[token] += weight * (w2[expert] @ hidden)
    return out


def test_every_byte_decodes() -> None:
    """All 256 bytes -> the low nibble's value, then the high nibble's."""
    packed = torch.arange(256, dtype=torch.uint8).view(1, 1, 256)
    scales = torch.full((1, 1, 16), 128, dtype=torch.uint8)
    got = fp4.dequantize(packed, scales, "mxfp4", fp4.byte_values(torch.float32, packed.device)).view(256, 2)
    want = torch.tensor([[2 * E2M1[b & 15], 2 * E2M1[b >> 4]] for b in range(256)])
    assert torch.equal(got, want)


@given(st.floats(-8, 8, width=32))
def test_encode_rounds_to_nearest(value: float) -> None:
    """Any number -> the nearest e2m1 value, 6 beyond 6, the even code at a midpoint."""
    packed = fp4.encode_e2m1(torch.tensor([value, 0.0]))
    code = int(packed[0]) & 15
    held = max(-6.0, min(6.0, value))
    distance = [abs(candidate - held) for candidate in E2M1]
    assert distance[code] == min(distance)
    if sum(candidate == min(distance) for candidate in distance[:8]) == 2:
        assert code % 2 == 0


def test_e8m0_ends() -> None:
    """Bytes 0, 1, 127 and 254 -> 2^-127 (subnormal in float32), 2^-126, 1 and 2^127."""
    stored = torch.tensor([0, 1, 127, 254], dtype=torch.uint8)
    assert fp4.e8m0_values(stored).tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]


@pytest.mark.parametrize("fmt", fp4.FORMATS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), exponent=st.integers(-20, 20))
def test_quantise_stays_within_half_a_step(fmt: str, seed: int, exponent: int) -> None:
    """Weights of any size -> each within half the widest code step (1) of its block's scale, none saturated."""
    torch.manual_seed(seed)
    weight = torch.randn(2, 3, 64) * 2.0**exponent
    weight[0, 0] = 0
    packed, scales, overall = fp4.quantize(weight, fmt)
    got = plain_weights(packed, scales, overall)
    step = plain_weights(torch.full_like(packed, 0x22), scales, overall)
    # An e4m3 scale is itself rounded, so an NVFP4 block's largest values may lie 1/16 of 6 beyond its range.
    bound = 1.0 if fmt == "mxfp4" else 1.0 + 6 / 16
    floor = 0 if fmt == "mxfp4" else weight.abs().amax() / 448 / 2**9 * 6
    assert torch.all((got - weight.double()).abs() <= bound * step + floor)
    assert torch.all(got[0, 0] == 0)


@pytest.mark.parametrize("variant", ["torch", "triton"])
@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 5),
    experts=st.sampled_from([6, 16, 40]),
    biased=st.booleans(),
    spread=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_route_matches_definition(
    variant: str, tokens: int, experts: int, biased: bool, spread: float, seed: int
) -> None:
    """Logits from -100 to 100 -> chosen by biased score, weighted by the unbiased, summing to the factor."""
    torch.manual_seed(seed)
    logits = torch.randn(tokens, experts) * spread
    bias = torch.randn(experts) if biased else None
    ids, weights = route(logits, bias=bias, scaling=2.5, variant=variant)
    score = torch.log1p(torch.exp(logits.double())).sqrt()
    choice = score if bias is None else score + bias.double()
    for token in range(tokens):
        chosen = ids[token].long()
        assert len(set(chosen.tolist())) == 6
        want = torch.topk(choice[token], 6).values
        torch.testing.assert_close(choice[token, chosen], want, rtol=1e-6, atol=1e-6)
        picked = score[token, chosen]
        torch.testing.assert_close(weights[token].double(), picked / picked.sum() * 2.5, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("variant", ["torch", "triton"])
def test_barred_experts_are_still_distinct(variant: str) -> None:
    """A bias of -inf on all but three experts -> the three first, then barred ones, none twice."""
    logits = torch.randn(4, 16)
    bias = torch.full((16,), float("-inf"))
    bias[[3, 7, 11]] = torch.tensor([0.0, 10.0, 20.0])
    ids, _ = route(logits, bias=bias, variant=variant)
    for row in ids.tolist():
        assert row[:3] == [11, 7, 3]
        assert len(set(row)) == 6


@pytest.mark.parametrize("variant", ["torch", "triton"])
def test_hash_layers_keep_their_ids(variant: str) -> None:
    """Ids from a table -> the same ids in the same order, weights from their scores."""
    torch.manual_seed(1)
    logits = torch.randn(3, 16)
    table = torch.stack([torch.randperm(16)[:6] for _ in range(3)]).to(torch.int32)
    ids, weights = route(logits, hash_ids=table, variant=variant)
    picked = torch.log1p(logits.exp()).sqrt().gather(1, table.long())
    assert torch.equal(ids, table)
    torch.testing.assert_close(weights, picked / picked.sum(1, keepdim=True) * 1.5)


def check_experts(variant: str, fmt: str, dim: int, inter: int, tokens: int, topk: int, seed: int) -> None:
    """Fail unless five experts of one size match the definition; every third seed crowds one of them."""
    torch.manual_seed(seed)
    experts = quantize_experts(torch.randn(5, 2 * inter, dim) * 0.3, torch.randn(5, dim, inter) * 0.3, fmt)
    x = (torch.randn(tokens, dim) * 2).to(torch.bfloat16)
    ids = torch.randint(0, 5, (tokens, topk), dtype=torch.int32)
    if seed % 3 == 0:
        ids[:, 0] = 4
    weights = torch.rand(tokens, topk)
    got = moe_fp4(x, experts, ids, weights, limit=2.0, variant=variant)
    want = plain_moe(x, experts, ids, weights, 2.0)
    assert float((got.double() - want).norm() / want.norm()) <= TOLERANCE[variant]


@pytest.mark.parametrize("variant", ["torch", "triton"])
@pytest.mark.parametrize("fmt", fp4.FORMATS)
@settings(max_examples=3, deadline=None)
@given(tokens=st.sampled_from([1, 3, 10]), topk=st.sampled_from([1, 3]), seed=st.integers(0, 2**16))
def test_experts_match_definition(variant: str, fmt: str, tokens: int, topk: int, seed: int) -> None:
    """Any routing, most experts idle or one crowded past a block -> the definition's answer."""
    check_experts(variant, fmt, 128, 128, tokens, topk, seed)


@pytest.mark.parametrize(("fmt", "tokens"), [("mxfp4", 9), ("nvfp4", 1)])
def test_whole_lines_match_definition(fmt: str, tokens: int) -> None:
    """Sizes that are multiples of 256, so rows are read in two parts -> the definition's answer, many and few pairs."""
    check_experts("triton", fmt, 512, 256, tokens, 2, 0)


def test_extreme_scales_are_exact() -> None:
    """Block scales 2^-100 and 2^13 in one matrix -> the kernel's decode neither flushes nor overflows."""
    torch.manual_seed(2)
    made = random_experts(1, 128, 128)
    made.s13[:, :, :2], made.s13[:, :, 2:] = 27, 140
    made.s2[:, :, 0] = 140
    experts = Fp4Experts("mxfp4", made.w13, made.s13, made.w2, made.s2)
    assert (made.shift13, experts.shift13, experts.shift2) == (0, 12, 12)
    x = torch.zeros(1, 128, dtype=torch.bfloat16)
    x[:, :64], x[:, 64:] = 2.0**98, 2.0**-15
    ids, weights = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1)
    got = moe_fp4(x, experts, ids, weights, variant="triton")
    want = plain_moe(x, experts, ids, weights, 10.0)
    assert float((got.double() - want).norm() / want.norm()) <= TOLERANCE["triton"]


@given(st.lists(st.integers(0, 31), min_size=1, max_size=300), st.sampled_from([4, 8, 16]))
def test_max_blocks_bounds_any_routing(ids: list[int], block_m: int) -> None:
    """Any ids -> the blocks they fill are at most the grid's."""
    filled = sum(-(-ids.count(expert) // block_m) for expert in set(ids))
    assert filled <= max_blocks(len(ids), 32, block_m) <= len(ids)


@pytest.mark.parametrize(
    ("tokens", "choice"),
    [
        (1, moe_select.FEW),
        (2, moe_select.FEW),
        (3, moe_select.MANY),
        (32, moe_select.MANY),
        (128, moe_select.MANY),
        (171, moe_select.CROWDED),
        (4096, moe_select.CROWDED),
    ],
)
def test_choice_follows_the_batch(tokens: int, choice: moe_select.Choice) -> None:
    """6 of 256 experts for 1 to 4,096 tokens -> the choice that was measured there."""
    assert moe_select.choose(6 * tokens, 256) == choice


@pytest.mark.parametrize("choice", moe_select.CHOICES)
def test_choices_fit_any_layer(choice: moe_select.Choice) -> None:
    """Every tile -> divides D and I of 128 and up, is whole tiles of mma.sync for its one warp, places are 8 or 16."""
    for tile in (choice.w13, choice.w2):
        assert tile.rows in (16, 32, 64)
        assert tile.block_k % 256 == 0
        assert tile.warps == 1
        assert choice.places in (8, 16)


def test_column_orders_are_inverse() -> None:
    """Places 0 .. 255 -> columns, each once within its 128, and back."""
    place = torch.arange(256, dtype=torch.int32)
    column, back = torch.empty_like(place), torch.empty_like(place)
    kernel: Any = _order_kernel
    kernel[(1,)](place, column, back)
    assert torch.equal(back, place)
    assert torch.equal(column.view(2, 128).sort(dim=1).values, place.view(2, 128))
    # Tile 1's first pair is codes 1 and 5 of word 0, tile 6's second is codes 2 and 6 of word 3.
    assert column[[16, 17, 98, 99]].tolist() == [1, 5, 26, 30]


@pytest.mark.parametrize("fmt", fp4.FORMATS)
def test_random_experts_keep_the_scale(fmt: str) -> None:
    """Random bytes -> a product with unit inputs stays near unit size; bytes per expert are the format's."""
    torch.manual_seed(3)
    experts = random_experts(2, 512, 128, fmt)
    weight = plain_weights(experts.w13, experts.s13, experts.g13)
    assert 0.5 < float(weight.std()) * 512**0.5 < 2
    per_weight = 0.5 + (1 / 32 if fmt == "mxfp4" else 1 / 16)
    assert experts.expert_bytes == int(3 * 512 * 128 * per_weight)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda e, x, i, w: moe_fp4(x.float(), e, i, w), "x: expected a contiguous bfloat16"),
        (lambda e, x, i, w: moe_fp4(x, e, i.long(), w), "ids: .*int32"),
        (lambda e, x, i, w: moe_fp4(x, e, i, w[:, :1]), r"weights: .*\[2, 2\]"),
        (lambda e, x, i, w: moe_fp4(x, e, i, w, variant="marlin"), "variant: expected one of auto, torch"),
        (lambda e, x, i, w: moe_fp4(x, e, i, w, chunk=0), "chunk: expected a positive"),
        (lambda e, x, i, w: Fp4Experts("fp4", e.w13, e.s13, e.w2, e.s2), "format: expected one of mxfp4"),
        (lambda e, x, i, w: Fp4Experts("nvfp4", e.w13, e.s13, e.w2, e.s2), "s13: .*float8_e4m3fn"),
        (lambda e, x, i, w: Fp4Experts("mxfp4", e.w13, e.s13, e.w2, e.s2, w), "g13: expected None"),
        (lambda e, x, i, w: quantize_experts(w, w), r"w13: expected a floating point tensor \[E, N, K\]"),
        (lambda e, x, i, w: quantize_experts(None, w), r"w13: expected a floating point tensor .*NoneType"),
        (
            lambda e, x, i, w: fp4.quantize(torch.full((1, 1, 64), float("inf")), "nvfp4"),
            "weight: expected finite",
        ),
        (
            lambda e, x, i, w: fp4.quantize(torch.ones(1, 1, 64).int(), "mxfp4"),
            "weight: expected floating point",
        ),
        (lambda e, x, i, w: random_experts(-1, 128, 128), "count: expected a positive integer"),
        (lambda e, x, i, w: moe_fp4(x, None, i, w), "experts: expected a Fp4Experts, got NoneType"),
        (lambda e, x, i, w: moe_fp4(x[:0], e, i[:0], w[:0]), "ids: expected at least one token"),
        (lambda e, x, i, w: moe_fp4(x, e, i + 2, w), "ids: expected values from 0 to 1, got 2"),
        (
            lambda e, x, i, w: moe_fp4(x, e, i - 1, w, variant="triton"),
            "ids: expected values from 0 to 1, got -1",
        ),
        (
            lambda e, x, i, w: moe_fp4(x, e, i, w, limit=float("nan")),
            "limit: expected a number of at least 0",
        ),
        (lambda e, x, i, w: route(w, topk=2, hash_ids=i + 2), "hash_ids: expected values from 0 to 1, got 2"),
        (lambda e, x, i, w: route(w, topk=1.5), "topk: expected a positive integer"),
        (lambda e, x, i, w: route(w, topk=2, scaling=None), "scaling: expected a finite number"),
        (lambda e, x, i, w: fp4.quantize(torch.ones(1, 1, 40), "mxfp4"), "multiple of 32 for mxfp4, got 40"),
        (lambda e, x, i, w: route(w, topk=3), "topk: expected"),
        (lambda e, x, i, w: route(w, topk=2, hash_ids=i, bias=w[0]), "bias: expected None together"),
    ],
)
def test_bad_argument_is_named(call: Any, named: str) -> None:
    """One wrong argument -> a ValueError that names it and says what was expected."""
    experts = random_experts(2, 128, 128)
    x, ids, weights = torch.zeros(2, 128).bfloat16(), torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, 2)
    with pytest.raises(ValueError, match=named):
        call(experts, x, ids, weights)


def test_kernels_compile_without_spills() -> None:
    """Every chosen tile on sm_90, sm_100 and sm_120 -> no spills, tensor cores in the two products alone."""
    aot.assert_clean(decode_requests.moe(), "gemm")
