"""HTA on our frames: the same results as from its own loader, but for faults that are named and shown."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.generate import Plan, generate
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.hta import KNOWN_FAULTS, HtaFaultError, HtaFaultWarning, HtaView, Treatment, to_hta
from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace
from tests.conftest import CASES

PROBE = Path(__file__).parents[1] / "traces" / "h200_probe.trace.json.gz"
EXTRA = os.environ.get("HTA_DSV4_EXTRA_TRACES")
QWEN = sorted(Path(EXTRA).glob("qwen3*.trace.json.gz")) if EXTRA else []
PLANS = {
    "eager": Plan(120, 3),
    "graph": Plan(80, 3, graph=True, overlap=0.3),
    "compiled": Plan(60, 2, compiled=True),
    "unmarked": Plan(40, 2, steps_marked=False),
}
# HTA keeps float64 microseconds since boot: 1e-3 us apart near 5e12, so each time is off by up to half of that.
TIME_US = 2e-3


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hta")
    for name, plan in PLANS.items():
        generate(path / f"{name}.json", plan)
    return path


@pytest.fixture(scope="session")
def reference(folder: Path) -> Callable[..., dict[str, Any]]:
    """HTA's own results on a file, computed once a file and setting, in a process of their own."""
    done: dict[tuple[Path, str, bool], dict[str, Any]] = {}

    def run(path: Path, annotation: str = "ProfilerStep", *, rounding: bool = False) -> dict[str, Any]:
        key = (path, annotation, rounding)
        if key not in done:
            out = folder / f"reference{len(done)}.pickle"
            script = Path(__file__).with_name("hta_reference.py")
            environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "0" if rounding else "1"}
            command = [sys.executable, str(script), str(path), str(out), annotation]
            subprocess.run(command, check=True, env=environment, capture_output=True)
            done[key] = pickle.loads(out.read_bytes())
        return done[key]

    return run


def path_of(name: str, folder: Path) -> Path:
    for real in (PROBE, *QWEN):
        if real.name == name:
            return real
    return folder / f"{name}.json"


def view_of(path: Path) -> HtaView:
    return to_hta(read_trace(path, python_frames=True))


def annotation_of(path: Path) -> str:
    """An annotation of the trace whose text is in no kernel's name."""
    return "prefill_like" if path == PROBE else "generation" if path in QWEN else "decode[bs=32]"


REAL = [PROBE.name, *(p.name for p in QWEN)]
ALL = [*REAL, "eager", "graph"]


@pytest.fixture(params=ALL)
def pair(request: pytest.FixtureRequest, folder: Path, reference: Callable[..., Any]) -> Iterator[Any]:
    """Our view and HTA's own results on one trace."""
    path = path_of(request.param, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HtaFaultWarning)
        yield view_of(path), reference(path, annotation_of(path))


def close(ours: Any, theirs: Any, atol: float = TIME_US) -> None:
    np.testing.assert_allclose(np.asarray(ours, float), np.asarray(theirs, float), rtol=1e-9, atol=atol)


# --- the same from our frame as from HTA's loader -------------------------------------------------------


def test_frame_is_that_of_the_loader(pair: Any) -> None:
    """A trace -> every row and column HTA's loader has without rounding, times apart by its float alone."""
    view, theirs = pair
    ours = view.trace.traces[0]
    names = view.trace.symbol_table.get_sym_table()
    theirs = theirs["frame"].sort_index()
    assert ours.index.tolist() == theirs.index.tolist()
    assert [names[i] for i in ours["name"]] == theirs["s_name"].tolist()
    assert [names[i] for i in ours["cat"]] == theirs["s_cat"].tolist()
    for column in ("pid", "tid", "stream", "correlation", "index_correlation", "iteration"):
        assert ours[column].tolist() == theirs[column].tolist(), column
    close(ours["ts"], theirs["ts"])
    close(ours["dur"], theirs["dur"], atol=0)
    gpu = ours["stream"].ne(-1)
    assert ours.loc[gpu, "bytes"].tolist() == [int(b) for b in theirs.loc[gpu, "bytes"]]


def test_temporal_breakdown(pair: Any) -> None:
    """A trace -> HTA's idle, compute and other time, to the nanosecond its floats can hold."""
    view, theirs = pair
    close(view.temporal_breakdown(), theirs["temporal"])


