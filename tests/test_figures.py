"""Figures: what they draw adds up to what was measured, and names from traces stay text."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pandas as pd
import pytest

import hta_dsv4
from hta_dsv4.analysis.diff import EFFECTS
from hta_dsv4.analysis.scaling import Point, scaling
from hta_dsv4.analysis.why import Explanation
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import figures
from hta_dsv4.present.falls import falls
from hta_dsv4.present.figures.theme import plain, present_order, template
from tests.conftest import CASES


@cache
def run(name: str) -> hta_dsv4.Run:
    return hta_dsv4.load(hta_dsv4.traces()[name])


@cache
def pair() -> Explanation:
    return hta_dsv4.why([run("mhc_fused"), run("cuda_graph")])


def test_share_bars_add_up_to_100_per_variant():
    """Two variants -> the segments of each bar add up to 100 %, labels of the large ones shown."""
    figure = figures.share_bars([run("mhc_fused").shares(), run("cuda_graph").shares()])
    totals = [sum(trace.x[i] for trace in figure.data) for i in range(2)]
    assert totals == pytest.approx([100, 100])
    moe = next(t for t in figure.data if t.name == "fp4_moe")
    assert all(text for text in moe.text)


def test_time_bars_are_the_time_per_step():
    """One variant -> segments add up to its own time per step in ms, on one stream its busy time; the end says it."""
    shares = run("cuda_graph").shares()
    figure = figures.time_bars([shares])
    bars = [t for t in figure.data if t.type == "bar"]
    rank = shares.median_rank
    assert sum(t.x[0] for t in bars) == pytest.approx(rank.extent.busy_ns / rank.steps / 1e6)


def test_times_of_variants_with_and_without_steps_are_not_drawn_beside_each_other():
    """One variant without steps -> an error that names it; shares can be drawn."""
    without = hta_dsv4.load(CASES / "37-hostile-kernel-names.json").shares()
    with pytest.raises(HtaDsv4Error, match="no steps in 37-hostile"):
        figures.time_bars([run("cuda_graph").shares(), without])
    assert len(figures.share_bars([run("cuda_graph").shares(), without]).data) > 3


def test_bars_of_another_key_are_refused():
    """Shares by role -> an error with the remedy."""
    with pytest.raises(HtaDsv4Error, match="bars are by bucket"):
        figures.share_bars([run("cuda_graph").shares("role")])


def test_a_waterfall_leads_from_one_sum_to_the_other_exactly():
    """A change -> bars whose integers add up to it, each starting where the one before ended."""
    why = pair().pairs[0]
    parts = why.decomposition
    steps = falls(parts)
    assert sum(f.ns for f in steps) == parts.change.own_ns
    assert sum(f.parts for f in steps) == int((parts.table("bucket")[list(EFFECTS)] != 0).sum().sum())
    (bars,) = figures.waterfall(why).data
    at = bars.x[0]
    for fall, base, length in zip(steps, bars.base[1:-1], bars.x[1:-1], strict=True):
        assert min(at, at + fall.ns / 1e6) == pytest.approx(base)
        assert length == pytest.approx(abs(fall.ns) / 1e6)
        at += fall.ns / 1e6
    assert at == pytest.approx(bars.x[-1])


def test_a_small_change_cuts_the_axis_and_says_so():
    """A change of 0.7 % -> the axis begins near the sums, with a title that says it."""
    figure = figures.waterfall(pair().pairs[0])
    assert figure.layout.xaxis.range[0] > 0
    assert "begins at" in figure.layout.xaxis.title.text


def test_the_cells_of_a_heatmap_add_up_to_100():
    """Bucket x origin -> every cell in percent of the sum."""
    (trace,) = figures.heatmap(run("mhc_fused").shares("bucket,origin")).data
    assert sum(z for row in trace.z for z in row if z is not None and z == z) == pytest.approx(100)


def test_a_heatmap_says_what_the_bars_say():
    """A trace in which kernels start early -> rows of the heatmap add up to the bars' shares, of own time both."""
    shown = figures.heatmap(run("moe_tuned").shares("bucket,origin"))
    bars = figures.share_bars([run("moe_tuned").shares()])
    assert shown.layout.title.text.endswith("% of own time")
    rows = {
        y: sum(z for z in row if z is not None and z == z)
        for y, row in zip(shown.data[0].y, shown.data[0].z, strict=True)
    }
    assert rows == pytest.approx({t.name: t.x[0] for t in bars.data})


