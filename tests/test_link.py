"""Who launched what: joins by correlation, by time on the launching thread, by External id."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace


def read(t: KinetoTrace, tmp_path, **options):
    return read_trace(t.write(tmp_path / "x.json"), **options)


def row(trace, name: str) -> pd.Series:
    return trace.activities[trace.activities["name"] == name].iloc[0]


def test_innermost_op_and_whole_scope(tmp_path):
    """Nested ops and annotations around a launch -> the innermost op with its shapes, the scope outermost first."""
    t = KinetoTrace()
    t.annotation("step", 0, 100)
    t.annotation("layer > 0", 10, 50)
    t.op("outer", 11, 40, external_id=1, shapes=[[1]])
    t.op("inner", 15, 20, external_id=2, shapes=[[2, 3], []], dtypes=["float", ""])
    t.launch(20, correlation=9)
    t.op("sibling", 40, 5)
    t.kernel("k", 60, 5, correlation=9)
    k = row(read(t, tmp_path), "k")
    assert (k["op"], k["op_shapes"], k["op_dtypes"]) == ("inner", "[[2,3],[]]", '["float",""]')
    assert k["scope"] == "step > layer > 0"
    assert (k["launch_name"], k["launch_start_ns"], k["launch_dur_ns"]) == ("cudaLaunchKernel", 20_000, 4_000)


def test_one_launch_owns_many_kernels_and_rows_never_multiply(tmp_path):
    """Replays of 300 kernels, a shared correlation on the CPU side too -> as many rows as kernels, exact time."""
    t = KinetoTrace()
    for i in range(3):
        t.annotation(f"step[{i}]", 5000 * i, 60)
        t.replay(["k"] * 300, at=5000 * i + 10)
    t.launch(
        20, correlation=1, name="cuGraphLaunch", cat="cuda_driver"
    )  # a driver call under the runtime call
    t.op("later", 4, 70, external_id=1)
    trace = read(t, tmp_path)
    a = trace.activities
    assert (len(a), int(a["dur_ns"].sum())) == (900, 4_500_000)
    assert set(a["launch_name"]) == {"cudaGraphLaunch"}
    assert a["op"].isna().all()
    assert a.groupby("scope", observed=True).size().to_dict() == {f"step[{i}]": 300 for i in range(3)}
    assert any("share a correlation" in w for w in trace.warnings)


def test_kernels_without_launch_stay(tmp_path):
    """Launched before the window, correlation 0 or absent -> kept, links missing, op by External id where known."""
    t = KinetoTrace()
    t.op("aten::mm", 0, 5, external_id=4)
    t.launch(1, correlation=0)
    t.kernel("early", 10, 1, correlation=77)
    t.kernel("zero", 20, 1, correlation=0)
    t.kernel("known", 30, 1, correlation=78, external_id=4)
    trace = read(t, tmp_path)
    assert trace.activities["launch_name"].isna().all()
    assert row(trace, "known")["op"] == "aten::mm"
    assert trace.activities["op"].isna().sum() == 2
    assert trace.activities["scope"].isna().all()


def test_another_thread_does_not_enclose(tmp_path):
    """An op and an annotation on another thread or process at the same time -> not taken."""
    t = KinetoTrace()
    t.op("other_thread", 0, 100, tid=1)
    t.annotation("other_process", 0, 100, pid=1)
    t.launch(10, correlation=1)
    t.kernel("k", 50, 1, correlation=1)
    k = row(read(t, tmp_path), "k")
    assert pd.isna(k["op"])
    assert pd.isna(k["scope"])


def test_time_decides_before_external_id(tmp_path):
    """An op around the launch and another with the kernel's External id -> the one around the launch."""
    t = KinetoTrace()
    t.op("around", 0, 20, external_id=1)
    t.op("elsewhere", 50, 20, external_id=2)
    t.launch(5, correlation=3, external_id=2)
    t.kernel("k", 90, 1, correlation=3, external_id=2)
    assert row(read(t, tmp_path), "k")["op"] == "around"


@pytest.mark.parametrize(
    ("cat", "name"),
    [
        ("cuda_driver", "cuLaunchKernelEx"),
        ("cuda_runtime", "hipExtModuleLaunchKernel"),
        ("xpu_runtime", "urEnqueue"),
    ],
)
def test_launches_of_every_kind_are_launches(tmp_path, cat, name):
    """Driver calls, HIP and XPU runtimes -> joined like cudaLaunchKernel."""
    t = KinetoTrace()
    t.launch(1, correlation=5, cat=cat, name=name)
    t.kernel("k", 9, 1, correlation=5)
    assert row(read(t, tmp_path), "k")["launch_name"] == name


