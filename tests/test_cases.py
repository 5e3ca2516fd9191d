"""The synthetic cases, each with its worked-out answer in cases/EXPECT.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hta_dsv4.errors import TraceError
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.reader import read_trace
from tests.conftest import CASES

EXPECT: dict[str, dict[str, Any]] = json.loads((CASES / "EXPECT.json").read_text())
VALID = {k: v for k, v in EXPECT.items() if not v.get("invalid") and not v.get("not_trace")}
LENIENT = {k: v["lenient"] for k, v in EXPECT.items() if "lenient" in v}


def ns(us: float) -> int:
    return round(us * 1000)


def check(trace: Trace, want: dict[str, Any]) -> None:
    a = trace.activities
    kernels = a[a["kind"] == "kernel"]
    assert len(kernels) == want["n_kernel"]
    assert int(kernels["dur_ns"].sum()) == ns(want["kernel_us"])
    for name, (count, us) in want.get("by", {}).items():
        own = kernels[kernels["name"] == name]
        assert (name, len(own), int(own["dur_ns"].sum())) == (name, count, ns(us))
    if "memcpy" in want:
        copies = a[a["kind"] == "memcpy"]
        assert (len(copies), int(copies["dur_ns"].sum())) == (want["memcpy"][0], ns(want["memcpy"][1]))
    if "gpu_span_us" in want:
        assert int((a["start_ns"] + a["dur_ns"]).max() - a["start_ns"].min()) == ns(want["gpu_span_us"])
    if "linked_kernels" in want:
        assert int(kernels["launch_name"].notna().sum()) == want["linked_kernels"]


def test_every_case_is_listed():
    """A case file -> has its answer, and every answer has its file."""
    files = {p.name for p in CASES.iterdir()} - {"CASES.md", "EXPECT.json"}
    assert files == set(EXPECT)


@pytest.mark.parametrize("cpu", [True, False], ids=["cpu", "gpu_only"])
@pytest.mark.parametrize("name", VALID)
def test_valid_case_is_exact(name, cpu):
    """A valid case -> the kernels, times and copies worked out by hand."""
    trace = read_trace(CASES / name, cpu=cpu)
    want = dict(VALID[name]) if cpu else {k: v for k, v in VALID[name].items() if k != "linked_kernels"}
    check(trace, want)
    assert not trace.partial


@pytest.mark.parametrize("name", LENIENT)
def test_repairable_case_is_exact_and_says_so(name):
    """A fault with one possible meaning -> the right numbers and a warning."""
    trace = read_trace(CASES / name)
    check(trace, LENIENT[name])
    assert len(trace.warnings) == 1
    assert not trace.partial


def test_truncated_case_is_an_error_at_its_end():
    """A file cut inside a name -> an error that says truncated and gives the byte."""
    with pytest.raises(TraceError, match=r"01-trunc.*truncated.*byte 2483.*--salvage"):
        read_trace(CASES / "01-truncated-mid-string.json")


def test_truncated_case_is_salvaged_as_partial():
    """The same with salvage -> the two whole kernels, marked partial."""
    trace = read_trace(CASES / "01-truncated-mid-string.json", salvage=True)
    check(trace, EXPECT["01-truncated-mid-string.json"]["salvage"])
    assert trace.partial
    assert any("salvaged" in w for w in trace.warnings)


@pytest.mark.parametrize(
    ("name", "words"),
    [("25d-empty-file.json", "empty file"), ("25e-not-a-trace.json", 'not a trace: no "traceEvents"')],
)
def test_hopeless_case_is_one_clear_line(name, words):
    """Nothing to read -> one line that names the file and the reason."""
    with pytest.raises(TraceError) as error:
        read_trace(CASES / name)
    assert words in str(error.value)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("25a-metadata-only.json", "no GPU activity"),
        ("25b-empty-traceEvents.json", "traceEvents is empty"),
        ("25c-cpu-only.json", "CPU-only trace"),
        ("15-duration-overruns-next.json", "ew_copy at 1020.000 us for 1600000.000 us"),
        ("28-no-dur-null-args.json", "2 activities without duration"),
        ("28-no-dur-null-args.json", "be_kernel"),
        ("08b-Infinity-NaN.json", "2 Infinity or NaN"),
        ("05-unescaped-quote.json", "line 269"),
    ],
)
def test_what_is_odd_is_said(name, words):
    """An odd but readable trace -> a warning naming what is odd."""
    assert words in " | ".join(read_trace(CASES / name).warnings)


def test_merged_ranks_are_never_joined_across():
    """Two ranks with equal correlations in one file -> each kernel has its own rank's launch."""
    trace = read_trace(CASES / "26-merged-ranks-TP.json")
    assert trace.meta.rank_labels == {0: "TP00", 1: "TP01"}
    assert trace.meta.rank_known
    a, e = trace.activities, trace.events.set_index("event_index")
    assert a.groupby("rank")["dur_ns"].sum().to_dict() == {0: 30_000, 1: 30_000}
    assert (e.loc[a["launch_index"].astype(int), "rank"].to_numpy() == a["rank"].to_numpy()).all()


def test_graph_kernels_share_a_launch_and_have_no_op():
    """Two replays of four kernels -> nine rows still, eight with cudaGraphLaunch, none with an op."""
    a = read_trace(CASES / "19-cuda-graph-shared-correlation.json").activities
    replayed = a[a["launch_name"] == "cudaGraphLaunch"]
    assert len(a) == 9
    assert len(replayed) == 8
    assert replayed["op"].isna().all()
    assert replayed["graph_node"].tolist() == [11, 12, 13, 14] * 2


def test_hostile_names_are_kept_to_the_letter():
    """Names with quotes, markup, 5,000 letters -> the very names of the file."""
    names = [e["name"] for e in json.loads((CASES / "37-hostile-kernel-names.json").read_text())["traceEvents"]
             if e.get("cat") == "kernel"]  # fmt: skip
    assert sorted(read_trace(CASES / "37-hostile-kernel-names.json").activities["name"]) == sorted(names)


def test_same_stream_on_two_devices_stays_apart():
    """Stream 7 on GPU 0 and GPU 1 -> told apart by device."""
    a = read_trace(CASES / "36-two-gpus-one-process.json").activities
    assert a.groupby(["device", "stream"])["dur_ns"].sum().to_dict() == {(0, 7): 10_000, (1, 7): 40_000}


def test_rocm_stream_zero_is_a_stream():
    """Kernels on stream 0 of a nameless device -> kept, device name unknown."""
    trace = read_trace(CASES / "30-rocm-stream-zero.json")
    assert trace.activities["stream"].tolist() == [0, 0]
    assert trace.meta.devices[0].name is None
    assert set(trace.activities["launch_name"]) == {"hipLaunchKernel", "hipExtModuleLaunchKernel"}