def test_idle_time_breakdown(pair: Any) -> None:
    """A trace -> HTA's idle time where nothing overlaps on a stream; else HTA's plus its negative gaps."""
    view, theirs = pair
    ours = view.idle_time_breakdown().groupby("stream")["idle_time"].sum()
    hta = theirs["idle"].groupby("stream")["idle_time"].sum()
    gpu = view.frames[0][view.frames[0]["stream"].ne(-1)].sort_values("ts")
    for stream, rows in gpu.groupby("stream"):
        end = (rows["ts"] + rows["dur"]).to_numpy()
        gaps = rows["ts"].to_numpy()[1:] - end[:-1]
        close(hta[stream], gaps.sum() / 1000, atol=0.02)  # what HTA sums, negative gaps and all
        covered = np.maximum.accumulate(end)[:-1]
        close(ours[stream], np.maximum(rows["ts"].to_numpy()[1:] - covered, 0).sum() / 1000, atol=1e-9)
        if (gaps >= 0).all():
            both = view.idle_time_breakdown().merge(theirs["idle"], on=["stream", "idle_category"])
            both = both[both["stream"].eq(stream)]
            close(both["idle_time_x"], both["idle_time_y"], atol=0.02)


def test_kernel_breakdown(pair: Any) -> None:
    """A trace -> HTA's statistics of each kernel; its time by type only after undoing its truncation."""
    view, theirs = pair
    types, kernels = view.kernel_breakdown()
    hta_types, hta_kernels = theirs["kernels"]
    kernels, hta_kernels = (k.set_index("name").sort_index() for k in (kernels, hta_kernels))
    assert kernels.index.tolist() == hta_kernels.index.tolist()
    for column in ("sum (us)", "max (us)", "min (us)", "mean (us)", "stddev"):
        close(kernels[column], hta_kernels[column], atol=1e-6)
    ours, hta = types.set_index("kernel_type")["sum"], hta_types.set_index("kernel_type")["sum"]
    assert sorted(ours.index) == sorted(hta.index)
    assert (hta <= ours + TIME_US).all()
    union = view.temporal_breakdown().iloc[0]
    close(ours.sum(), union["kernel_time(us)"] - union["idle_time(us)"], atol=1e-6)
    assert hta.sum() < ours.sum()


def test_launch_statistics(pair: Any) -> None:
    """A trace -> HTA's rows, and beside them those of launches whose names HTA does not list."""
    view, theirs = pair
    ours, hta = view.launch_statistics().set_index("correlation"), theirs["launches"].set_index("correlation")
    several = hta.index.duplicated(keep=False)  # HTA repeats a launch for each kernel it owns
    hta = hta[~several]
    assert set(hta.index) <= set(ours.index)
    close(
        ours.loc[hta.index, ["cpu_duration", "gpu_duration"]], hta[["cpu_duration", "gpu_duration"]], atol=0
    )
    close(ours.loc[hta.index, "launch_delay"], hta["launch_delay"])
    frame, names = view.frames[0], list(view.symbols)
    more = frame[frame["correlation"].isin(set(ours.index) - set(hta.index)) & frame["stream"].eq(-1)]
    listed = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync"}
    assert not {names[i] for i in more["name"]} & listed
    linked = frame[frame["stream"].ne(-1)].groupby("index_correlation").size()
    assert len(ours) == int((linked[linked.index > 0] == 1).sum())


def test_queue_length(pair: Any) -> None:
    """A trace -> HTA's queue lengths, with the activities of launches it does not know added."""
    view, theirs = pair
    ours, hta = view.queue_length()["queue_length"], theirs["queue"]
    frame = view.frames[0]
    gpu = frame[frame["stream"].ne(-1) & frame["index_correlation"].gt(0)]
    counts = gpu.groupby("stream").size()
    assert ours["count"].tolist() == [2.0 * counts[stream] for _, stream in ours.index]  # up once, down once
    if not isinstance(hta, pd.DataFrame):  # none of its launches is known to HTA
        return
    for row in hta.index:
        if hta.loc[row, ("queue_length", "count")] == ours.loc[row, "count"]:
            close(ours.loc[row], hta.loc[row, "queue_length"], atol=1e-9)
        else:
            assert hta.loc[row, ("queue_length", "count")] < ours.loc[row, "count"]


