"""The indexer: scores and selection against plain arithmetic, at every length, in every form."""

from __future__ import annotations

import aot
import decode_requests
import pytest
import torch
from dsv4_kernels.indexer import (
    PagedIndexK,
    indexer_logits,
    indexer_topk,
    pack_index_k,
    unpack_index_k,
)
from dsv4_kernels.paged_logits import logits_splits
from dsv4_kernels.tiled_topk import topk_triton
from hypothesis import given, settings
from hypothesis import strategies as st


def generate_case(
    lengths: list[int], max_pages: int, seed: int
) -> tuple[torch.Tensor, PagedIndexK, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, cache, weights, scattered page table and lengths; unused cache bytes decode as NaN keys."""
    torch.manual_seed(seed)
    batch = len(lengths)
    pages = batch * max_pages + 2
    cache = pack_index_k(torch.randn(pages * 64, 128) * 3)
    table = torch.randperm(pages)[: batch * max_pages].view(batch, max_pages).to(torch.int32)
    for row, length in enumerate(lengths):
        for page in range(max_pages):
            place = max(0, min(64, length - page * 64))
            cache.data[table[row, page], place * 128 : 8192] = 0xFF
    q = torch.randn(batch, 64, 128).to(torch.float8_e4m3fn)
    weights = torch.randn(batch, 64)
    return q, cache, weights, table, torch.tensor(lengths, dtype=torch.int32)


def plain_logits(
    q: torch.Tensor, cache: PagedIndexK, weights: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """The formula in float64."""
    keys = unpack_index_k(cache).double().view(-1, 64, 128)[table.long()].flatten(1, 2)
    scores = torch.relu(torch.einsum("bsd,bhd->bsh", keys, q.double()))
    return torch.einsum("bsh,bh->bs", scores, weights.double())


@pytest.mark.parametrize(
    ("variant", "tolerance"), [("torch_fp32", 1e-5), ("torch_bf16", 1e-2), ("triton", 1e-5)]
)
def test_logits_match_formula(variant: str, tolerance: float) -> None:
    """Lengths 0, inside a page, at a page's end and full -> every real score is the formula's."""
    lengths = [0, 1, 63, 64, 65, 200, 256]
    q, cache, weights, table, lens = generate_case(lengths, 4, 0)
    got = indexer_logits(q, cache, weights, table, lens, variant=variant)
    want = plain_logits(q, cache, weights, table)
    assert got.shape == (7, 256)
    for row, length in enumerate(lengths):
        error = (got[row, :length] - want[row, :length]).norm()
        assert error <= tolerance * want[row, :length].norm()
        if variant != "triton":
            assert torch.all(got[row, length:] == float("-inf"))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(0, 192), min_size=1, max_size=5), st.integers(0, 2**16), st.booleans())
def test_triton_logits_equal_torch(lengths: list[int], seed: int, bf16: bool) -> None:
    """Any lengths and either query dtype -> the paged kernel's scores equal the fallback's."""
    q, cache, weights, table, lens = generate_case(lengths, 3, seed)
    if bf16:
        q = q.to(torch.bfloat16)
    want = indexer_logits(q, cache, weights, table, lens, variant="torch_fp32")
    got = indexer_logits(q, cache, weights, table, lens, variant="triton")
    real = torch.arange(192)[None, :] < lens[:, None]
    torch.testing.assert_close(got[real], want[real], rtol=1e-4, atol=1e-3)


def test_triton_logits_write_nothing_past_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output buffer of a known value -> that value stands at and past every length."""
    lengths = [0, 70, 128]
    q, cache, weights, table, lens = generate_case(lengths, 3, 1)
    monkeypatch.setattr(torch, "empty", lambda *size, dtype, device: torch.full(size, 7.5, dtype=dtype))
    got = indexer_logits(q, cache, weights, table, lens, variant="triton")
    for row, length in enumerate(lengths):
        assert torch.all(got[row, length:] == 7.5)
        assert torch.all(got[row, :length] != 7.5)


def test_chunked_rows_equal_whole() -> None:
    """Rows in chunks that do not divide the batch -> the same scores."""
    case = generate_case([10, 100, 150, 0, 192], 3, 2)
    whole = indexer_logits(*case, variant="torch_fp32")
    torch.testing.assert_close(indexer_logits(*case, variant="torch_fp32", chunk=2), whole)


@pytest.mark.parametrize("variant", ["torch", "triton"])
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 320), min_size=1, max_size=4),
    topk=st.sampled_from([1, 7, 32, 100, 400]),
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(["normal", "ties", "negative", "constant", "huge"]),
)
def test_topk_is_exact(variant: str, lengths: list[int], topk: int, seed: int, kind: str) -> None:
    """Any lengths and scores, ties among them -> the multiset of kept scores is torch.topk's, slots distinct."""
    torch.manual_seed(seed)
    batch = len(lengths)
    logits = torch.randn(batch, 320)
    if kind == "ties":
        logits = logits.round()
    elif kind == "negative":
        logits = -logits.abs() - 1
    elif kind == "constant":
        logits = torch.full_like(logits, -0.25)
    elif kind == "huge":
        logits = logits * 1e38
    table = torch.randperm(5 * batch + 3)[: 5 * batch].view(batch, 5).to(torch.int32)
    lens = torch.tensor(lengths, dtype=torch.int32)
    poisoned = logits.masked_fill(torch.arange(320)[None, :] >= lens[:, None], float("nan"))
    if variant == "triton":
        # Small tiles: several per row, some past the end, so that both launches and all four paths are taken.
        slots = topk_triton(poisoned, lens, table, topk, tile=128, short=32)
    else:
        slots = indexer_topk(poisoned, lens, table, topk, variant="torch")
    column_of = {int(table[b, s >> 6]) << 6 | s & 63: (b, s) for b in range(batch) for s in range(320)}
    for row, length in enumerate(lengths):
        kept = [column_of[slot] for slot in slots[row].tolist() if slot >= 0]
        columns = [column for _, column in kept]
        assert all(owner == row for owner, _ in kept)
        assert len(set(columns)) == len(columns) == min(topk, length)
        assert slots[row, len(columns) :].eq(-1).all()
        if length <= topk:
            assert columns == list(range(length))
        else:
            want = torch.topk(logits[row, :length], topk).values
            torch.testing.assert_close(logits[row, columns].sort(descending=True).values, want)


