"""Bucket against origin: every cell is a share of the sum, and the headline says what the glue is for."""

from __future__ import annotations

import pytest

from hta_dsv4 import shipped
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.present.cross_grid import can_cross, cross_grid
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run
from tests.campaign import campaign


@pytest.fixture(scope="module")
def run() -> Run:
    return Run("split_k", (campaign(linked=False).trace,), default_rules())


def test_the_campaigns_glue_is_divided_by_who_asked_for_it(run):
    """The published profile without ops or scopes -> glue x indexer holds at least the two published rows."""
    grid = cross_grid(run.shares("bucket,origin"))
    row = next(r for r in grid.rows if r[0] == "glue")
    cells = dict(zip(grid.headers, row, strict=True))
    assert float(cells["indexer"]) >= 100 * (923.16 + 682.07) / 5240.5258 - 0.3
    assert grid.headers[-1] == "unknown"
    assert grid.notes[0].startswith(
        f"of the {cells['sum']} % glue, {cells['indexer']} points belong to indexer"
    )


def test_cells_add_up_to_the_sum(run):
    """All cells -> 100 %, each row and column to its total."""
    grid = cross_grid(run.shares("bucket,origin"))

    def number(text: str) -> float:
        return 0.0 if text in ("-", "<0.1") else float(text)

    for row in (*grid.rows, *grid.footer):
        assert sum(map(number, row[2:])) == pytest.approx(number(row[1]), abs=0.1 * len(row))
    assert grid.footer[0][1] == "100.0"


def test_only_two_keys_without_kernels_are_crossed(run):
    """One key, three keys, kernels -> no cross table."""
    assert can_cross(run.shares("bucket,origin"))
    assert can_cross(run.shares("role,origin"))
    assert not can_cross(run.shares("bucket"))
    assert not can_cross(run.shares("bucket,kernel"))


def test_shares_by_origin_say_how_the_origins_are_known(run):
    """No op, no scope -> the note gives the share of each method and that they are inferred."""
    notes = " ".join(run.shares("origin").notes)
    assert "19.2 % by multiplicity" in notes
    assert "inferred, not recorded" in notes
    assert "--companion" in notes


def test_the_headline_passes_over_a_row_that_names_its_own_origin():
    """The original, mostly attention kernels asked for by attention -> the sentence is of the glue."""
    grid = cross_grid(load(shipped.traces()["original"]).shares("bucket,origin"))
    assert grid.rows[0][0] == "attention"
    assert grid.notes[0].startswith("of the 23.3 % glue, 21.3 points belong to indexer")


def test_the_headline_says_where_more_is_unknown_than_it_names():
    """A graph replay without companion, GEMMs of no known origin -> the largest known cell, and what is unknown."""
    grid = cross_grid(load(shipped.traces()["cuda_graph"]).shares("bucket,origin"))
    assert grid.notes[0] == (
        "of the 10.0 % dense_gemm, 0.5 points belong to indexer; of 9.5 points the origin is not known"
    )
