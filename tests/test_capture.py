"""The capture wrapper: what it leaves behind, and that it leaves nothing half done."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hta_dsv4.capture import campaign, profiler, tracefile  # noqa: E402
from hta_dsv4.capture.command import CaptureOptions, run_capture  # noqa: E402
from hta_dsv4.capture.config import TINY, LayerKind, StepShape  # noqa: E402
from hta_dsv4.capture.launch import CompileReport, as_compiled, as_cuda_graph  # noqa: E402
from hta_dsv4.capture.manifest import (  # noqa: E402
    Manifest,
    Timing,
    manifest_for,
    manifest_path,
    read_folder_manifest,
    write_folder_manifest,
    write_manifest,
)
from hta_dsv4.capture.profiler import DecodeCapture, capture_decode  # noqa: E402
from hta_dsv4.capture.scopes import profiler_on, scope  # noqa: E402
from hta_dsv4.capture.switches import Switches  # noqa: E402
from hta_dsv4.capture.tracefile import keep_trace  # noqa: E402
from hta_dsv4.capture.workload import DecodeStep  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402

torch.set_num_threads(1)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def decode() -> None:
    """Stands for a user's decode step."""
    with scope("layer.0/attention/core"):
        torch.ones(8, 8) @ torch.ones(8, 8)


def capture(out: Path, fn: Callable[[], object] = decode, **options: Any) -> profiler.CaptureResult:
    """Capture on the CPU, few steps."""
    settings: dict[str, Any] = {
        "steps": 2, "warmup": 1, "baseline": 3, "variant": "mine", "concurrency": 4, "require_cuda": False,
    }  # fmt: skip
    return capture_decode(fn, out=out, **(settings | options))


def events_of(trace: Path) -> list[dict[str, Any]]:
    """Events of a kept trace."""
    with gzip.open(trace, "rt", encoding="utf-8") as f:
        events: list[dict[str, Any]] = json.load(f)["traceEvents"]
    return events


# --- what a capture leaves --------------------------------------------------------------------------------------


def test_capture_leaves_trace_and_manifest_and_nothing_else(tmp_path: Path) -> None:
    """A capture -> two files; the trace holds the asked steps with scopes and shapes."""
    result = capture(tmp_path / "deep" / "mine")
    assert sorted(p.name for p in result.trace.parent.iterdir()) == [
        "mine.manifest.toml",
        "mine.trace.json.gz",
    ]
    events = events_of(result.trace)
    assert sum(str(e.get("name")).startswith("ProfilerStep#") for e in events) == 2
    assert sum(e.get("name") == "layer.0/attention/core" for e in events) == 2
    products = [e for e in events if e.get("name") == "aten::mm"]
    assert [e["args"]["Input Dims"][:2] for e in products] == [[[8, 8], [8, 8]]] * 2


def test_manifest_says_what_was_captured(tmp_path: Path) -> None:
    """The manifest beside a trace -> variant, sizes, times before and under the profiler, versions."""
    result = capture(tmp_path / "mine", details={"notes": ["first", 'with "quotes" and \x7f'], "context": 7})
    found = manifest_for(result.trace)
    assert found is not None
    assert found.as_dict() == result.manifest.as_dict()
    assert (found.variant, found.concurrency, found.steps, found.context) == ("mine", 4, 2, 7)
    assert found.notes == ["first", 'with "quotes" and \x7f']
    t = found.timing
    assert t.unprofiled_steps == 3
    assert 0 < t.unprofiled_min_ms <= t.unprofiled_step_ms <= t.unprofiled_max_ms
    assert t.profiler_overhead == pytest.approx(
        t.profiled_step_ms / t.unprofiled_step_ms - 1, abs=2e-3, rel=2e-2
    )
    assert t.tokens_per_s == pytest.approx(4 / t.unprofiled_step_ms * 1e3, rel=1e-2)
    assert found.versions["torch"] == torch.__version__


def test_calls_are_warmup_timed_and_profiled_steps(tmp_path: Path) -> None:
    """Warm-up 1, timed 3, recorded 2 -> the function runs 8 times, two of them for the profiler's own warm-up."""
    calls = []
    capture(tmp_path / "mine", fn=lambda: calls.append(profiler_on()))
    assert len(calls) == 8
    assert calls[:4] == [False] * 4  # the timed steps see no profiler
    assert calls[6:] == [True] * 2


