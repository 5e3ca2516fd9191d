"""The FP8 paged layout: exact bytes, exact round trips, and errors that name the argument."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from dsv4_kernels.layout import MAX_AMAX, PagedKV, gather_kv, pack_kv, page_bytes, scale_codes, unpack_kv
from hypothesis import given, settings
from hypothesis import strategies as st

PAGE_SIZES = (2, 64, 128, 256)


@pytest.mark.parametrize(
    ("page_size", "expected"),
    [(256, 149_760), (128, 74_880), (64, 37_440), (2, 1_728), (1, 1_152), (3, 2_304)],
)
def test_page_bytes(page_size: int, expected: int) -> None:
    """A page size -> its records and scales, rounded up to a multiple of 576."""
    assert page_bytes(page_size) == expected


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_bytes_where_the_layout_puts_them(page_size: int) -> None:
    """A known token in a known slot -> its e4m3, rope and scale bytes at the documented offsets."""
    token = torch.zeros(512)
    token[0] = 448.0  # scale 1
    token[64] = -1.0  # scale 2^ceil(log2(1/448)) = 2^-8
    token[448] = 1.5
    slot = page_size + 1
    kv = torch.zeros(page_size + 2, 512)
    kv[slot] = token
    page = pack_kv(kv, page_size).data[1].tolist()
    record = page[576 : 2 * 576]
    scales = page[page_size * 576 + 8 :][:8]
    assert record[0] == 0x7E  # e4m3 448
    assert record[64] == 0xF8  # e4m3 -256: -1 / 2^-8
    assert record[448:450] == [0xC0, 0x3F]  # bf16 1.5, little endian
    floor = 127 + math.ceil(math.log2(1e-4 / 448))
    assert scales == [127, 119, floor, floor, floor, floor, floor, 0]


@given(st.floats(min_value=2**-20, max_value=2**100, width=32))
@settings(max_examples=200, deadline=None)
def test_scale_rule_is_exact(amax: float) -> None:
    """Any largest value -> the smallest power of two with amax <= 448 * scale, never below 1e-4's."""
    group = torch.zeros(448, dtype=torch.float64)
    group[0] = amax
    code = int(scale_codes(group)[0])
    scale = 2.0 ** (code - 127)
    bounded = max(amax, 1e-4)
    assert bounded <= 448 * scale
    assert bounded > 448 * scale / 2


def test_scale_at_an_exact_power_of_two() -> None:
    """Amax of 448 * 2^k and the next float32 above -> codes k and k + 1."""
    exact = torch.zeros(2, 448)
    exact[0, 0] = 448.0 * 2**5
    exact[1, 0] = torch.nextafter(exact[0, 0], torch.tensor(float("inf")))
    assert scale_codes(exact)[:, 0].tolist() == [132, 133]


@given(st.integers(0, 40), st.sampled_from((1, 2, 3, 64)), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_repacking_changes_nothing(tokens: int, page_size: int, seed: int) -> None:
    """Unpacked values packed again -> the same values: everything cached is exactly representable."""
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(tokens, 512, generator=generator) * torch.logspace(-6, 4, 512)
    cache = pack_kv(kv, page_size)
    first = unpack_kv(cache, tokens)
    assert torch.equal(unpack_kv(pack_kv(first, page_size), tokens), first)
    if tokens:
        error = (first - kv).abs()
        groups = kv[:, :448].unflatten(1, (7, 64)).abs().amax(-1).clamp_min(1e-4)
        # e4m3 rounds to at most 1/16 of a value, or half a subnormal step of its group's scale.
        limit = torch.maximum(kv[:, :448].abs() / 16, groups.repeat_interleave(64, 1) / 448 * 2 * 2**-10)
        assert bool((error[:, :448] <= limit).all())


def test_pages_apart_are_read_in_place() -> None:
    """Pages inside wider rows of a larger allocation -> the same tokens, without a copy."""
    cache = pack_kv(torch.randn(20, 512), 4)
    wide = torch.full((cache.num_pages, cache.data.shape[1] + 576), 0xFF, dtype=torch.uint8)
    wide[:, : cache.data.shape[1]] = cache.data
    apart = PagedKV(wide[:, : cache.data.shape[1]], 4)
    slots = torch.randint(0, 20, (3, 7))
    assert torch.equal(gather_kv(apart, slots), gather_kv(cache, slots))
    assert apart.data.data_ptr() == wide.data_ptr()


@pytest.mark.parametrize(
    ("data", "page_size", "message"),
    [
        (torch.zeros(2, 37_440), 64, "dtype uint8"),
        (torch.zeros(2, 37_440, dtype=torch.uint8), 128, r"\[pages, 74880\] for page_size 128"),
        (torch.zeros(37_440, dtype=torch.uint8), 64, r"shape \[pages, 37440\]"),
        (torch.zeros(0, 37_440, dtype=torch.uint8), 64, "at least one page"),
        (torch.zeros(37_440, 2, dtype=torch.uint8).T, 64, "contiguous"),
        (torch.zeros(2, 37_441, dtype=torch.uint8)[:, :37_440], 64, "multiples of 16 bytes"),
        (torch.zeros(2, 37_440, dtype=torch.uint8), 0, "page_size: expected a positive integer"),
        (torch.zeros(2, 37_440, dtype=torch.uint8), 2.0, "page_size: expected a positive integer"),
        (torch.zeros(2, 37_440, dtype=torch.uint8), 1 << 21, "page_size: expected at most 1048576"),
        (None, 64, r"PagedKV\.data: expected a uint8 tensor, got NoneType"),
    ],
)
def test_bad_pools(data: Any, page_size: int, message: str) -> None:
    """A pool that is not laid out as described -> a ValueError that says what was expected."""
    with pytest.raises(ValueError, match=message):
        PagedKV(data, page_size)


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        (torch.zeros(3, 511), r"kv: expected float \[tokens, 512\]"),
        (torch.zeros(3, 512, dtype=torch.int32), r"kv: expected float \[tokens, 512\]"),
        (torch.full((1, 512), float("nan")), "kv: expected finite values"),
        (torch.full((1, 512), float("inf")), "kv: expected finite values"),
        (torch.full((1, 512), 3.3e38), "kv: expected finite values of at most 3.19e"),
        ([[0.0] * 512], r"kv: expected a float tensor \[tokens, 512\], got list"),
    ],
)
def test_bad_tokens(kv: Any, message: str) -> None:
    """Tokens that cannot be packed -> a ValueError naming kv."""
    with pytest.raises(ValueError, match=message):
        pack_kv(kv, 64)


def test_largest_value_comes_back() -> None:
    """The largest magnitude that is taken -> finite when read, within e4m3's 1/16 and bf16's 1/256."""
    kv = torch.full((1, 512), MAX_AMAX)
    kv[0, ::2] *= -1
    read = unpack_kv(pack_kv(kv, 1))
    assert torch.equal(read.sign(), kv.sign())
    assert float((read / kv - 1).abs().max()) <= 1 / 16
