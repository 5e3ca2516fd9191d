"""The sparse-MLA kernels, interpreted on the CPU, against the reference; and the public call's manners."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dsv4_kernels import PagedKV, pack_kv, sparse_mla_decode
from dsv4_kernels._device import interpreting
from dsv4_kernels.call import DecodeCall, make_call
from dsv4_kernels.decode import ENVIRONMENT, resolve_variant
from dsv4_kernels.mma import mma_decode
from dsv4_kernels.reference import reference_attention, relative_error
from dsv4_kernels.select import EVEN, FINE, SPLIT_LAST, CombineConfig, MmaConfig
from dsv4_kernels.simt import simt_decode
from dsv4_kernels.split_k import split_k_decode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(not interpreting(), reason="needs TRITON_INTERPRET=1")
EXACT = 2e-5  # float32 outputs and operands: only the order of sums and exp2's last bits differ
ROUNDED = 8e-3  # bf16 outputs; the interpreter truncates where a GPU rounds to nearest


int32 = torch.int32


def random_call(seed: int, rows: int, heads: int, widths: tuple[int, int], **options: Any) -> DecodeCall:
    """A call over small pools: scattered slots, 20 % of them -1, random lengths including 0."""
    torch.manual_seed(seed)
    q_len = options.pop("q_len", 1)
    pools = pack_kv(torch.randn(90, 512), options.pop("page", 8)), pack_kv(torch.randn(150, 512) * 4, 2)
    for pool in pools:
        # Everything a kernel must not read decodes to NaN: unused slots, and the pad after the scales.
        pool.data[-1, pool.page_size * 584 :] = 0xFF

    def indices(count: int, width: int) -> torch.Tensor:
        index = torch.randint(0, count, (rows, q_len, width), dtype=torch.int32)
        return torch.where(torch.rand(index.shape) < 0.2, -1, index)

    def lengths(width: int) -> torch.Tensor | None:
        return (
            torch.randint(0, width + 1, (rows,), dtype=torch.int32) if options.get("ragged", True) else None
        )

    arguments: dict[str, Any] = {
        "topk_length": lengths(widths[0]),
        "convention": options.get("convention", "flashmla"),
    }
    if widths[1]:
        arguments |= {
            "extra": pools[1],
            "extra_indices": indices(150, widths[1]),
            "extra_topk_length": lengths(widths[1]),
        }
    if options.get("sink", True):
        arguments["attn_sink"] = torch.randn(heads) * 3
    return make_call(
        torch.randn(rows, q_len, heads, 512).bfloat16(), pools[0], indices(90, widths[0]), **arguments
    )


def assert_matches(call: DecodeCall, result: tuple[torch.Tensor, torch.Tensor], limit: float) -> None:
    """Output and lse against the reference; infinite lse values must be the same infinities."""
    out, lse = reference_attention(call)
    assert relative_error(result[0], out) <= limit
    assert torch.allclose(result[1], lse, rtol=0, atol=1e-5)


calls = st.builds(
    random_call,
    st.integers(0, 2**31), st.integers(1, 2), st.sampled_from((1, 8, 16, 20)),
    st.tuples(st.integers(1, 40), st.one_of(st.just(0), st.integers(1, 70))),
    q_len=st.integers(1, 2), page=st.sampled_from((2, 3, 8, 64)), ragged=st.booleans(), sink=st.booleans(),
    convention=st.sampled_from(("flashmla", "sglang")),
)  # fmt: skip
slow = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(
    calls,
    st.sampled_from(((16, 16), (16, 32), (32, 16))),
    st.sampled_from((EVEN, SPLIT_LAST, FINE, (256, 256))),
    st.booleans(),
)
@slow
def test_mma(call: DecodeCall, block: tuple[int, int], tiles: tuple[int, ...], ahead: bool) -> None:
    """Any lengths, -1 inside, empty rows, odd widths and page sizes -> the reference."""
    config = MmaConfig(*block, tiles, 4, 3, ahead=ahead)
    assert_matches(call, mma_decode(call, config, torch.float32), EXACT)


@given(
    calls,
    st.integers(1, 9),
    st.sampled_from((EVEN, SPLIT_LAST)),
    st.sampled_from(((1, 128), (2, 512), (4, 256))),
    st.booleans(),
)
@slow
def test_split_k(
    call: DecodeCall, splits: int, tiles: tuple[int, ...], combine: tuple[int, int], eager: bool
) -> None:
    """Any split count, more than there are valid blocks too -> the reference, whatever the combine's shape."""
    config = MmaConfig(16, 16, tiles, 4, 1)
    tile = CombineConfig(*combine, 1, "f32", eager=eager)
    assert_matches(call, split_k_decode(call, config, tile, splits, torch.float32), EXACT)


