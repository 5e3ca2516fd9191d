"""Findings on cost that follows the static maximum, on made launches worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hta_dsv4.analysis.findings.static_maximum import static_maximum
from hta_dsv4.analysis.scaling import Point, scaling
from hta_dsv4.trace import activities as col
from tests.findings_made import (
    BMM,
    FLOATS,
    INDEXER,
    SMALL,
    W,
    saved,
    subject_of,
)


def test_padding_of_the_index_is_what_could_be_saved():
    """A product over 262,144 columns where 1,024 are real -> all but a 256th of it and a small launch."""
    (found,) = static_maximum(subject_of([("bmm", 0, 2_560_000, BMM), SMALL], w=W))
    assert saved(found) == (2_560_000 - 22_000, 2_560_000 - 11_000, 2_560_000 - 10_000)
    assert found.confidence == 0.95
    assert "1,048,576 tokens, not the 4,096 of a request: indexer 2.6 ms" in found.title
    values = {e.what: e.value for e in found.evidence}
    assert values["real entries of a row"] == 1024
    assert values["of what they compute is padding"] == pytest.approx(100 * 255 / 256)


@pytest.mark.parametrize(
    ("shapes", "more", "fires"),
    [
        ("[[2,4096,8192],[2,4096,8192],[]]", {}, True),  # pages of 64 keys of 128 bytes
        ("[[2,4096],[4096,512],[]]", {}, False),  # the hidden size is 4,096 too
        ("[[681,8448],[]]", {col.ROLE: "index_gather", col.GRID_X: 8192}, True),  # 2 x 4,096 pages gathered
        ("[[681,8448],[]]", {col.ROLE: "index_gather", col.GRID_X: 64}, False),
        ("[[2,262144],[2,262144],[]]", {col.ORIGIN: "moe"}, False),  # another part's business
    ],
)
def test_what_is_as_wide_as_the_static_index(shapes, more, fires):
    """Rows of pages, gathers and look-alikes -> only what the indexer does over the whole width."""
    row = {col.OP: "aten::copy_", col.OP_SHAPES: shapes, col.OP_DTYPES: FLOATS, **INDEXER, **more}
    assert bool(static_maximum(subject_of([("k", 0, 100_000, row), SMALL], w=W))) is fires


def test_a_maximum_that_requests_use_is_no_finding():
    """Requests of 600,000 tokens under a maximum of 1M -> nothing."""
    assert not static_maximum(
        subject_of([("bmm", 0, 2_560_000, BMM), SMALL], w=replace(W, context=600_000.0))
    )


def test_an_unknown_context_is_all_or_nothing():
    """The same shapes without manifest -> the width is guessed, the saving anything up to all but small launches."""
    (found,) = static_maximum(subject_of([("bmm", 0, 2_560_000, BMM), SMALL]))
    assert saved(found) == (0, 2_559_000, 2_559_000)
    assert found.confidence == 0.5
    assert "--context" in found.needs
    narrow = {**BMM, col.OP_SHAPES: "[[2,2048,128],[2,128,64]]"}
    assert not static_maximum(subject_of([("bmm", 0, 2_560_000, narrow), SMALL]))


def test_without_shapes_an_fp32_product_of_the_indexer_is_its_fallback():
    """No op recorded, a SIMT product with origin indexer -> inferred, all or nothing; a bf16 product says nothing."""
    row = {col.BUCKET: "fp32_simt_gemm", **INDEXER}
    (found,) = static_maximum(
        subject_of([("sgemm", 0, 50_000, row), ("copy", 60_000, 40_000, INDEXER), SMALL])
    )
    assert saved(found) == (0, 88_000, 88_000)
    assert found.label == "inferred"
    dense = {col.BUCKET: "dense_gemm", **INDEXER}
    assert not static_maximum(subject_of([("gemm", 0, 50_000, dense), SMALL]))


def attention_rows(c128_ns):
    """One attention launch in a window layer, a c4 and a c128 layer: 128, 640 and 160 valid tokens."""
    more = {col.BUCKET: "attention", col.ROLE: "attention_core", col.ORIGIN: "attention"}
    times = {0: 12_800, 2: 64_000, 3: c128_ns}
    return [
        ("_sparse_mla", 1_000_000 * i, ns, {**more, col.SCOPE: f"layer.{i}/attention"})
        for i, ns in times.items()
    ]


def test_attention_that_takes_as_long_as_its_padding():
    """c128: 160 valid tokens, but 13 times as long as 640 -> it walks the 8,320 padded columns of a 1M maximum."""
    (found,) = static_maximum(subject_of([*attention_rows(832_000), SMALL], w=W))
    values = {e.what: e.value for e in found.evidence}
    (columns,) = (v for k, v in values.items() if k.startswith("columns they walk"))
    assert columns == pytest.approx(8320)
    # 160 of 8,320 columns are left, 16,000 ns, and a small launch
    assert saved(found)[:2] == pytest.approx((832_000 - 34_000, 832_000 - 17_000))
    assert found.launches == 1


@pytest.mark.parametrize("c128_ns", [20_000, 200_000, 3_000_000])
def test_attention_that_does_not_walk_its_padding(c128_ns):
    """Times that the padded width does not explain -> nothing is claimed of the maximum."""
    assert not static_maximum(subject_of([*attention_rows(c128_ns), SMALL], w=W))


def sweep_of(small, large):
    points = [Point(str(x), x, {"moe": np.array([ns, ns])}) for x, ns in ((8192, small), (1 << 20, large))]
    return scaling(points, "max_context", "origin")


def test_a_sweep_measures_what_shapes_do_not_show():
    """An origin grows from 2 to 10 us with the maximum -> 8 us of it are recoverable, by measurement."""
    rows = [("k", 0, 10_000, {col.ORIGIN: "moe"}), SMALL]
    (found,) = static_maximum(subject_of(rows, sweep=sweep_of(2_000, 10_000)))
    assert saved(found) == pytest.approx((8_000, 8_000, 8_000))
    assert found.confidence == 0.98
    assert not static_maximum(subject_of(rows, sweep=sweep_of(10_000, 10_000)))
