"""However the JSON is written, cut and packed, the tables are the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace, baseline, pack


def rich() -> KinetoTrace:
    """Eager and replayed kernels, nested lists of objects, hostile names, flows and metadata events."""
    t = baseline()
    t.replay(["gemm_a", 'k<"q", {}>, }, {', "核 \U0001f600"], at=400)
    t.op("odd", 500, 9, shapes=[[1, 2], []], concrete=[{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}], note="}, {")
    t.kernel("plain\\path", "600.125", "0.5", correlation=None, grid=(1, 2, 3), nested={"x": [{}, {}]})
    t.events.insert(0, {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "x"}})
    t.events.append({"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"})
    t.top["note"] = 'a "traceEvents": [ in a string'
    t.top["nested"] = {"traceEvents": [{"ph": "X"}], "list": [[{}, {}], {"traceEvents": []}]}
    return t


def spell(value: Any, rng: random.Random, blank: str, escape: bool) -> str:
    """JSON with keys in any order and blanks anywhere."""

    def gap() -> str:
        return "".join(rng.choice(blank) for _ in range(rng.randrange(4))) if blank else ""

    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        inner = f"{gap()},{gap()}".join(
            f"{json.dumps(k)}{gap()}:{gap()}{spell(v, rng, blank, escape)}" for k, v in items
        )
        return "{" + gap() + inner + gap() + "}"
    if isinstance(value, list):
        return (
            "[" + gap() + f"{gap()},{gap()}".join(spell(v, rng, blank, escape) for v in value) + gap() + "]"
        )
    return json.dumps(value, ensure_ascii=escape)


def assert_same(a: Trace, b: Trace) -> None:
    for left, right in ((a.activities, b.activities), (a.events, b.events)):
        for name in left.columns:
            x, y = (t[name].astype(object) if isinstance(t[name].dtype, pd.CategoricalDtype) else t[name]
                    for t in (left, right))  # fmt: skip
            pd.testing.assert_series_equal(x, y, check_names=False)
    assert a.meta == b.meta
    assert a.warnings == b.warnings


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Trace:
    return read_trace(rich().write(tmp_path_factory.mktemp("ref") / "ref.json"))


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32), blank=st.sampled_from(["", " ", "\n", " \t\r\n"]), escape=st.booleans(),
    chunk=st.integers(64, 6000), bom=st.booleans(), suffix=st.sampled_from([".json", ".gz", ".zst", ".zip"]),
)  # fmt: skip
def test_formatting_changes_nothing(tmp_path, reference, seed, blank, escape, chunk, bom, suffix):
    """Any key order, blanks, escapes, chunk size and container -> the same tables and metadata."""
    text = ("\ufeff" if bom else "") + spell(rich().body(), random.Random(seed), blank, escape)
    path = tmp_path / "any.bin"  # the name says nothing: content decides
    path.write_bytes(pack(text.encode(), suffix))
    assert_same(read_trace(path, chunk=chunk), reference)


@pytest.mark.parametrize("indent", [None, 2])
def test_no_place_to_stop_reading_is_special(tmp_path, indent):
    """Every chunk size, so that a read ends at every byte near the end -> the same kernels, no error."""
    t = KinetoTrace()
    t.kernel("a", 1, 2)
    t.kernel("b", 4, 3)
    path = t.write(tmp_path / "x.json", indent=indent)
    for chunk in range(64, 700, 1 if indent is None else 3):
        trace = read_trace(path, chunk=chunk, cpu=False)
        assert (trace.activities["dur_ns"].tolist(), trace.meta.trace_name) == ([2000, 3000], "/tmp/x.json")


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("chunk", [64, 256, 1000, 1 << 20])
def test_a_bare_list_of_events_is_a_trace(tmp_path, reference, indent, chunk):
    """Only the list of events, as Chrome allows -> the same activities, nothing known of the rank."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps(rich().events, indent=indent))
    trace = read_trace(path, chunk=chunk)
    pd.testing.assert_frame_equal(trace.activities, reference.activities)
    assert not trace.meta.rank_known


def test_metadata_before_and_after_the_events_is_kept(tmp_path):
    """Top-level keys on both sides of traceEvents, nested ones of that name too -> all in the metadata."""
    t = rich()
    path = tmp_path / "split.json"
    after = {"distributedInfo": {"rank": 3, "world_size": 8}, "later": [{"a": 1}, {"b": 2}]}
    path.write_text(json.dumps({"nested": t.top["nested"], "traceEvents": t.events, **after}))
    meta = read_trace(path, chunk=100).meta
    assert meta.distributed["rank"] == 3
    assert meta.extra == {"nested": t.top["nested"], "later": after["later"]}


def test_without_cpu_the_same_gpu_columns(tmp_path, reference):
    """cpu=False -> the GPU columns of the full read, no event table, no links."""
    trace = read_trace(rich().write(tmp_path / "x.json"), cpu=False)
    assert list(trace.activities.columns) == list(col.GPU_COLUMNS)
    pd.testing.assert_frame_equal(trace.activities, reference.activities[list(col.GPU_COLUMNS)])
    assert trace.events.empty


def test_columns_and_types_are_those_documented(reference):
    """A read trace -> the columns of activities.py, in order, with their dtypes."""
    for table, columns in (
        (reference.activities, {**col.GPU_COLUMNS, **col.LINK_COLUMNS}),
        (reference.events, col.EVENT_COLUMNS),
    ):
        assert {c: str(t) for c, t in table.dtypes.items()} == columns
        assert list(table.columns) == list(columns)
        order = list(zip(table["start_ns"], table["event_index"], strict=True))
        assert order == sorted(order)
