"""Findings on small launches in a row, on made launches worked out by hand."""

from __future__ import annotations

import pytest

from hta_dsv4.analysis.findings import find
from hta_dsv4.analysis.findings.small_launches import small_launches
from hta_dsv4.trace import activities as col
from tests.findings_made import FULL, copy_of, saved, subject_of

LAUNCH = 660.0  # ns on an H200, of a kernel that does nothing


def row(at: int, ns: int = 2_000, bucket: str = "norm_act_quant", **more):
    return ("k", at * 5_000, ns, {col.BUCKET: bucket, **more})


def big(at: int):
    return row(at, 4_000, "dense_gemm")


def test_all_but_one_of_a_run_can_go():
    """Runs of three and two between products -> three launches fewer at most, 660 ns each; likely half of it."""
    rows = [row(0), row(1, bucket="mhc"), row(2), big(3), row(4), row(5), big(6)]
    (found,) = small_launches(subject_of(rows))
    assert saved(found) == pytest.approx((0, 1.5 * LAUNCH, 3 * LAUNCH))
    values = {e.what: e.value for e in found.evidence}
    assert values["launches under 3 us per step"] == 5
    assert values["runs of one or more in a row on a stream, per step"] == 2
    assert values["launches fewer, one left of each run, at most"] == 3
    assert found.title.startswith(
        "launches under 3 us: 5 a step, 10.0 us (55.6 % of the GPU time; norm_act_quant 8.0 us, mhc 2.0 us); "
    )
    assert found.title.endswith("at most 3 fewer")
    assert found.confidence == 0.2  # nobody knows their bytes
    assert "record_shapes" in found.needs


def test_single_ones_have_no_neighbour():
    """A small launch between any two products -> nothing."""
    assert not small_launches(subject_of([row(0), big(1), row(2), big(3)]))


def test_a_run_ends_with_its_stream_and_its_step():
    """Two streams, two steps, a small launch of each in turn -> no two follow one another."""
    streams = [row(i, **{col.STREAM: 7 + i % 2}) for i in range(2)]
    assert not small_launches(subject_of([*streams, big(2)]))
    assert not small_launches(subject_of([row(0), row(1), big(2)], step=[0, 1, 1]))
    assert small_launches(subject_of([row(0), row(1), big(2)]))


def test_short_for_its_bytes_is_not_small():
    """Copies of 8 and of 0.08 MB in 2.9 us -> the first are as long as their bytes need, the others counted."""
    floats = FULL // 10  # 2 us of bytes
    full = [("copy", i * 5_000, 2_900, copy_of(floats)) for i in range(3)]
    assert not small_launches(subject_of([*full, big(4)]))
    (found,) = small_launches(
        subject_of([*(("copy", i * 5_000, 2_900, copy_of(floats // 100)) for i in range(3)), big(4)])
    )
    assert "need 0.0600 us of it" in found.title
    assert (found.confidence, found.needs) == (0.3, "")


def test_chains_of_glue_are_not_counted_again():
    """Two chains of five that are to be fused, and two norms behind one -> the norms alone; a chain ends their run."""
    glue = {"bucket": "glue", col.ORIGIN: "mhc_pre"}
    rows = [
        *(row(i, **glue) for i in range(5)),
        row(5),
        row(6),
        big(7),
        *(row(8 + i, **glue) for i in range(5)),
        row(13),
    ]
    s = subject_of([*rows, row(14)])
    (found,) = small_launches(s)
    values = {e.what: e.value for e in found.evidence}
    assert values["launches under 3 us per step"] == 4
    assert values["launches fewer, one left of each run, at most"] == 2
    done = find(s)
    chain = next(r.finding for r in done.ranked if r.finding.rule == "glue_chains")
    assert not set(chain.claim.rows) & set(found.claim.rows)


def test_collectives_are_no_neighbours():
    """A small collective between two norms -> no run, nothing."""
    assert not small_launches(subject_of([row(0), row(1, bucket="communication"), row(2), big(3)]))


def test_a_launch_shorter_than_an_empty_one_saves_no_more_than_it_takes():
    """Two launches, the second of 300 ns in the trace -> at most 300 ns."""
    (found,) = small_launches(subject_of([row(0), row(1, 300), big(2)]))
    assert saved(found)[2] == pytest.approx(300)


def test_little_time_is_not_spoken_of():
    """0.4 % of the step -> nothing; 7 %, of which under 1 % is likely saved -> a note, no finding."""
    assert not small_launches(subject_of([row(0), row(1), ("gemm", 50_000, 1_000_000, {})]))
    many = [row(0, 2_900), row(1, 2_900)]
    done = find(subject_of([*many, ("gemm", 50_000, 70_000, {})]))
    assert not any(r.finding.rule == "small_launches" for r in done.ranked)
    assert done.notes[0].startswith("launches under 3 us: 2 a step, 5.8 us (7.7 % of the GPU time")
    assert done.notes[0].endswith("at most 1 fewer, 0.660 us a step")