def test_memory_bandwidth(pair: Any) -> None:
    """A trace -> HTA's bandwidths; ROCm's own figure is rounded by its producer, ours is bytes over time."""
    view, theirs = pair
    ours, series = view.memory_bandwidth()["memory_bw_gbps"].loc[0], theirs["bandwidth_series"]
    hta = series[series["memory_bw_gbps"] > 1e-9].groupby("name")["memory_bw_gbps"].describe()
    assert ours.index.tolist() == hta.index.tolist()
    np.testing.assert_allclose(ours.to_numpy(), hta.to_numpy(), rtol=1e-3, atol=1e-9)
    if hta["count"].sum() == theirs["bandwidth"]["memory_bw_gbps"]["count"].sum():  # no residue in HTA's own
        np.testing.assert_allclose(ours, theirs["bandwidth"]["memory_bw_gbps"], rtol=1e-3, atol=1e-9)


def test_diff(pair: Any) -> None:
    """A trace with steps -> HTA's TraceDiff; one without -> a refusal where HTA compares nothing."""
    view, theirs = pair
    if not view._steps(0):
        with pytest.raises(HtaFaultError, match="no_steps"):
            view.diff(view)
        return
    ours, hta = view.diff(view), theirs["diff"]
    assert sorted(ours.index) == sorted(hta.index)
    hta = hta.loc[ours.index]
    for mine, his in zip(ours.columns[:-1], hta.columns[:-1], strict=True):
        close(ours[mine], hta[his], atol=1e-6)
    assert ours["counts_change_categories"].tolist() == hta["counts_change_categories"].tolist()
    exact = (
        view.frames[0].loc[view.frames[0]["stream"].ne(-1) & view.frames[0]["iteration"].ge(0), "dur"].sum()
    )
    assert round(ours["control_total_duration"].sum() * 1000) == exact


def test_critical_path(pair: Any) -> None:
    """A window of single launches -> HTA's own path; graph launches in it -> a refusal."""
    view, theirs = pair
    annotation = annotation_of(Path(view.label))
    if "eager" not in view.label and PROBE.name not in view.label:
        with pytest.raises(HtaFaultError, match="graph_path"):
            view.critical_path(annotation)
        return
    ours, hta = view.critical_path(annotation), theirs["path"]
    assert (len(ours.nodes), len(ours.edges)) == (hta["nodes"], hta["edges"])
    rows = ours.get_critical_path_breakdown()
    assert sorted(rows["event_idx"].dropna()) == sorted(hta["rows"]["event_idx"].dropna())
    close(rows["duration"].sum(), hta["rows"]["duration"].sum(), atol=TIME_US * len(rows))


# --- faults of HTA that the bridge sets right -----------------------------------------------------------


def test_nanoseconds_survive(pair: Any) -> None:
    """A trace -> our frame sums to the file's nanoseconds, in integers and again from microseconds."""
    view, _ = pair
    ns, us = view.frames[0], view.trace.traces[0]
    assert (us["dur"] * 1000).round().astype("int64").tolist() == ns["dur"].tolist()
    assert (us["ts"] * 1000).round().astype("int64").tolist() == ns["ts"].tolist()


def test_rounding_loses_kernel_time(folder: Path, reference: Callable[..., Any]) -> None:
    """HTA's default load -> about 1 us less per kernel; our frame -> exactly the file's sum."""
    trace = read_trace(folder / "eager.json")
    total = int(trace.activities[col.DUR_NS].sum())
    frame = to_hta(trace).frames[0]
    assert int(frame.loc[frame["stream"].ne(-1), "dur"].sum()) == total
    rounded = reference(folder / "eager.json", "decode[bs=32]", rounding=True)["frame"]
    lost = total / 1000 - rounded.loc[rounded["stream"].ne(-1), "dur"].sum()
    assert 0.8 * len(trace.activities) < lost < 1.2 * len(trace.activities)