def test_companion_is_captured_eagerly_beside(tmp_path: Path) -> None:
    """A companion function -> a second trace and manifest, each naming the other's part."""
    result = capture(tmp_path / "graph", companion=decode)
    assert result.companion is not None
    assert result.manifest.companion == "graph_eager.trace.json.gz" == result.companion.trace.name
    assert result.companion.manifest.launch == "eager"
    assert "graph.trace.json.gz" in result.companion.manifest.notes[0]
    assert len(list(tmp_path.iterdir())) == 4


def test_stacks_on_request(tmp_path: Path) -> None:
    """with_stack -> Python frames are there, and no path of this machine is in them."""
    result = capture(tmp_path / "mine", with_stack=True)
    text = gzip.decompress(result.trace.read_bytes()).decode()
    assert '"python_function"' in text
    assert os.getcwd() + "/" not in text
    assert str(Path(torch.__file__).parents[1]) + "/" not in text


def test_own_loop(tmp_path: Path) -> None:
    """A user's own loop around the context manager -> the same files as the function form."""
    with DecodeCapture(
        out=tmp_path / "loop",
        variant="mine",
        concurrency=1,
        steps=1,
        warmup=0,
        baseline=1,
        require_cuda=False,
    ) as cap:
        made = 0
        while not cap.done:
            decode()
            cap.step()
            made += 1
    assert made == cap.total == 4
    assert cap.result.trace.is_file()


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_loop_too_short(tmp_path: Path) -> None:
    """The user's loop ends early -> an error with both counts, and no file."""
    cap = DecodeCapture(out=tmp_path / "x", variant="v", concurrency=1, steps=2, require_cuda=False)
    with pytest.raises(HtaDsv4Error, match="after 1 of 17 steps"), cap:
        cap.step()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing_call", [0, 2, 5, 7])
def test_a_failing_step_leaves_no_file_and_no_profiler(tmp_path: Path, failing_call: int) -> None:
    """The step raises in any phase -> its own exception comes out, nothing is left, the next capture works."""
    calls = iter(range(100))

    def fn() -> None:
        if next(calls) == failing_call:
            raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        capture(tmp_path / "x", fn=fn)
    assert list(tmp_path.iterdir()) == []
    assert not profiler_on()
    assert capture(tmp_path / "x").trace.is_file()


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"steps": -1}, {"baseline": 0}, {"warmup": -1}, {"concurrency": 0}]
)
def test_counts_that_make_no_capture(tmp_path: Path, bad: dict[str, int]) -> None:
    """Zero steps and the like -> an error naming the option and its value."""
    with pytest.raises(HtaDsv4Error, match=str(next(iter(bad.values())))):
        capture(tmp_path / "x", **bad)


def test_profiler_already_running(tmp_path: Path) -> None:
    """Another torch profiler is on -> an error before the step runs."""
    with torch.profiler.profile(), pytest.raises(HtaDsv4Error, match="already running"):
        capture(tmp_path / "x")


def test_out_is_no_place_for_a_file(tmp_path: Path) -> None:
    """--out below a file, or a folder itself -> one line naming it and the remedy, before any work."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.gz").mkdir()
    for out in (tmp_path / "file" / "x", tmp_path / "folder.gz"):
        with pytest.raises(HtaDsv4Error, match="--out") as caught:
            capture(out, fn=lambda: pytest.fail("the step must not run"))
        assert str(out) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_disk_full_while_keeping_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for the final file -> an error saying so; the old file of that name is whole, nothing is left over."""
    old = capture(tmp_path / "x").trace.read_bytes()

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HtaDsv4Error, match="No space left"):
        capture(tmp_path / "x")
    assert (tmp_path / "x.trace.json.gz").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.manifest.toml", "x.trace.json.gz"]