def test_topk_at_full_tile_size() -> None:
    """Default tiles and a row of several, one of one tile and one of a short row -> torch.topk's scores."""
    torch.manual_seed(3)
    width, topk = 640 * 64, 512
    lengths = [width - 5, 9000, 3000, 16385]
    logits = torch.randn(4, width)
    table = torch.arange(4 * 640, dtype=torch.int32).view(4, 640)
    slots = indexer_topk(logits, torch.tensor(lengths, dtype=torch.int32), table, topk, variant="triton")
    for row, length in enumerate(lengths):
        columns = slots[row].long() - row * width
        want = torch.topk(logits[row, :length], topk).values
        torch.testing.assert_close(logits[row, columns].sort(descending=True).values, want, rtol=0, atol=0)


def test_pack_layout() -> None:
    """70 packed keys -> two pages: codes in the first 8,192 bytes, float32 scales after, zeros where nothing is."""
    torch.manual_seed(4)
    keys = torch.randn(70, 128)
    cache = pack_index_k(keys)
    assert cache.data.shape == (2, 8448)
    scale = cache.data[1, 8192 + 4 * 5 : 8192 + 4 * 6].clone().view(torch.float32)
    codes = cache.data[1, 5 * 128 : 6 * 128].view(torch.float8_e4m3fn).float()
    assert scale.item() == pytest.approx(keys[69].abs().max().item() / 448)
    torch.testing.assert_close(codes * scale, keys[69], rtol=0.0625, atol=0.02)
    assert torch.all(unpack_index_k(cache)[70:] == 0)