def test_compiled_launch_rows_are_no_kernels(folder: Path, reference: Callable[..., Any]) -> None:
    """CPU rows with ``stream: 0`` -> HTA counts them as kernels, the bridge does not; nothing else differs."""
    view, theirs = (
        view_of(folder / "compiled.json"),
        reference(folder / "compiled.json", "decode[bs=32]")["frame"],
    )
    ours, theirs = view.frames[0], theirs.sort_index()
    differ = theirs[ours["stream"].to_numpy() != theirs["stream"].to_numpy()]
    assert len(differ) == 2 * sum(t["s_name"].startswith("triton_") for _, t in differ.iterrows()) / 2 > 0
    assert set(differ["s_cat"]) == {"cpu_op"}
    assert set(differ["stream"]) == {0}
    assert len(ours[ours["stream"].ne(-1)]) + len(differ) == len(theirs[theirs["stream"].ne(-1)])
    ours_by_name = view.kernel_breakdown(include_memory=False)[1].set_index("name")["mean (us)"]
    hta_by_name = reference(folder / "compiled.json", "decode[bs=32]")["kernels"][1].set_index("name")[
        "mean (us)"
    ]
    name = next(n for n in ours_by_name.index if n.startswith("triton_"))
    assert hta_by_name[name] > 2 * ours_by_name[name]


def test_statistics_of_each_kernel(folder: Path, reference: Callable[..., Any]) -> None:
    """More kernels than HTA's num_kernels -> HTA gives sums as maxima and hides the tail, the bridge does not."""
    hta = reference(folder / "eager.json", "decode[bs=32]")["kernels_default"][1]
    assert (hta["max (us)"] == hta["sum (us)"]).any()
    assert "others" in set(hta["name"])
    trace = read_trace(folder / "eager.json")
    ours = to_hta(trace).kernel_breakdown()[1].set_index("name")
    expected = trace.activities.groupby(col.NAME, observed=True)[col.DUR_NS].agg(["sum", "max", "min"]) / 1000
    for column in ("sum", "max", "min"):
        close(ours[f"{column} (us)"].loc[expected.index], expected[column], atol=1e-9)


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    """Two steps, the GPU behind the CPU; kernels on stream 0; copies that overlap and end apart."""
    t = KinetoTrace()
    t.step(0, 0, 100)
    t.step(1, 100, 100)
    for at, stream in ((10, 7), (110, 0), (120, 7)):
        t.eager("gemm", 5, at=at, delay=45, stream=stream)
    for at, size, stream in ((60, 1002, 7), (61, 2007, 9)):
        n = t.next_id()
        t.launch(at, correlation=n, name="cudaMemcpyAsync")
        t.memcpy(
            at + 60, 7.001, size, stream=stream, correlation=n, **{"memory bandwidth (GB/s)": size / 7001}
        )
    t.annotation("ProfilerStep#0", 50, 90, gpu=True)
    t.annotation("ProfilerStep#1", 140, 60, gpu=True)
    return t.write(tmp_path / "awkward.json")


def test_steps_of_rows(awkward: Path, reference: Callable[..., Any]) -> None:
    """The GPU one step behind, stream 0 -> HTA misplaces CPU rows and loses stream 0; the bridge does not."""
    hta, ours = reference(awkward, "")["frame"].sort_index(), to_hta(read_trace(awkward)).frames[0]
    start = ours["ts"] / 1000
    cpu = ours["stream"].eq(-1) & hta["s_cat"].ne("gpu_user_annotation")
    assert ours.loc[cpu, "iteration"].tolist() == (start[cpu] >= 100).astype(int).tolist()
    assert (hta.loc[cpu, "iteration"].to_numpy() != ours.loc[cpu, "iteration"].to_numpy()).any()
    kernels = ours[ours["stream"].ne(-1)]
    assert kernels["iteration"].tolist() == [0, 1, 1, 0, 0]
    assert hta.loc[kernels.index[kernels["stream"].eq(0)], "iteration"].isna().all()


def test_no_residual_bandwidth(awkward: Path, reference: Callable[..., Any]) -> None:
    """Overlapping copies -> HTA samples a residue of 6e-17 GB/s; the bridge samples copies alone."""
    assert 0 < reference(awkward, "")["bandwidth"]["memory_bw_gbps"]["min"].min() < 1e-12
    ours = to_hta(read_trace(awkward)).memory_bandwidth()
    assert ours is not None
    assert ours["memory_bw_gbps"]["min"].min() > 0.1


def test_clipping_keeps_the_union(folder: Path) -> None:
    """Kernels that overlap on a stream -> the idle time is that of their union."""
    view = view_of(folder / "graph.json")
    temporal = view.temporal_breakdown().iloc[0]
    close(view.idle_time_breakdown()["idle_time"].sum(), temporal["idle_time(us)"], atol=1e-6)


