"""The capture wrapper: what it leaves behind, and that it leaves nothing half done."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hta_dsv4.capture import profiler  # noqa: E402
from hta_dsv4.capture.command import CaptureOptions, run_capture  # noqa: E402
from hta_dsv4.capture.profiler import DecodeCapture, capture_decode  # noqa: E402
from hta_dsv4.capture.scopes import profiler_on, scope  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402
from hta_dsv4.trace.manifest import (  # noqa: E402
    manifest_for,
)

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
    "bad",
    [
        {"steps": 0}, {"steps": -1}, {"steps": 1.5}, {"steps": True}, {"baseline": 0}, {"warmup": -1},
        {"warmup": None}, {"concurrency": 0}, {"concurrency": "x"},
    ],
)  # fmt: skip
def test_counts_that_make_no_capture(tmp_path: Path, bad: dict[str, Any]) -> None:
    """Zero steps and the like -> an error naming the option and its value, before anything is run or written."""
    ((name, value),) = bad.items()
    with pytest.raises(HtaDsv4Error, match=f"^--{name} {re.escape(repr(value))}: "):
        capture(tmp_path / "x", fn=lambda: pytest.fail("the step must not run"), **bad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"variant": ""}, "one printable line"),
        ({"variant": "a\nb"}, "one printable line"),
        ({"slim": "most"}, "slim 'most': choose one of"),
        ({"details": {"contxt": 7}}, "details: 'contxt' is not one of config, context"),
        ({"details": {"steps": 7}}, "details: 'steps' is not one of"),
        ({"details": {"notes": [object()]}}, "notes: a manifest holds text"),
        ({"details": {"workload": {"x": "\udcff"}}}, r"workload\.x: not text"),
    ],
)
def test_words_that_make_no_capture(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    """A label, level or manifest field that cannot be kept -> one line naming it, and no file left."""
    with pytest.raises(HtaDsv4Error, match=message) as caught:
        capture(tmp_path / "x", **bad)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_profiler_already_running(tmp_path: Path) -> None:
    """Another torch profiler is on -> an error before the step runs."""
    with torch.profiler.profile(), pytest.raises(HtaDsv4Error, match="already running"):
        capture(tmp_path / "x")


# A second profiler ends the first one's session; touching that again would end the process without a word.
OWN_PROFILER = """
import sys, torch
from hta_dsv4.capture.profiler import capture_decode
from hta_dsv4.errors import HtaDsv4Error
calls = iter(range(99))
def fn():
    if next(calls) == int(sys.argv[2]):
        with torch.profiler.profile():
            torch.ones(3) + 1
options = dict(steps=2, warmup=0, baseline=1, variant="v", concurrency=1, require_cuda=False)
try:
    capture_decode(fn, out=sys.argv[1], **options)
except HtaDsv4Error as error:
    print(error)
print(capture_decode(lambda: torch.ones(3) + 1, out=sys.argv[1], **options).trace.name)
"""


@pytest.mark.parametrize(("call", "phase"), [(0, "timed"), (1, "warm-up"), (3, "recorded")])
def test_loop_with_a_profiler_of_its_own(tmp_path: Path, call: int, phase: str) -> None:
    """The step profiles itself once -> harmless before ours is on, else one line; the process can capture again."""
    done = subprocess.run(
        [sys.executable, "-c", OWN_PROFILER, str(tmp_path / "x"), str(call)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    assert last == "x.trace.json.gz"
    assert [("profiler of its own" in line) for line in said] == ([] if phase == "timed" else [True])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.manifest.toml", "x.trace.json.gz"]


def test_one_capture_at_a_time(tmp_path: Path) -> None:
    """A capture inside another, one used twice, a step outside the block -> an error each, the outer one goes on."""
    settings: dict[str, Any] = {
        "variant": "v", "concurrency": 1, "steps": 1, "warmup": 0, "baseline": 1, "require_cuda": False,
    }  # fmt: skip
    outer, inner = (DecodeCapture(out=tmp_path / name, **settings) for name in "ab")
    with pytest.raises(HtaDsv4Error, match="inside the with block"):
        outer.step()
    with outer:
        with pytest.raises(HtaDsv4Error, match="another capture is going on"), inner:
            pytest.fail("must not begin")
        while not outer.done:
            decode()
            outer.step()
    with pytest.raises(HtaDsv4Error, match="captures once"), outer:
        pytest.fail("must not begin")
    assert outer.result.trace.is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.manifest.toml", "a.trace.json.gz"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_between_trace_and_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Stopped after the trace's rename and before the manifest's -> neither is left, nor a partial file."""
    rename = Path.replace

    def stop(self: Path, target: Path) -> Path:
        if target.name.endswith(".toml"):
            raise error("stop")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises((KeyboardInterrupt, HtaDsv4Error)):
        capture(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_companion_that_fails_is_not_spoken_of(tmp_path: Path) -> None:
    """The eager companion raises -> its error; the graph's own trace stays, and its manifest names no companion."""

    def fail() -> None:
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError):
        capture(tmp_path / "x", companion=fail)
    found = manifest_for(tmp_path / "x.trace.json.gz")
    assert found is not None
    assert found.companion is None
    made = capture(tmp_path / "y", companion=decode)
    found = manifest_for(made.trace)
    assert made.companion is not None
    assert found is not None
    assert found.companion == made.companion.trace.name == "y_eager.trace.json.gz"
    assert found.as_dict() == made.manifest.as_dict()


@pytest.mark.parametrize("out", ["", ".", "a\0b", "a\nb", "x" * 230])
def test_out_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    """An empty, unprintable or overlong --out -> one line with the remedy, before any work."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HtaDsv4Error, match="--out") as caught:
        capture(out, fn=lambda: pytest.fail("the step must not run"))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_out_is_no_place_for_a_file(tmp_path: Path) -> None:
    """--out below a file, a folder itself, a device -> one line naming it and the remedy, before any work."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.gz").mkdir()
    (tmp_path / "taken.trace.json.gz").mkdir()
    places = [tmp_path / name for name in ("folder", "folder.gz", "taken")]
    for out in (tmp_path / "file" / "x", *places, Path("/dev/full")):
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