def test_profilers_file_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler's own file ends early (disk full there) -> an error asking about the disk, no file left."""
    export = profiler.DecodeCapture._export

    def cut(self: DecodeCapture, finished: Any) -> None:
        export(self, finished)
        with self._raw.open("r+b") as f:
            f.truncate(self._raw.stat().st_size // 2)

    monkeypatch.setattr(profiler.DecodeCapture, "_export", cut)
    with pytest.raises(HtaDsv4Error, match="disk full"):
        capture(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@needs_no_gpu
def test_no_gpu_names_the_shipped_traces(tmp_path: Path) -> None:
    """No GPU -> one line saying so and where the shipped traces are; an existing folder."""
    for call in (lambda: capture(tmp_path / "x", require_cuda=True), lambda: run_capture(CaptureOptions())):
        with pytest.raises(HtaDsv4Error, match="no CUDA device") as caught:
            call()
        message = str(caught.value)
        assert "\n" not in message
        assert Path(message.rsplit(" ", 1)[1]).is_dir()


def test_result_before_the_end(tmp_path: Path) -> None:
    """.result inside the block -> an error, not half a result."""
    cap = DecodeCapture(out=tmp_path / "x", variant="v", concurrency=1, require_cuda=False)
    with pytest.raises(HtaDsv4Error, match="not finished"):
        _ = cap.result


# --- the kept file ----------------------------------------------------------------------------------------------

LAUNCHED = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.5, "args": {"name": "/somewhere/python"}},
    {"ph": "X", "cat": "user_annotation", "name": "layer.3/indexer/logits", "pid": 1, "tid": 1, "ts": 10, "dur": 50},
    {"ph": "X", "cat": "cpu_op", "name": "aten::bmm", "pid": 1, "tid": 1, "ts": 11.25, "dur": 20,
     "args": {"Ev Idx": 3}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::view", "pid": 1, "tid": 1, "ts": 40, "dur": 1, "args": {}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 12, "dur": 3,
     "args": {"correlation": 77}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaFuncGetAttributes", "pid": 1, "tid": 1, "ts": 16, "dur": 1,
     "args": {"correlation": 78}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1, "tid": 1, "ts": 70, "dur": 1,
     "args": {"correlation": 79}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 77, "pid": 1, "tid": 1, "ts": 12},
    {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 30, "dur": 4.5,
     "args": {"correlation": 77}},
    {"ph": "X", "cat": "kernel", "name": "orphan", "pid": 0, "tid": 7, "ts": 60, "dur": 0.001, "args": {}},
]  # fmt: skip


def kept(tmp_path: Path, text: str, slim: Any = "") -> tuple[str, tracefile.Summary]:
    """Keep a raw trace; its text and summary."""
    raw = tmp_path / "raw.json"
    raw.write_text(text)
    summary = keep_trace(raw, tmp_path / "out.json", slim=slim)
    return (tmp_path / "out.json").read_text(), summary


@pytest.mark.parametrize(
    "number", ["5106093298343.101", "90000000000000.123", "0.001", "123456789012345678.5", "1e-7"]
)
def test_numbers_survive_to_the_last_digit(tmp_path: Path, number: str) -> None:
    """Any timestamp, also one a double cannot hold -> the same number in the kept file."""
    text, _ = kept(tmp_path, f'{{"traceEvents": [{{"ph": "i", "ts": {number}, "name": "x"}}]}}')
    found = json.loads(text, parse_float=Decimal)["traceEvents"][0]["ts"]
    assert found == Decimal(number)


def test_summary_is_exact_and_by_scope(tmp_path: Path) -> None:
    """Two activities, one launched inside a scope -> counts, exact sum, share of the scope without its layer."""
    _, summary = kept(tmp_path, json.dumps({"traceEvents": LAUNCHED}))
    assert (summary.activities, summary.launches, summary.activity_ns) == (2, 1, 4501)
    assert summary.scope_ns == {"indexer/logits": 4500, "": 1}


@pytest.mark.parametrize(("slim", "arrows"), [("all", 1), ("flows", 0)])
def test_slimming_keeps_what_launched(tmp_path: Path, slim: str, arrows: int) -> None:
    """Slim -> operators and calls that launched nothing go; launches, waits and activities stay; it is said."""
    text, summary = kept(tmp_path, json.dumps({"traceEvents": LAUNCHED}), slim)
    events = json.loads(text)["traceEvents"]
    names = [e["name"] for e in events]
    assert [n for n in names if n.startswith("aten")] == ["aten::bmm"]
    assert "cudaFuncGetAttributes" not in names
    assert {"cudaLaunchKernel", "cudaDeviceSynchronize", "sgemm", "orphan"} <= set(names)
    assert names.count("ac2g") == arrows
    assert "Ev Idx" not in text
    assert any("slimmed" in sentence for sentence in summary.removed)
    assert any("flow arrows" in sentence for sentence in summary.removed) == (slim == "flows")