def test_ranks_stay_apart(tmp_path: Path) -> None:
    """Two ranks -> two rows of everything, times from the earliest event of both; one rank twice -> an error."""
    traces = []
    for rank in (0, 1):
        generate(tmp_path / f"{rank}.json", Plan(30, 2, world_size=2, rank=rank))
        traces.append(read_trace(tmp_path / f"{rank}.json"))
    view = to_hta(traces)
    assert view.ranks == (0, 1)
    assert view.temporal_breakdown()["rank"].tolist() == [0, 1]
    types, kernels = view.kernel_breakdown()
    assert types.groupby("rank")["percentage"].sum().round().tolist() == [100, 100]
    for trace, rank in zip(traces, (0, 1), strict=True):
        summed = kernels.loc[kernels["rank"].eq(rank), "sum (us)"].sum()
        assert round(summed * 1000) == int(trace.activities[col.DUR_NS].sum())
    with pytest.raises(HtaDsv4Error, match="name one of the ranks 0, 1"):
        view.queue_length()
    assert view.queue_length(1) is not None
    with pytest.raises(HtaDsv4Error, match="rank 0 is also that of"):
        to_hta([traces[0], traces[0]])


# --- faults it warns of or refuses ----------------------------------------------------------------------


def case(name: str) -> HtaView:
    return to_hta(read_trace(CASES / name))


def test_no_gpu_is_refused() -> None:
    """A CPU-only trace -> a reason instead of HTA's IndexError, from every analysis."""
    view = case("25c-cpu-only.json")
    for call in (
        view.temporal_breakdown, view.idle_time_breakdown, view.kernel_breakdown, view.launch_statistics,
        view.queue_length, view.memory_bandwidth, view.critical_path,
    ):  # fmt: skip
        with pytest.raises(HtaFaultError, match=r"25c-cpu-only.json, rank 0: none of its .*no_gpu"):
            call()


def test_two_devices_are_refused() -> None:
    """Two GPUs in one process -> analyses that would merge them are refused; per-kernel totals are not."""
    view = case("36-two-gpus-one-process.json")
    for call in (view.temporal_breakdown, view.idle_time_breakdown, view.queue_length):
        with pytest.raises(HtaFaultError, match="devices 0, 1"):
            call()
    assert view.kernel_breakdown()[1]["sum (us)"].sum() == 50


def test_graph_launches_are_counted(folder: Path) -> None:
    """Graph launches -> launch statistics leave them out and say how many activities that is."""
    view = view_of(folder / "graph.json")
    with pytest.warns(HtaFaultWarning, match=r"3 launches own 252 activities \([\d,.]+ us\)"):
        assert len(view.launch_statistics()) == 0


