"""Split counts and configurations as functions of static shapes."""

from __future__ import annotations

import pytest
from dsv4_kernels._device import Device
from dsv4_kernels.select import (
    LARGEST_SPLITS,
    MAX_SPLITS,
    SMALL,
    WGMMA,
    combine_config,
    count_blocks,
    loop_config,
    num_splits,
    single_config,
    split_configs,
)
from hypothesis import given
from hypothesis import strategies as st

H200 = Device(90, 132, 232_448)
RTX_PRO_6000 = Device(120, 188, 101_376)
B200 = Device(100, 148, 232_448)
WIDTHS = (128, 512)


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 10), (8, 10), (16, 8), (32, 4), (64, 2), (128, 1), (512, 1)]
)
def test_one_wave_on_an_h200(batch: int, expected: int) -> None:
    """A batch on 132 SMs -> as many splits as fit beside each other, at most one block each."""
    assert num_splits(batch, 64, WIDTHS, 132, block_h=64, block_t=64) == expected


@pytest.mark.parametrize(("batch", "expected"), [(1, 16), (16, 6), (64, 2), (128, 1)])
def test_campaign_rule(batch: int, expected: int) -> None:
    """The campaign's batches on its 188 SMs with 32-head groups -> the splits it reports."""
    assert num_splits(batch, 64, WIDTHS, 188, block_h=32, block_t=32, policy="campaign") == expected


@given(
    st.integers(1, 4096), st.sampled_from((8, 16, 32, 64, 128)),
    st.lists(st.integers(1, 8192), min_size=1, max_size=2).map(tuple),
    st.integers(1, 200), st.sampled_from((16, 32, 64)), st.sampled_from((16, 32, 64)),
    st.sampled_from(("one_wave", "campaign")),
)  # fmt: skip
def test_bounds(rows, heads, widths, num_sms, block_h, block_t, policy) -> None:  # type: ignore[no-untyped-def]
    """Any shapes -> at least 1 split, no more than blocks, and for one_wave no second wave."""
    splits = num_splits(rows, heads, widths, num_sms, block_h=block_h, block_t=block_t, policy=policy)
    assert 1 <= splits <= max(1, count_blocks(widths, block_t))
    assert splits <= MAX_SPLITS
    if policy == "one_wave" and splits > 1:
        assert splits * rows * -(-heads // block_h) <= num_sms


def test_splits_on_request_have_an_end() -> None:
    """10^9 splits of a list of 262,144 -> LARGEST_SPLITS, of a short list its blocks; fewer are taken as they are."""
    assert split_configs(H200, 1, 64, (128, 262_144), 10**9)[1] == LARGEST_SPLITS
    config, splits = split_configs(H200, 64, 64, WIDTHS, 10**9)
    assert splits == count_blocks(WIDTHS, config.block_t)
    assert split_configs(H200, 64, 64, WIDTHS, 3)[1] == 3


def test_bad_arguments() -> None:
    """An unknown policy or a size of 0 -> a ValueError naming it."""
    with pytest.raises(ValueError, match="policy: expected one_wave or campaign"):
        num_splits(1, 64, WIDTHS, 132, block_h=64, block_t=64, policy="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_sms: expected a positive integer, got 0"):
        num_splits(1, 64, WIDTHS, 0, block_h=64, block_t=64)


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, WGMMA.single[0]), (4, WGMMA.single[1]), (8, WGMMA.single[2]), (16, None)]
)
def test_single_block_configurations(batch: int, expected: object) -> None:
    """A batch on an H200 -> the first configuration whose one-block programs all fit at once."""
    assert single_config(H200, batch, 64, WIDTHS) == expected


def test_families() -> None:
    """sm_90 with its shared memory -> wgmma tiles; sm_100, sm_120 or a smaller limit -> the small ones."""
    assert loop_config(H200, 64) == WGMMA.loop
    for device in (RTX_PRO_6000, B200, Device(90, 132, 101_376)):
        assert loop_config(device, 64) == SMALL.loop
    assert loop_config(RTX_PRO_6000, 8).block_h == 16


@given(st.integers(1, 4096), st.sampled_from((1, 8, 64, 128)))
def test_combine_covers_the_columns(rows: int, heads: int) -> None:
    """Any size -> a combine tile whose columns divide 512."""
    assert 512 % combine_config(rows, heads).columns == 0
