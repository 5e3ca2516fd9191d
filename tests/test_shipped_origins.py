"""Origins on the shipped captures: recorded in eager ones, carried over to the graph one, and inferred."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from hta_dsv4 import shipped
from hta_dsv4.analysis import shares as sh
from hta_dsv4.classify.origin_columns import COMPANION, INFERRED, UNKNOWN
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.steps import PERIOD

TRACES = shipped.traces()
KERNEL = [col.NAME, col.GRID_X, col.GRID_Y, col.GRID_Z]


@pytest.fixture(scope="module")
def split_k() -> Run:
    return load(TRACES["split_k"])


@pytest.fixture(scope="module")
def graph() -> Run:
    return load(TRACES["cuda_graph"], companion=TRACES["cuda_graph_eager"])


def known_share(run: Run) -> float:
    """Share of the summed time whose origin is known."""
    table = run.activities
    known = table[col.ORIGIN].astype(str) != UNKNOWN
    return int(table.loc[known, col.DUR_NS].sum()) / int(table[col.DUR_NS].sum())


def without_scopes(run: Run) -> Run:
    """The same run as if nothing had been recorded around its launches."""
    trace = run.traces[0]
    table = trace.activities.copy(deep=False)
    for column in (col.SCOPE, col.OP):
        table[column] = pd.Series(pd.Categorical([None] * len(table), categories=[]), index=table.index)
    return replace(run, traces=(replace(trace, activities=table),))


def test_an_eager_capture_says_every_origin(split_k):
    """split_k, eager with scopes -> at least 95 % of the time has an origin, none of it inferred."""
    assert known_share(split_k) >= 0.95
    table = split_k.activities
    inferred = table[col.ORIGIN_METHOD].isin(INFERRED)
    assert table.loc[inferred, col.DUR_NS].sum() < 0.001 * table[col.DUR_NS].sum()


def test_most_of_the_glue_is_the_indexers(split_k):
    """Shares by bucket,origin -> the FP32 GEMM and most of the glue are the indexer's."""
    table = split_k.shares("bucket,origin").table.set_index(["bucket", "origin"])[sh.SHARE]
    glue = table["glue"]
    assert glue["indexer"] > 0.85 * glue.sum()
    assert table["fp32_simt_gemm"]["indexer"] > 0.9 * table["fp32_simt_gemm"].sum()


def test_a_graph_capture_takes_its_origins_from_the_eager_one(graph):
    """cuda_graph with its companion -> 90 % of the time at least, each kernel for whom it is in the eager one."""
    assert known_share(graph) >= 0.90
    assert set(graph.activities[col.ORIGIN_METHOD]) == {COMPANION}
    truth = load(TRACES["cuda_graph_eager"]).activities

    def counts(table: pd.DataFrame) -> pd.Series:
        keys = table[[*KERNEL, col.ORIGIN]].astype({col.NAME: str, col.ORIGIN: str}).fillna(-1)
        return keys.groupby([*KERNEL, col.ORIGIN]).size()

    both = pd.concat([counts(graph.activities), counts(truth)], axis=1).fillna(0)
    assert both.min(axis=1).sum() >= 0.98 * len(graph.activities)


def test_inference_alone_is_marked_and_right_where_it_speaks(split_k):
    """split_k with ops and scopes hidden -> most inferred, 99 % of that right."""
    blind = without_scopes(split_k)
    table, truth = blind.activities, split_k.activities
    known = table[col.ORIGIN].astype(str) != UNKNOWN
    right = table[col.ORIGIN].astype(str) == truth[col.ORIGIN].astype(str)
    time = table[col.DUR_NS]
    assert time[known].sum() >= 0.85 * time.sum()
    assert time[known & right].sum() >= 0.99 * time[known].sum()
    assert set(table.loc[known, col.ORIGIN_METHOD]) <= set(INFERRED)


@pytest.mark.parametrize("name", ["split_k", "cuda_graph", "cuda_graph_eager", "split_k_c1"])
def test_the_kernel_sequence_repeats_as_the_markers_say(name):
    """Captures with ProfilerStep -> the repetition of kernels alone finds the same steps."""
    (steps,) = load(TRACES[name]).steps
    other = {a.method: a for a in steps.agreement}[PERIOD]
    assert other.agrees
    assert other.steps == len(steps.counted)
    assert other.alike > 0.99


def test_the_counts_of_the_step_name_the_c4_layers(split_k):
    """split_k's launch counts per step -> DeepSeek-V4-Flash, the FP32 GEMM 21-fold."""
    (reading,) = split_k.architecture
    assert reading is not None
    assert reading.model.name == "DeepSeek-V4-Flash"
    assert any("gemm" in m.kernel.lower() for m in reading.sharing("c4 layers"))