def test_other_kernel_types(tmp_path: Path) -> None:
    """Kernels HTA types by the wrong pattern -> a warning with their time; fused glue is not among them."""
    t = KinetoTrace()
    t.eager("vllm::cross_device_reduce_1stage<half, 4>", 10, at=0)
    t.eager("dma_like_gather", 5, at=50)
    t.eager("triton_poi_fused_add_all_reduce_1", 3, at=100)
    t.eager("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, at=150)
    view = to_hta(read_trace(t.write(tmp_path / "t.json")))
    with pytest.warns(HtaFaultWarning, match=r"15\.000 us in 2 names .*'vllm::cross_device_reduce"):
        view.temporal_breakdown()


def test_diff_says_what_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    """Work outside steps, unequal steps, shared names, unknown steps -> warnings with amounts, refusals."""
    t = KinetoTrace()
    t.step(0, 0, 50)
    t.eager("gemm", 5, at=10)
    t.eager("gemm", 7, at=60)
    outside = to_hta(read_trace(t.write(tmp_path / "t.json")))
    with pytest.warns(HtaFaultWarning, match=r"1 activities \(7\.000 us\) are launched outside"):
        result = outside.diff(outside)
    assert result.loc["gemm", "control_total_duration"] == 5
    eager, compiled = view_of(folder / "eager.json"), view_of(folder / "compiled.json")
    with pytest.warns(HtaFaultWarning, match="3 steps against 2"):
        eager.diff(compiled)
    with pytest.raises(HtaFaultError, match="1 names are both of a CPU row and of a kernel, 'triton_poi"):
        compiled.diff(compiled, device="all")
    with pytest.raises(HtaFaultError, match="no ProfilerStep#99"):
        eager.diff(eager, steps=([99], [3]))
    one = eager.diff(eager, steps=([3], [4]))
    assert set(one["diff_counts"]) == {0}
    assert one["diff_duration"].abs().sum() > 0


def test_window_is_made_of_annotations(folder: Path, reference: Callable[..., Any]) -> None:
    """An annotation whose text is in kernel names too -> HTA's window is a kernel's, the bridge's is right."""
    view = view_of(folder / "eager.json")
    right = reference(folder / "eager.json", "decode[bs=32]")["path"]["nodes"]
    with pytest.warns(HtaFaultWarning):
        assert len(view.critical_path("decode").nodes) == right
    assert reference(folder / "eager.json", "decode")["path"]["nodes"] < right / 10


def test_critical_path_says_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    """No cuda_sync rows, kernels without a launch -> warnings; no such annotation -> an error."""
    view = view_of(folder / "eager.json")
    with pytest.warns(HtaFaultWarning, match="no cuda_sync rows"):
        view.critical_path("decode", 1)
    with (
        pytest.raises(HtaDsv4Error, match="no annotation has 'prefill'"),
        pytest.warns(HtaFaultWarning),
    ):
        view.critical_path("prefill")
    t = KinetoTrace()
    t.step(0, 0, 200)
    t.eager("gemm", 5, at=10)
    t.eager("gemm", 5, at=60)
    t.kernel("lost", 40, 3, correlation=99)
    with pytest.warns(HtaFaultWarning, match=r"1 activities \(3\.000 us\) have no launch row"):
        to_hta(read_trace(t.write(tmp_path / "t.json"))).critical_path()


def test_activities_alone(folder: Path) -> None:
    """Read without the CPU side -> the GPU-only analyses still work, and exactly."""
    trace = read_trace(folder / "eager.json", cpu=False)
    view = to_hta(trace)
    whole = view_of(folder / "eager.json")
    pd.testing.assert_frame_equal(view.temporal_breakdown(), whole.temporal_breakdown())
    pd.testing.assert_frame_equal(view.kernel_breakdown()[1], whole.kernel_breakdown()[1])


def test_salvaged_is_labelled(tmp_path: Path) -> None:
    """A cut trace, salvaged -> a warning, and a label that every message carries."""
    path = tmp_path / "cut.json"
    generate(path, Plan(40, 2))
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10])
    with pytest.warns(HtaFaultWarning, match="every result is partial"):
        view = to_hta(read_trace(path, salvage=True))
    assert view.label.endswith("cut.json (partial)")
    assert len(view.temporal_breakdown()) == 1


def test_analysis_is_htas_own(folder: Path) -> None:
    """``view.analysis`` -> HTA's TraceAnalysis, whose other analyses run on the same frames."""
    analysis = view_of(folder / "eager.json").analysis
    assert type(analysis).__module__ == "hta.trace_analysis"
    annotations = analysis.get_gpu_user_annotation_breakdown(visualize=False)
    assert {"decode[bs=32]", "ProfilerStep#3"} <= set(annotations["name"])


def test_known_faults_are_complete() -> None:
    """The table of faults -> unique keys, methods that exist, and a remedy wherever nothing is corrected."""
    assert len({fault.key for fault in KNOWN_FAULTS}) == len(KNOWN_FAULTS)
    for fault in KNOWN_FAULTS:
        assert fault.treatment is Treatment.CORRECTED or fault.instead
        for analysis in fault.analyses:
            offered = analysis == "*" or callable(getattr(HtaView, analysis, None))
            assert offered is (fault.treatment is not Treatment.NOT_OFFERED), analysis


def test_hta_is_imported_late() -> None:
    """Importing the bridge and building a view -> HTA, plotly and networkx are not yet imported."""
    code = (
        "import sys; from hta_dsv4.trace.hta import to_hta; from hta_dsv4.trace.reader import read_trace;"
        f"to_hta(read_trace({str(CASES / '00-baseline.json')!r}));"
        "import json; print(json.dumps([m for m in ('hta', 'plotly', 'networkx') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == []
