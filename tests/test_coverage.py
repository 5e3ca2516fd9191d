"""SM coverage: hand-made timelines, a nanosecond-by-nanosecond check, and the shipped traces."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis import coverage as c
from hta_dsv4.analysis.coverage import IDLE, Coverage
from hta_dsv4.analysis.window import window
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.gpu_frames import H200, copy, run_of, sized

SMALL = {**H200, "numSms": 8}


def owned(found: Coverage) -> dict[str, int]:
    """Empty SM-time by the first key."""
    return dict(zip(found.table[found.by[0]], found.table[c.EMPTY_SM_NS].astype(int), strict=True))


def test_one_after_the_other() -> None:
    """2 of 8 SMs for 10 ns, nothing for 5, all for 5 -> 60 + 40 SM-ns empty, half covered while busy... exactly."""
    found = run_of([sized("a", 0, 10, 2), sized("b", 15, 5, 99)], properties=SMALL).coverage("kernel")
    assert (found.wall_ns, found.busy_ns, found.capacity_sm_ns, found.covered_sm_ns) == (20, 15, 160, 60)
    assert owned(found) == {"a": 60, IDLE: 40, "b": 0}
    assert found.mean == 60 / 160
    assert found.mean_while_busy == 60 / 120
    assert found.packing_ceiling == 160 / 60
    assert found.bands == {
        "idle": 5,
        "copies only": 0,
        "up to 1/4": 10,
        "up to 1/2": 0,
        "below all": 0,
        "all": 5,
    }


def test_together_they_cover_more_and_share_what_is_empty() -> None:
    """3 SMs over [0, 10) and 2 over [4, 10) of 8 -> 5 covered together; the 3 empty ones belong to both alike."""
    rows = [sized("a", 0, 10, 3), sized("b", 4, 6, 2, **{col.STREAM: 9})]
    found = run_of(rows, properties=SMALL).coverage("kernel")
    assert found.covered_sm_ns == 3 * 4 + 5 * 6
    assert owned(found) == {"a": 5 * 4 + 9, "b": 9, IDLE: 0}


def test_together_they_cover_no_more_than_all() -> None:
    """Two kernels of 6 CTAs on 8 SMs at once -> 8 covered, not 12."""
    rows = [sized("a", 0, 10, 6), sized("b", 0, 10, 6, **{col.STREAM: 9})]
    assert run_of(rows, properties=SMALL).coverage("kernel").mean == 1.0


def test_what_does_not_divide_is_not_lost() -> None:
    """7 empty SM-ns among two kernels -> 4 for the one that reaches further, 3 for the other."""
    rows = [sized("a", 0, 1, 1), sized("b", 0, 2, 1, **{col.STREAM: 9})]
    found = run_of(rows, properties={**H200, "numSms": 9}).coverage("kernel")
    assert owned(found) == {"b": 4 + 8, "a": 3, IDLE: 0}


def test_copies_cover_no_sm() -> None:
    """A copy alone for 10 ns, then a kernel -> time of copies only, its SMs empty and the copy's own."""
    found = run_of([copy(0, 10), sized("a", 10, 10, 8)], properties=SMALL).coverage("bucket")
    assert found.bands["copies only"] == 10
    assert owned(found)["memory"] == 80
    assert found.mean == 0.5
    assert found.mean_while_busy == 0.5


def test_unknown_grid_keeps_the_upper_bound() -> None:
    """A kernel without a grid -> counts as covering every SM, and the note says for how long."""
    found = run_of([sized("a", 0, 2000, 1, **{col.GRID_Y: None})], properties=SMALL).coverage("kernel")
    assert (found.mean, found.unknown_ns) == (1.0, 2000)
    assert any("2.000 us of kernels, 100.0 % of the kernel time, have no grid" in n for n in found.notes)


def test_two_gpus_are_added_not_merged() -> None:
    """The same kernel on two GPUs at once -> two walls, two capacities, half of each covered."""
    rows = [sized("a", 0, 10, 4), sized("a", 0, 10, 4, **{col.DEVICE: 1})]
    found = run_of(rows, properties=SMALL, devices=(0, 1)).coverage("kernel")
    assert (found.wall_ns, found.capacity_sm_ns, found.covered_sm_ns, found.sms) == (20, 160, 80, (8, 8))


def test_a_gpu_that_only_copies_is_left_out() -> None:
    """Kernels on one GPU, copies on another -> the second has no part in it, and that is said."""
    found = run_of([sized("a", 0, 10, 8), copy(0, 50, **{col.DEVICE: 1})], properties=SMALL, devices=(0, 1))
    assert found.coverage("kernel").wall_ns == 10
    assert any("only copy" in n for n in found.coverage("kernel").notes)


@pytest.mark.parametrize(
    ("rows", "properties", "said"),
    [([copy(0, 5)], H200, "no kernel"), ([sized("a", 0, 5, 1)], None, "number of SMs")],
)
def test_nothing_to_cover_says_why(
    rows: list[dict[str, object]], properties: dict[str, object] | None, said: str
) -> None:
    """Only copies, or no deviceProperties -> one line, no figure."""
    with pytest.raises(HtaDsv4Error, match=said):
        run_of(rows, properties=properties).coverage()