def test_names_of_the_machine_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host name, user and paths in metadata -> replaced; kernel names that contain the host name stay."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpubox17")
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("HOME", "/home/alice")
    trace = {
        "traceName": "/home/alice/x.json", "host_name": "gpubox17", "distributedInfo": {"node": "gpubox17", "rank": 3},
        "traceEvents": [
            {"ph": "M", "name": "process_labels", "args": {"labels": "gpubox17 alice python"}},
            {"ph": "X", "cat": "python_function", "name": "/home/alice/code/run.py(3): main", "ts": 1, "dur": 1},
            {"ph": "X", "cat": "kernel", "name": "gpubox17_kernel", "ts": 1, "dur": 1, "args": {}},
        ],
    }  # fmt: skip
    text, _ = kept(tmp_path, json.dumps(trace))
    found = json.loads(text)
    assert found["traceName"] == "out.json"
    assert found["host_name"] == "host"
    assert found["distributedInfo"] == {"node": "host", "rank": 3}
    assert found["traceEvents"][0]["args"]["labels"] == "host user python"
    assert found["traceEvents"][1]["name"] == "~/code/run.py(3): main"
    assert found["traceEvents"][2]["name"] == "gpubox17_kernel"


# --- manifests --------------------------------------------------------------------------------------------------

TIMING = Timing(2.0, 8, 1.9, 2.2, 2.5, 0.25, 16000.0, 1.5, 100.0, 90.0)
MANIFEST = Manifest(
    trace="a.trace.json.gz", variant="a", concurrency=32, steps=2, warmup=9, captured_at="2026-01-01T00:00:00+00:00",
    timing=TIMING, switches={"attention": "mma"}, device={"name": "NVIDIA H200", "sms": 132}, removed=["x"],
)  # fmt: skip


def test_folder_manifest_round_trip(tmp_path: Path) -> None:
    """Two captures in one manifest.toml -> read back equal and found by trace name; a stranger is not."""
    both = [MANIFEST, replace(MANIFEST, trace="b.trace.json.gz", variant="b")]
    path = write_folder_manifest(tmp_path, both, notes=["about all"])
    assert [m.as_dict() for m in read_folder_manifest(path)] == [m.as_dict() for m in both]
    found = manifest_for(tmp_path / "b.trace.json.gz")
    assert found is not None
    assert found.variant == "b"
    assert manifest_for(tmp_path / "c.trace.json.gz") is None


def test_own_manifest_comes_before_the_folders(tmp_path: Path) -> None:
    """A trace with both -> its own file is believed."""
    write_folder_manifest(tmp_path, [MANIFEST])
    trace = tmp_path / MANIFEST.trace
    write_manifest(trace, replace(MANIFEST, variant="newer"))
    assert manifest_path(trace).name == "a.manifest.toml"
    found = manifest_for(trace)
    assert found is not None
    assert found.variant == "newer"


@pytest.mark.parametrize("text", ["not = = toml", "a = 1\n", "[[trace]]\ntrace = 'x'\n", "\xff"])
def test_broken_manifest(tmp_path: Path, text: str) -> None:
    """A manifest that cannot be used -> one line naming the file."""
    path = tmp_path / "manifest.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(HtaDsv4Error, match=r"manifest\.toml"):
        read_folder_manifest(path)


# --- scopes and launch modes ------------------------------------------------------------------------------------


def test_scopes_cost_nothing_without_a_profiler() -> None:
    """No profiler -> the same do-nothing object each time; under one -> a range of that name."""
    assert scope("a") is scope("b")
    with torch.profiler.profile() as p:
        assert scope("a") is not scope("b")
        decode()
    assert "layer.0/attention/core" in {e.name for e in p.events()}