def test_what_is_replaced_is_one_bar():
    """Original -> mma, one attention kernel for another -> replaced: attention, not gone and appeared."""
    (why,) = hta_dsv4.why([run("original"), run("mma")]).pairs
    steps = falls(why.decomposition)
    assert steps[0].label == "replaced: attention"
    assert not {f.bucket for f in steps if f.effect == "disappeared_ns"} & {
        f.bucket for f in steps if f.effect == "appeared_ns"
    }
    assert sum(f.ns for f in steps) == why.decomposition.change.own_ns


def test_a_heatmap_needs_two_keys():
    """Shares by one key -> an error with the remedy."""
    with pytest.raises(HtaDsv4Error, match="needs two keys"):
        figures.heatmap(run("cuda_graph").shares())


def test_what_grows_is_drawn_thick_and_named():
    """An indexer that grows with max_context -> its line is the thickest and its name says so."""
    points = [
        Point(f"m{x}", float(x), {"indexer": np.array([x * 10] * 3), "moe": np.array([5000] * 3)})
        for x in (8192, 65536, 1048576)
    ]
    figure = figures.scaling(scaling(points, "max_context", "origin"))
    widths = {t.name: t.line.width for t in figure.data}
    assert max(widths, key=widths.__getitem__) == "indexer (grows)"


def test_coverage_bars_add_up_to_the_wall_time():
    """Coverage of a variant -> bands that add up to 100 % of the wall."""
    figure = figures.coverage([run("cuda_graph").coverage()])
    assert sum(t.x[0] for t in figure.data) == pytest.approx(100)


def test_kernel_speed_leaves_out_what_is_missing():
    """A table with a gap -> a line without that point; an absent column -> an error that names it."""
    table = pd.DataFrame({"B": [1, 2, 4], "fast": [1.0, float("nan"), 3.0], "floor": [0.1, 0.2, 0.3]})
    figure = figures.kernel_speed(table, ["fast"], ["floor"])
    assert list(figure.data[0].x) == [1, 4]
    with pytest.raises(HtaDsv4Error, match="'slow' is missing"):
        figures.kernel_speed(table, ["slow"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_comes_in_both_themes(theme):
    """Each theme -> its page colour in the figure's template."""
    figure = figures.share_bars([run("cuda_graph").shares()], theme)
    assert figure.layout.template.layout.paper_bgcolor == template(theme).layout.paper_bgcolor


def test_an_unknown_theme_is_refused():
    """Theme "blue" -> an error that lists the themes."""
    with pytest.raises(HtaDsv4Error, match="light, dark"):
        figures.share_bars([run("cuda_graph").shares()], "blue")


def test_hostile_names_are_text_in_every_figure():
    """Labels with HTML, control characters and Plotly's own markup -> only escaped text reaches the figure."""
    bad = '<img src=x onerror="alert(1)"><b>\x1b[31m'
    hostile = hta_dsv4.load(CASES / "37-hostile-kernel-names.json", label=bad)
    text = json.dumps(json.loads(figures.share_bars([hostile.shares()]).to_json())["data"])
    assert "<img" not in text
    assert "\\u001b" not in text
    assert "&lt;img" in text
    assert plain("<a href='javascript:1'>") == "&lt;a href='javascript:1'&gt;"


def test_buckets_are_drawn_in_the_tables_order_with_unknown_last():
    """known, own and unknown buckets -> known ones first, own ones next, unknown last."""
    assert present_order(["unknown", "mine", "glue", "attention"]) == ["attention", "glue", "mine", "unknown"]
