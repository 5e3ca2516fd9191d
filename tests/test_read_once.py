"""What tests are handed of a shipped trace is what a load gives, and their own."""

from __future__ import annotations

import pandas as pd
import pytest

from hta_dsv4 import shipped
from hta_dsv4.classify.rules_file import load_rules
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs import loading
from hta_dsv4.runs.run import Run
from tests.read_once import remembering

TRACES = shipped.traces()
afresh = loading.load.__wrapped__  # type: ignore[attr-defined]


def assert_same(one: Run, two: Run) -> None:
    """Both runs hold the same, told by all that is read and classified."""
    assert (one.label, one.ranks, one.fits, one.rules) == (two.label, two.ranks, two.fits, two.rules)
    assert (one.companion is None) == (two.companion is None)
    for a, b in zip(one.traces, two.traces, strict=True):
        assert (a.path, a.meta, a.warnings, a.partial) == (b.path, b.meta, b.warnings, b.partial)
        pd.testing.assert_frame_equal(a.activities, b.activities)
        pd.testing.assert_frame_equal(a.events, b.events)
    for a, b in zip(one.steps, two.steps, strict=True):
        assert (a.method, a.detail, a.agreement) == (b.method, b.detail, b.agreement)
        pd.testing.assert_frame_equal(a.table, b.table)
        pd.testing.assert_series_equal(a.of_activity, b.of_activity)
    for a, b in zip(one.classified, two.classified, strict=True):
        pd.testing.assert_frame_equal(a, b)


@pytest.mark.parametrize("name", ["h200_probe", "cuda_graph", "cuda_graph_c32_tp2"])
@pytest.mark.parametrize("companion", [None, "h200_probe"])
def test_a_second_load_is_as_the_first_whatever_was_done_to_it(name, companion):
    """A file or folder, loaded, spoilt and loaded again -> the tables, steps and notes of a load afresh, in copies."""
    load = remembering(afresh)
    options = {"label": "x", "companion": None if companion is None else TRACES[companion]}
    for _ in range(2):
        run = load(TRACES[name], **options)
        assert_same(run, afresh(TRACES[name], **options))
        for table in (run.traces[0].activities, run.traces[0].events, run.classified[0], run.steps[0].table):
            if len(table):
                table.iloc[0, 0] = 7
            del table[table.columns[-1]]
        run.steps[0].of_activity.iloc[:] = 3


def test_what_is_not_plain_is_loaded_as_ever(tmp_path):
    """Rules of one's own, a copy elsewhere, what is no file's name -> read each time, with its own rules or error."""
    read = []

    def counting(path, **options):
        read.append(path)
        return afresh(path, **options)

    load, probe = remembering(counting), TRACES["h200_probe"]
    elsewhere = tmp_path / probe.name
    elsewhere.write_bytes(probe.read_bytes())
    rules = load_rules()
    assert load(probe).label == load(str(probe)).label == "h200_probe"
    assert len(read) == 1
    assert load(probe, rules=rules).rules is rules
    load(elsewhere)
    load(elsewhere)
    load(probe, salvage=True)
    assert len(read) == 5
    for no_name in ("", "x" * 5000, "a\0b"):
        with pytest.raises(HtaDsv4Error):
            load(no_name)