@needs_no_gpu
def test_cuda_graph_without_a_gpu() -> None:
    """launch=cuda_graph on a CPU -> one line with the remedy."""
    with pytest.raises(HtaDsv4Error, match="launch=eager"):
        as_cuda_graph(decode)


def test_compile_reports_where_the_graph_breaks() -> None:
    """A step that prints between two parts -> compiled around it, and the report says where and how often."""

    def step() -> torch.Tensor:
        y = torch.ones(4) * 2
        torch._dynamo.graph_break("a reason of ours")
        return y + 1

    compiled, report = as_compiled(step, backend="eager")
    assert torch.equal(compiled(), torch.full((4,), 3.0))
    assert report.graphs == 2
    assert len(report.breaks) == 1
    assert "2 graphs" in report.lines[0]
    assert "a reason of ours" in report.lines[1]
    assert "\n" not in "".join(report.lines)


@pytest.mark.filterwarnings("ignore:Dynamo does not know:UserWarning")  # the report is where breaks are told
def test_whole_tiny_step_compiles_to_the_same_numbers() -> None:
    """The tiny step through torch.compile's tracer -> the eager step's logits, and a report of its graphs."""
    cpu = Switches(attention="reference", moe="torch", gemm="bf16", glue="torch")
    shape = StepShape(2, 300, 512)
    small = replace(TINY, layers=(LayerKind.C4,), experts=4, experts_per_token=2, sinkhorn_iters=2)
    eager, traced = (DecodeStep(small, shape, cpu, "cpu") for _ in range(2))
    compiled, report = as_compiled(traced, backend="eager")
    eager()
    assert eager.logits is not None
    assert traced.logits is not None
    torch.testing.assert_close(traced.logits, eager.logits, atol=1e-2, rtol=1e-2)
    compiled()
    assert isinstance(report, CompileReport)
    assert report.graphs >= 1
    assert report.operators > 100


# --- command and campaign ---------------------------------------------------------------------------------------


def test_command_on_the_cpu(tmp_path: Path) -> None:
    """run_capture of the tiny model on the CPU -> every part's scope in the trace, switches in the manifest."""
    options = CaptureOptions(
        variant="mma", concurrency=2, config="tiny", context=300, max_context=512, steps=1, warmup=1, baseline=1,
        out=tmp_path, device="cpu",
    )  # fmt: skip
    said: list[str] = []
    result = run_capture(options, said.append)
    assert result.trace == tmp_path / "mma_c2.trace.json.gz"
    assert result.manifest.switches["attention"] == "reference"  # what ran, not what was wished for
    assert result.manifest.workload["layers"] == 5
    names = [str(e.get("name")) for e in events_of(result.trace) if e.get("cat") == "user_annotation"]
    assert names.count("layer.2/indexer/logits") == 1
    assert sum(n.endswith("/indexer/logits") for n in names) == 2
    assert sum("/mhc_pre/" in n for n in names) == 10
    assert sum(n.endswith("/attention/core") for n in names) == 5
    assert sum(n.endswith("/moe/experts") for n in names) == 5
    assert any("building tiny" in line for line in said)


def test_campaign_plan_covers_the_published_one() -> None:
    """The plan -> all named variants at C=32, three further concurrencies, three maximum contexts; unique names."""
    names = [row.name for row in campaign.PLAN]
    assert len(set(names)) == len(names)
    assert {row.variant for row in campaign.PLAN if row.concurrency == 32} >= {
        "original", "mma", "split_k", "bf16_gemm", "indexer_triton", "mhc_fused", "cuda_graph",
    }  # fmt: skip
    split_k = [row for row in campaign.PLAN if row.variant == "split_k"]
    assert {r.concurrency for r in split_k} == {1, 16, 32, 64}
    assert {r.max_context for r in split_k if r.concurrency == 32} == {8192, 65536, 1 << 20}
    assert all(2 <= row.steps <= 5 for row in campaign.PLAN)


@needs_no_gpu
def test_campaign_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No GPU, or an unknown row -> exit code 2 and one line."""
    assert campaign.main(["--out", str(tmp_path / "t")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert campaign.main(["--out", str(tmp_path), "--only", "nothing"]) == 2
    assert "original" in capsys.readouterr().err