@given(calls)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_simt(call: DecodeCall) -> None:
    """The baseline with its merge in bf16 -> the reference, within its roundings."""
    result = simt_decode(call, block_t=32)
    assert_matches(call, result, ROUNDED if len(call.scopes) == 1 else 2 * ROUNDED)


@pytest.mark.parametrize("block_h", [16, 64])
def test_128_heads(block_h: int) -> None:
    """The larger model's heads, in several groups -> the reference for each."""
    call = random_call(9, 1, 128, (20, 30))
    config = MmaConfig(block_h, 32, SPLIT_LAST, 4, 1)
    assert_matches(call, mma_decode(call, config, torch.float32), EXACT)
    assert_matches(
        call, split_k_decode(call, config, CombineConfig(4, 512, 1, "f32"), 2, torch.float32), EXACT
    )


def test_wide_list_with_few_valid_tokens() -> None:
    """A list 8192 wide of which 50 entries count -> the loop ends with them; the padding is not walked."""
    torch.manual_seed(10)
    cache = pack_kv(torch.randn(60, 512), 2)
    indices = torch.full((1, 1, 8192), -1, dtype=int32)
    indices[..., :50] = torch.randint(0, 60, (50,), dtype=int32)
    indices[..., 50:] = 7  # valid slots behind the length: counted only by a kernel that ignores it
    call = make_call(
        torch.randn(1, 1, 16, 512).bfloat16(), cache, indices, topk_length=torch.tensor([50], dtype=int32)
    )
    config = MmaConfig(16, 32, EVEN, 4, 1)
    assert_matches(call, mma_decode(call, config, torch.float32), EXACT)
    assert_matches(
        call, split_k_decode(call, config, CombineConfig(1, 512, 1, "f32"), 5, torch.float32), EXACT
    )


def test_bf16_partials() -> None:
    """Partials rounded to bf16 -> the error of that rounding, no more."""
    call = random_call(3, 2, 16, (40, 60), ragged=False)
    config = MmaConfig(16, 32, EVEN, 4, 1)
    result = split_k_decode(call, config, CombineConfig(1, 512, 1, "bf16"), 4, torch.float32)
    assert_matches(call, result, ROUNDED)


@pytest.mark.parametrize("splits", [1, 2, 4, 64])
def test_every_split_count_agrees(splits: int) -> None:
    """1, 2, one split a block, and far more than blocks, through the public call -> one answer."""
    call = random_call(4, 2, 16, (33, 65))
    main, extra = call.scopes
    out, lse = sparse_mla_decode(
        call.q[:, None], main.cache, main.indices[:, None], topk_length=main.lengths, extra=extra.cache,
        extra_indices=extra.indices[:, None], extra_topk_length=extra.lengths, attn_sink=call.sink,
        variant="split_k", num_splits=splits,
    )  # fmt: skip
    assert_matches(call, (out[:, 0], lse[:, 0]), ROUNDED)


def test_lengths_shorter_than_a_splits_start() -> None:
    """Two valid tokens and eight splits -> seven of them write nothing, and poison there is not read."""
    call = random_call(5, 1, 16, (40, 80), ragged=False)
    short = [
        make_call(
            call.q[:, None], call.scopes[0].cache, call.scopes[0].indices[:, None], attn_sink=call.sink,
            topk_length=torch.tensor([n], dtype=torch.int32), extra=call.scopes[1].cache,
            extra_indices=call.scopes[1].indices[:, None], extra_topk_length=torch.tensor([m], dtype=torch.int32),
        )
        for n, m in ((2, 0), (0, 2), (0, 0), (0, 80), (40, 1))
    ]  # fmt: skip
    config = MmaConfig(16, 16, EVEN, 4, 1)
    original = torch.empty
    for one in short:
        try:
            # Poison: an unwritten partial output that the combine read would turn the result to NaN.
            torch.empty = lambda *a, **k: original(*a, **k).fill_(float("nan"))  # type: ignore[assignment]
            result = split_k_decode(one, config, CombineConfig(1, 512, 1, "f32"), 8, torch.float32)
        finally:
            torch.empty = original
        assert_matches(one, result, EXACT)