timelines = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 12), st.integers(0, 3)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40)
@given(timelines)
def test_agrees_with_counting_every_nanosecond(rows: list[tuple[int, int, int, int]]) -> None:
    """Any timeline of kernels and copies (0 CTAs) -> as counted one nanosecond at a time; sums are exact."""
    acts = [
        sized(f"k{i}", s, d, ctas, **{col.STREAM: 7 + stream})
        if ctas
        else copy(s, d, **{col.STREAM: 7 + stream})
        for i, (s, d, ctas, stream) in enumerate(rows)
    ]
    acts.append(sized("last", 100, 1, 8))
    found = run_of(acts, properties=SMALL).coverage("kernel")
    covered = busy = 0
    bands = dict.fromkeys(c.BANDS, 0)
    first = min(s for s, _, _, _ in rows)
    for t in range(first, 101):
        now = [min(ctas, 8) for s, d, ctas, _ in rows if s <= t < s + d] + ([8] if t == 100 else [])
        n = min(sum(now), 8)
        covered, busy = covered + n, busy + bool(now)
        if not now:
            band = "idle"
        else:
            band = (
                "copies only" if n == 0 else "up to 1/4" if n <= 2 else "up to 1/2" if n <= 4 else "below all"
            )
            band = "all" if n == 8 else band
        bands[band] += 1
    assert (found.covered_sm_ns, found.busy_ns, found.bands) == (covered, busy, bands)
    assert sum(found.bands.values()) == found.wall_ns == 101 - first
    assert 0 <= found.mean <= found.mean_while_busy <= 1
    assert int(found.table[c.EMPTY_SM_NS].sum()) == found.empty_sm_ns
    assert owned(found)[IDLE] == 8 * bands["idle"]
    assert (found.table[c.EMPTY_SM_NS] >= 0).all()
    assert found.table[c.EMPTY_SHARE].sum() == pytest.approx(1 if found.empty_sm_ns else 0)


def test_many_kernels_are_fast() -> None:
    """60,000 kernels on three streams -> swept in below a second (0.1 s measured)."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 10**9, 60_000)
    run = run_of(
        [sized("k", int(s), 20_000, 1 + i % 300, **{col.STREAM: i % 3}) for i, s in enumerate(starts)]
    )
    part = window(run.classified[0], run.steps[0], 0)
    began = time.perf_counter()
    found = c.coverage("many", part, run.traces[0].meta, "bucket")
    assert time.perf_counter() - began < 1.0
    assert 0 < found.mean < 1


def test_shipped_cuda_graph() -> None:
    """The graph trace -> 8 % of the SM-time is empty, idle or not; 4.9 % of the wall on at most 33 of 132 SMs."""
    run = hta_dsv4.load(hta_dsv4.traces()["cuda_graph"])
    found = run.coverage("bucket")
    extent = run.shares().median_rank.extent
    assert (found.wall_ns, found.busy_ns) == (extent.wall_ns, extent.busy_ns)
    assert found.sms == (132,)
    assert found.mean == pytest.approx(0.915, abs=0.001)
    assert found.mean_while_busy == pytest.approx(0.932, abs=0.001)
    assert found.packing_ceiling == pytest.approx(1.092, abs=0.001)
    assert found.bands["up to 1/4"] == pytest.approx(0.0488 * found.wall_ns, rel=0.01)
    assert found.table["bucket"].tolist()[:2] == ["dense_gemm", IDLE]


def test_shipped_split_k_at_one_request() -> None:
    """The split-K trace at C = 1 -> 2.5 % of the SM-time covered, 46.5 % while busy, half of that on at most 33 SMs."""
    found = hta_dsv4.load(hta_dsv4.traces()["split_k_c1"]).coverage()
    assert found.mean == pytest.approx(0.0246, abs=0.0001)
    assert found.mean_while_busy == pytest.approx(0.465, abs=0.001)
    assert found.bands["up to 1/4"] > found.busy_ns / 2
    busy = found.table[found.table["bucket"] != IDLE].iloc[0]
    assert (busy["bucket"], busy["origin"]) == ("glue", "mhc_pre")
    assert busy[c.MEAN_SMS] == pytest.approx(2.16, abs=0.01)


def test_command_line_forms() -> None:
    """Two traces side by side as text; JSON adds up and says that it is an upper bound; CSV has a line per owner."""
    text = cli("coverage", "h200_probe", "again=h200_probe")
    assert text.returncode == 0, text.stderr
    assert "again" in text.stdout
    assert "upper bound" in text.stdout
    document = json.loads(cli("coverage", "h200_probe", "--by", "bucket", "--json").stdout)
    (variant,) = document["variants"]
    assert document["bound"] == "upper"
    assert sum(r["empty_sm_ns"] for r in variant["rows"]) == variant["empty_sm_ns"]
    assert sum(variant["bands_ns"].values()) == variant["wall_ns"]
    assert variant["capacity_sm_ns"] - variant["covered_sm_ns"] == variant["empty_sm_ns"]
    lines = cli("coverage", "h200_probe", "--by", "bucket", "--csv").stdout.splitlines()
    assert len(lines) == 1 + len(variant["rows"])
    assert cli("coverage", "h200_probe", "--md").returncode == 0