def test_splits_follow_static_shapes() -> None:
    """Batch and page table width -> a fixed number of programs: the device's fill, never more than blocks of 128."""
    assert logits_splits(1, 4096, 132) == 1056
    assert logits_splits(32, 4096, 132) == 33
    assert logits_splits(1, 8, 132) == 4
    assert logits_splits(10_000, 8, 132) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"q": torch.zeros(2, 64, 128)}, "q: expected a contiguous float8_e4m3fn or bfloat16"),
        ({"weights": torch.zeros(2, 32)}, r"weights: .*\[2, 64\]"),
        ({"page_table": torch.zeros(2, 3, dtype=torch.int64)}, "page_table: .*int32"),
        ({"lengths": torch.zeros(1, dtype=torch.int32)}, r"lengths: .*\[2\]"),
        ({"variant": "cuda"}, "variant: expected one of auto, torch_fp32"),
        ({"chunk": 0}, "chunk: expected a positive"),
        ({"chunk": 1.5}, "chunk: expected a positive"),
        ({"cache": torch.zeros(6, 8448, dtype=torch.uint8)}, "cache: expected a PagedIndexK, got Tensor"),
        (
            {"page_table": torch.full((2, 3), 99, dtype=torch.int32)},
            "page_table: expected values from -1 to .*, got 99",
        ),
        (
            {"page_table": torch.full((2, 3), -1, dtype=torch.int32)},
            "page_table below lengths: .*from 0 to .*, got -1",
        ),
    ],
)
def test_bad_logits_argument_is_named(change: dict[str, object], named: str) -> None:
    """One wrong argument -> a ValueError that names it and says what was expected."""
    q, cache, weights, table, lens = generate_case([5, 6], 3, 5)
    arguments: dict[str, object] = {
        "q": q,
        "cache": cache,
        "weights": weights,
        "page_table": table,
        "lengths": lens,
        **change,
    }
    with pytest.raises(ValueError, match=named):
        indexer_logits(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["torch_fp32", "torch_bf16", "triton"])
def test_tail_of_the_page_table_may_be_empty(variant: str) -> None:
    """-1 in the page table past a request's length -> the same scores as with pages there."""
    q, cache, weights, table, lens = generate_case([64, 5, 0], 3, 6)
    want = indexer_logits(q, cache, weights, table, lens, variant=variant)
    table[0, 1:], table[1, 1:], table[2] = -1, -1, -1
    got = indexer_logits(q, cache, weights, table, lens, variant=variant)
    for row, length in enumerate(lens.tolist()):
        assert torch.equal(got[row, :length], want[row, :length])


@pytest.mark.parametrize("variant", ["torch_fp32", "triton"])
def test_lengths_outside_the_table_are_held_to_it(variant: str) -> None:
    """A length of -5, and one of 1,000 in a table of 192 -> none, and all of the 192."""
    q, cache, weights, table, _ = generate_case([192, 192], 3, 7)
    outside, held = (torch.tensor(x, dtype=torch.int32) for x in ([-5, 1000], [0, 192]))
    got = indexer_logits(q, cache, weights, table, outside, variant=variant)
    want = indexer_logits(q, cache, weights, table, held, variant=variant)
    assert torch.equal(got[1], want[1])
    form = "triton" if variant == "triton" else "torch"
    slots = indexer_topk(got, outside, table, 300, variant=form)
    assert torch.equal(
        slots.sort(1).values, indexer_topk(want, held, table, 300, variant=form).sort(1).values
    )
    assert (slots >= 0).sum(1).tolist() == [0, 192]


def test_bad_cache_and_topk_are_named() -> None:
    """A page of another size, a strided cache, topk 0, too many survivors -> errors that say so."""
    with pytest.raises(ValueError, match="page_size: expected 64"):
        PagedIndexK(torch.zeros(2, 8448, dtype=torch.uint8), 128)
    with pytest.raises(ValueError, match=r"data: .*contiguous"):
        PagedIndexK(torch.zeros(2, 2 * 8448, dtype=torch.uint8)[:, :8448])
    with pytest.raises(ValueError, match="data: expected at least one page"):
        PagedIndexK(torch.zeros(0, 8448, dtype=torch.uint8))
    with pytest.raises(ValueError, match="data: expected an address that is a multiple of 16"):
        PagedIndexK(torch.zeros(8449, dtype=torch.uint8)[1:].view(1, 8448))
    for value in (float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="k: expected finite values"):
            pack_index_k(torch.full((2, 128), value, dtype=torch.float64))
    table = torch.zeros(1, 4096, dtype=torch.int32)
    logits, lens = torch.zeros(1, 4096 * 64), torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="topk: expected a positive"):
        indexer_topk(logits, lens, table, 0)
    for wrong in (2.0, True, "512"):
        with pytest.raises(ValueError, match="topk: expected a positive"):
            indexer_topk(logits, lens, table, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="topk: expected at most 32768 for 64 columns"):
        indexer_topk(logits[:, :64].contiguous(), lens, table[:, :1].contiguous(), 32769, variant="triton")
    with pytest.raises(ValueError, match="topk: expected at most 2048 for 262144 columns"):
        indexer_topk(logits, lens, table, 4096, variant="triton")


def test_kernels_compile_without_spills() -> None:
    """sm_90, sm_100 and sm_120 -> no spills, shared memory legal, tensor cores in the logits and nowhere else."""
    aot.assert_clean(decode_requests.indexer(), "logits")