def test_bytes_that_decode_to_nan_do_not_leak() -> None:
    """Every slot but the listed ones filled with NaN bytes, invalid entries pointing there -> finite, right."""
    call = random_call(6, 1, 16, (20, 30), sink=False)
    for scope in call.scopes:
        kept = scope.indices[:, : int(scope.lengths[0])] if scope.lengths is not None else scope.indices
        used = set(kept[kept >= 0].tolist())
        for slot in set(range(scope.cache.num_slots)) - used:
            page, place = divmod(slot, scope.cache.page_size)
            scope.cache.records()[page, place] = 0xFF
            scope.cache.scales()[page, place] = 0xFF
    config = MmaConfig(16, 16, EVEN, 4, 1)
    assert_matches(call, mma_decode(call, config, torch.float32), EXACT)
    assert_matches(
        call, split_k_decode(call, config, CombineConfig(1, 512, 1, "f32"), 3, torch.float32), EXACT
    )
    assert_matches(call, simt_decode(call, block_t=32), 2 * ROUNDED)


@pytest.mark.parametrize("sink", [float("-inf"), float("inf"), 300.0])
@pytest.mark.parametrize("convention", ["flashmla", "sglang"])
def test_extreme_sinks(sink: float, convention: str) -> None:
    """Infinite and huge sinks over full and empty rows -> the reference's values, no NaN."""
    call = random_call(7, 2, 4, (20, 0), convention=convention)
    assert call.scopes[0].lengths is not None
    assert call.sink is not None
    call.scopes[0].lengths[0] = 0
    call.scopes[0].lengths[1] = 20
    call.sink.fill_(sink)
    assert_matches(call, mma_decode(call, MmaConfig(16, 16, EVEN, 4, 1), torch.float32), EXACT)


def arguments() -> dict[str, Any]:
    """A small valid call's arguments."""
    torch.manual_seed(8)
    return {
        "q": torch.randn(2, 1, 4, 512).bfloat16(),
        "cache": pack_kv(torch.randn(16, 512), 4),
        "indices": torch.randint(0, 16, (2, 1, 8), dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 512).bfloat16()}, r"^q: expected bfloat16 \[B, S, H, 512\]"),
        ({"q": torch.zeros(2, 1, 4, 512)}, "^q: expected bfloat16"),
        ({"q": None}, "^q: expected a tensor, got NoneType"),
        ({"cache": torch.zeros(3)}, "^cache: expected a PagedKV, got Tensor"),
        ({"indices": torch.zeros(2, 8, dtype=int32)}, r"^indices: expected int32 \[2, 1, topk >= 1\]"),
        ({"indices": torch.zeros(2, 1, 8, dtype=torch.int64)}, "^indices: expected int32"),
        ({"indices": torch.zeros(2, 1, 0, dtype=int32)}, "^indices: expected int32"),
        (
            {"indices": torch.full((2, 1, 8), 16, dtype=int32)},
            r"^indices: expected values below 16 \(4 pages of 4\)",
        ),
        ({"indices": torch.full((2, 1, 8), -2, dtype=int32)}, "^indices: expected values >= -1, got -2"),
        ({"topk_length": torch.zeros(3, dtype=int32)}, r"^topk_length: expected int32 \[2\]"),
        ({"topk_length": torch.tensor([9, 1], dtype=int32)}, "^topk_length: expected values up to 8, got 9"),
        ({"topk_length": torch.tensor([-1, 1], dtype=int32)}, "^topk_length: expected values >= 0"),
        ({"extra_indices": torch.zeros(2, 1, 8, dtype=int32)}, "^extra_indices: expected None without extra"),
        (
            {"extra_topk_length": torch.zeros(2, dtype=int32)},
            "^extra_topk_length: expected None without extra",
        ),
        ({"extra": pack_kv(torch.zeros(4, 512), 2)}, "^extra_indices: expected int32"),
        ({"attn_sink": torch.zeros(5)}, r"^attn_sink: expected float32 \[4\]"),
        ({"attn_sink": torch.zeros(4).double()}, "^attn_sink: expected float32"),
        ({"softmax_scale": 0.0}, "^softmax_scale: expected a finite number of at least 1.*, got 0.0"),
        ({"softmax_scale": float("nan")}, "^softmax_scale: expected a finite number"),
        ({"softmax_scale": None}, "^softmax_scale: expected a finite number.*, got None"),
        ({"softmax_scale": "0.1"}, "^softmax_scale: expected a finite number"),
        ({"softmax_scale": 1e-300}, "^softmax_scale: expected a finite number"),
        ({"softmax_scale": 1e300}, r"^softmax_scale: expected at most 1e\+38"),
        ({"check_indices": "yes"}, "^check_indices: expected True, False or None, got 'yes'"),
        ({"convention": "vllm"}, "^convention: expected one of flashmla, sglang, got 'vllm'"),
        (
            {"variant": "fast"},
            "^variant: expected one of auto, simt, mma, split_k, hopper, reference, got 'fast'",
        ),
        ({"num_splits": 0}, "^num_splits: expected a positive integer"),
        ({"num_splits": True}, "^num_splits: expected a positive integer"),
        (
            {"num_splits": 2, "variant": "mma"},
            "^num_splits: expected None, variant 'mma' does not split, got 2",
        ),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    """One wrong argument -> a ValueError that starts with its name and says what was expected."""
    with pytest.raises(ValueError, match=message):
        sparse_mla_decode(**(arguments() | change))