def test_triton_cpu_rows_and_gpu_annotations_are_events(tmp_path):
    """A cpu_op with stream 0, gpu annotations, cuda_sync and overhead -> events by category, no GPU time."""
    t = KinetoTrace()
    t.op("triton_poi_fused_0", 0, 95, stream=0, device=0)
    t.annotation("step", 0, 900, gpu=True)
    t.add("cuda_sync", "Stream Sync", 5, 50, 0, 7, stream=7)
    t.add("overhead", "Buffer Flush", 5, 50, -1, 0)
    t.add("new_thing", "x", 5, 50, 0, 7)
    t.kernel("triton_poi_fused_0", 10, "1.76")
    trace = read(t, tmp_path)
    assert trace.activities["dur_ns"].tolist() == [1760]
    assert set(trace.events["category"]) == {
        "cpu_op",
        "gpu_user_annotation",
        "cuda_sync",
        "overhead",
        "new_thing",
    }
    assert [w for w in trace.warnings if "new_thing" in w]


def test_python_frames_only_when_asked(tmp_path):
    """Stacks in the trace -> left out; asked for: rows, and module calls in the scope."""
    t = KinetoTrace()
    t.annotation("step", 0, 100)
    t.add("python_function", "nn.Module: Attention_3", 5, 50, 4242, 4242)
    t.add("python_function", "model.py(7): forward", 6, 40, 4242, 4242)
    t.launch(10, correlation=1)
    t.kernel("k", 90, 1, correlation=1)
    assert row(read(t, tmp_path), "k")["scope"] == "step"
    assert "python_function" not in set(read(t, tmp_path).events["category"])
    trace = read(t, tmp_path, python_frames=True)
    assert row(trace, "k")["scope"] == "step > nn.Module: Attention_3"
    assert (trace.events["category"] == "python_function").sum() == 2


def test_labels_that_hold_several_numbers_get_ranks_by_order(tmp_path):
    """Merged pids like [TP00-DP01] -> ranks 0, 1, ... by label, which the metadata keeps."""
    t = KinetoTrace(rank=None)
    for label in ("TP01-DP00", "TP00-DP01", "TP00-DP00"):
        t.launch(1, correlation=1, pid=f"[{label}] 5")
        t.kernel(label, 9, 1, correlation=1, pid=f"[{label}] 0")
    trace = read(t, tmp_path)
    assert trace.meta.rank_labels == {0: "TP00-DP00", 1: "TP00-DP01", 2: "TP01-DP00"}
    ranks = trace.activities.set_index(trace.activities["name"].astype(str))["rank"]
    assert {trace.meta.rank_labels[r]: name for name, r in ranks.items()} == {n: n for n in ranks.index}
    assert trace.activities["launch_name"].notna().all()


def brute_force(events: pd.DataFrame, launch: int) -> tuple[str | None, str | None]:
    """Innermost op and scope of the launch with this event_index, by looking at everything."""
    e = events.assign(end=events["start_ns"] + events["dur_ns"])
    me = e[e["event_index"] == launch].iloc[0]
    around = e[(e["pid"] == me["pid"]) & (e["tid"] == me["tid"])
               & (e["start_ns"] <= me["start_ns"]) & (e["end"] >= me["end"])]  # fmt: skip
    ops = around[around["category"] == "cpu_op"].sort_values(["dur_ns", "start_ns"], ascending=[True, False])
    notes = around[around["category"] == "user_annotation"].sort_values("dur_ns", ascending=False)
    op = None if ops.empty else str(ops["name"].iloc[0])
    return op, None if notes.empty else " > ".join(notes["name"])


@pytest.mark.parametrize("seed", range(6))
def test_nesting_agrees_with_looking_at_everything(tmp_path, seed):
    """Random properly nested ops and annotations on three threads -> the same op and scope as brute force."""
    rng = random.Random(seed)
    t = KinetoTrace()

    def nest(lo: float, hi: float, tid: int, depth: int) -> None:
        at = lo + 1
        while at < hi - 6:
            end = min(hi - 1, at + rng.choice((6, 20, 60, 150)))
            kind = rng.random()
            if kind < 0.3 or depth > 5:
                n = t.next_id()
                t.launch(at, 3, correlation=n, tid=tid)
                t.kernel(f"k{n}", at + 50, 1, correlation=n)
                at += 5
                continue
            name = f"{'op' if kind < 0.7 else 'note'}{len(t.events)}"
            (t.op if kind < 0.7 else t.annotation)(name, at, end - at, tid=tid)
            nest(at, end, tid, depth + 1)
            at = end + 1

    for tid in (1, 2, 3):
        nest(0, 400, tid, 0)
    rng.shuffle(t.events)
    trace = read(t, tmp_path)
    a = trace.activities
    assert len(a) > 20
    for _, k in a.iterrows():
        want = brute_force(trace.events, int(k["launch_index"]))
        assert tuple(None if pd.isna(k[c]) else k[c] for c in ("op", "scope")) == want


def test_launch_index_points_at_the_launch(tmp_path):
    """The probe-like eager trace -> launch_index finds the event row with the same correlation."""
    t = KinetoTrace()
    for i in range(50):
        t.eager(f"k{i % 7}", 3, at=100 + 30 * i)
    trace = read(t, tmp_path)
    by_index = trace.events.set_index("event_index")
    found = by_index.loc[trace.activities["launch_index"].astype(np.int64)]
    assert found["correlation"].tolist() == trace.activities["correlation"].tolist()
    assert found["start_ns"].tolist() == trace.activities["launch_start_ns"].tolist()