@pytest.mark.parametrize("variant", ["simt", "mma", "split_k"])
@pytest.mark.parametrize("where", ["q", "kv"])
def test_nan_stays_in_its_row(variant: str, where: str) -> None:
    """NaN in one head's query, or in a token that one request names -> NaN output and lse there, nothing else moves."""
    torch.manual_seed(5)
    given_arguments = arguments()
    given_arguments["q"] = torch.randn(2, 1, 4, 512).bfloat16()
    given_arguments["indices"] = torch.tensor([[[1, 2, 3, -1]], [[4, 5, 6, -1]]], dtype=int32)
    clean, clean_lse = sparse_mla_decode(**given_arguments, variant=variant)
    if where == "q":
        given_arguments["q"][0, 0, 2, 7] = float("nan")
        hit = torch.zeros(2, 1, 4, dtype=torch.bool)
        hit[0, 0, 2] = True
    else:
        given_arguments["cache"].records().view(torch.bfloat16)[0, 2, 230] = float(
            "nan"
        )  # rotary part of slot 2
        hit = torch.tensor([True, False])[:, None, None].expand(2, 1, 4)
    out, lse = sparse_mla_decode(**given_arguments, variant=variant)
    assert torch.equal(lse.isnan(), hit)
    assert torch.equal(out.isnan().any(-1), hit)
    assert torch.equal(out[~hit], clean[~hit])
    assert torch.equal(lse[~hit], clean_lse[~hit])


def test_more_splits_than_blocks_run_as_many_as_blocks() -> None:
    """num_splits = 10^9 -> the answer of one split a block, to the bit."""
    given_arguments = arguments()
    many = sparse_mla_decode(**given_arguments, variant="split_k", num_splits=10**9)
    blocks = sparse_mla_decode(**given_arguments, variant="split_k", num_splits=1)
    assert all(torch.equal(a, b) for a, b in zip(many, blocks, strict=True))


def test_unchecked_indices_skip_the_value_check() -> None:
    """check_indices=False -> values are not looked at (a graph capture could not)."""
    made = make_call(
        **(arguments() | {"indices": torch.full((2, 1, 8), 99, dtype=int32)}), check_indices=False
    )
    assert made.rows == 2


def test_environment_overrides_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA_DSV4_ATTENTION -> decides for auto only; an unknown value is an error that lists the choices."""
    assert resolve_variant("auto", "cuda") == "auto"
    monkeypatch.setenv(ENVIRONMENT, "simt")
    assert resolve_variant("auto", "cuda") == "simt"
    assert resolve_variant("mma", "cuda") == "mma"
    monkeypatch.setenv(ENVIRONMENT, "quick")
    with pytest.raises(
        ValueError, match="HTA_DSV4_ATTENTION: expected one of auto, simt, mma, split_k, hopper, reference"
    ):
        resolve_variant("auto", "cuda")
    assert resolve_variant("mma", "cuda") == "mma"


def test_without_a_gpu_only_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors and no interpreter -> auto is the reference, a kernel is an error naming the remedy."""
    monkeypatch.setattr("dsv4_kernels.decode.interpreting", lambda: False)
    assert resolve_variant("auto", "cpu") == "reference"
    with pytest.raises(ValueError, match="variant: 'mma' needs tensors on a CUDA device"):
        resolve_variant("mma", "cpu")


def test_public_names() -> None:
    """The package's own names -> the call works from them alone, draft tokens keep their shape."""
    given_arguments = arguments()
    assert isinstance(given_arguments["cache"], PagedKV)
    given_arguments |= {
        "q": torch.randn(2, 3, 4, 512).bfloat16(),
        "indices": torch.zeros(2, 3, 8, dtype=int32),
    }
    out, lse = sparse_mla_decode(**given_arguments, variant="reference")
    assert out.shape == (2, 3, 4, 512)
    assert out.dtype == torch.bfloat16
    assert lse.shape == (2, 3, 4)
