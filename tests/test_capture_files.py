"""The files a capture keeps: the trace, cleaned and exact, and the manifest beside it."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

torch = pytest.importorskip("torch")

from hta_dsv4.capture import environment, tracefile  # noqa: E402
from hta_dsv4.capture.tracefile import keep_trace  # noqa: E402
from hta_dsv4.errors import HtaDsv4Error  # noqa: E402
from hta_dsv4.trace.manifest import (  # noqa: E402
    Manifest,
    Timing,
    manifest_entry,
    manifest_for,
    manifest_path,
    other_entries,
    read_folder_manifest,
    write_folder_manifest,
    write_manifest,
)
from hta_dsv4.trace.toml_text import to_toml  # noqa: E402

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


def test_summary_counts_early_starts_once(tmp_path: Path) -> None:
    """A kernel that starts 2 us before the one ahead ends, another stream beside -> own time as the reader has it."""
    from hta_dsv4.analysis.own_time import own_ns
    from hta_dsv4.trace.reader import read_trace

    rows = [("a", 7, 10, 5), ("b", 7, 13, 4.5), ("inside", 7, 14, 1), ("beside", 9, 11, 3)]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
         "args": {"stream": stream, "device": 0, "correlation": i}}
        for i, (name, stream, ts, dur) in enumerate(rows, 1)
    ]  # fmt: skip
    _, summary = kept(tmp_path, json.dumps({"traceEvents": events}))
    assert (summary.activity_ns, summary.own_ns) == (13_500, 7_500 + 3_000)
    assert summary.own_ns == own_ns(read_trace(tmp_path / "out.json").activities).sum()


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
            {"ph": "X", "cat": "cpu_op", "name": "triton_poi_0", "ts": 1, "dur": 1,
             "args": {"kernel_file": f"{tempfile.gettempdir()}/torchinductor_alice/ab/c.py", "Input Dims": [[8]]}},
            {"ph": "X", "cat": "python_function", "name": "/srv/secret/lib/m.py(1): f", "ts": 1, "dur": 1},
        ],
    }  # fmt: skip
    monkeypatch.setattr(sys, "path", [*sys.path, "/srv/secret/lib"])
    text, _ = kept(tmp_path, json.dumps(trace))
    found = json.loads(text)
    assert found["traceName"] == "out.json"
    assert found["host_name"] == "host"
    assert found["distributedInfo"] == {"node": "host", "rank": 3}
    assert found["traceEvents"][0]["args"]["labels"] == "host user python"
    assert found["traceEvents"][1]["name"] == "~/code/run.py(3): main"
    assert found["traceEvents"][2]["name"] == "gpubox17_kernel"
    assert found["traceEvents"][3]["args"] == {
        "kernel_file": "torchinductor_user/ab/c.py",
        "Input Dims": [[8]],
    }
    assert found["traceEvents"][4]["name"] == "m.py(1): f"


def test_short_host_name_is_hidden_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that calls itself by its full name -> its short name goes as well."""
    monkeypatch.setattr(socket, "gethostname", lambda: "gpubox17.corp.example")
    labels = {"labels": "gpubox17.corp.example gpubox17"}
    text, _ = kept(
        tmp_path, json.dumps({"traceEvents": [{"ph": "M", "name": "process_labels", "args": labels}]})
    )
    assert json.loads(text)["traceEvents"][0]["args"]["labels"] == "host host"


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


def test_a_folder_manifest_keeps_other_traces(tmp_path: Path) -> None:
    """Written anew for one trace -> entries of others that are there stay as they were, of gone ones do not."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.trace.json.gz").touch()
    first = [replace(MANIFEST, trace=f"{name}.trace.json.gz", variant=name) for name in ("a", "b", "gone")]
    write_folder_manifest(tmp_path, first)
    new = replace(MANIFEST, trace="a.trace.json.gz", variant="anew")
    kept = other_entries(tmp_path, {new.trace})
    write_folder_manifest(tmp_path, [new], ["a note"], kept)
    found = read_folder_manifest(tmp_path / "manifest.toml")
    assert [m.as_dict() for m in found] == [new.as_dict(), first[1].as_dict()]


def test_what_a_caller_does_to_an_entry_is_his_own(tmp_path: Path) -> None:
    """An entry changed by who asked for it -> the next one reads it as it is written; written anew, what is new."""
    write_folder_manifest(tmp_path, [MANIFEST])
    trace = tmp_path / MANIFEST.trace
    for changed in (manifest_entry(trace)[0], manifest_for(trace)):
        assert changed is not None
        (changed["switches"] if isinstance(changed, dict) else changed.switches)["attention"] = "changed"  # type: ignore[index]
    found = manifest_entry(trace)[0]
    assert found is not None
    assert found["switches"] == {"attention": "mma"}
    write_folder_manifest(tmp_path, [replace(MANIFEST, switches={"attention": "wgm"})])  # as long as before
    found = manifest_entry(trace)[0]
    assert found is not None
    assert found["switches"] == {"attention": "wgm"}


def test_own_manifest_comes_before_the_folders(tmp_path: Path) -> None:
    """A trace with both -> its own file is believed."""
    write_folder_manifest(tmp_path, [MANIFEST])
    trace = tmp_path / MANIFEST.trace
    write_manifest(trace, replace(MANIFEST, variant="newer"))
    assert manifest_path(trace).name == "a.manifest.toml"
    found = manifest_for(trace)
    assert found is not None
    assert found.variant == "newer"


def test_manifest_of_a_namesake_is_not_believed(tmp_path: Path) -> None:
    """x.json beside x.trace.json.gz, one manifest name for both -> it is that of the file it names; renamed, still."""
    trace, namesake = tmp_path / "x.trace.json.gz", tmp_path / "x.json"
    trace.write_text("")
    write_manifest(trace, replace(MANIFEST, trace=trace.name))
    namesake.write_text("")
    assert manifest_for(trace) is not None
    assert manifest_for(namesake) is None
    trace.rename(tmp_path / "y.trace.json.gz")
    manifest_path(trace).rename(tmp_path / "y.manifest.toml")
    assert manifest_for(tmp_path / "y.trace.json.gz") is not None


def test_toml_round_trip() -> None:
    """Awkward keys, numbers and text -> read back the same."""
    data = {
        "x": math.inf,
        "a b": 1,
        "p.q": {"é": [1.5, 'q"\x7f\n', True, -1e-7]},
        "big": 10**20,
        "": "ünï",
        "t": {"u": {}},
    }
    assert tomllib.loads(to_toml(data)) == data
    assert math.isnan(tomllib.loads(to_toml({"n": math.nan}))["n"])


def test_commit_is_this_projects_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package inside some other project's checkout, not tracked by it -> no commit rather than that project's."""
    monkeypatch.delenv("HTA_DSV4_COMMIT", raising=False)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(
        ["git", "-C", str(tmp_path), *identity, "commit", "-q", "--allow-empty", "-m", "x"], check=True
    )
    inside = tmp_path / "site-packages" / "environment.py"
    inside.parent.mkdir()
    inside.write_text("")
    monkeypatch.setattr(environment, "__file__", str(inside))
    assert environment.git_commit() is None
    subprocess.run(["git", "-C", str(tmp_path), "add", str(inside)], check=True)
    commit = environment.git_commit()
    assert commit is not None
    assert re.fullmatch(r"[0-9a-f]{40}-dirty", commit)


GOOD = "[[trace]]\n" + to_toml(MANIFEST.as_dict(), "trace")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not = = toml", "not TOML"),
        ("\xff", "not TOML"),
        ("a = 1\n", "no .*trace.* entry"),
        ("trace = 3\n", "no .*trace.* entry"),
        ("trace = [1]\n", "entry 1: "),
        ("[[trace]]\ntrace = 'x'\n", "entry x: .*`variant`"),
        (GOOD.replace("concurrency = 32", "concurrency = '32'"), "entry a.trace.json.gz: .*concurrency"),
        (GOOD.replace("unprofiled_step_ms = 2.0", "unprofiled_step_ms = 'fast'"), "unprofiled_step_ms"),
        (GOOD.replace("[trace.timing]", "[trace.times]"), "`timing`"),
        (GOOD.replace('removed = ["x"]', "removed = [1]"), "removed"),
    ],
)
def test_broken_manifest(tmp_path: Path, text: str, message: str) -> None:
    """A manifest that cannot be used -> one line naming the file, the entry and the field."""
    path = tmp_path / "manifest.toml"
    path.write_bytes(GOOD.encode())
    assert read_folder_manifest(path)[0].variant == "a"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(HtaDsv4Error, match=message) as caught:
        read_folder_manifest(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "timing = 3", "device = 'H200'", "switches = [1]", "versions = nan", "config = [1]", "concurrency = '32'",
        "timing = {unprofiled_step_ms = -1}", "timing = {unprofiled_step_ms = nan}", "timing = {activity_ms = inf}",
        "timing = {launches = true}", "x = " + "9" * 5000, "x = " + "[" * 5000,
    ],
)  # fmt: skip
def test_half_a_manifest_is_typed(tmp_path: Path, text: str) -> None:
    """A manifest of few fields, one of another type -> one line with file and field, not an odd failure later."""
    trace = tmp_path / "a.trace.json.gz"
    path = manifest_path(trace)
    path.write_text(f"trace = '{trace.name}'\n{text}\n")
    with pytest.raises(HtaDsv4Error, match="correct it or take it away") as caught:
        manifest_entry(trace)
    assert str(caught.value).startswith(str(path))
    assert text.partition(" ")[0] in str(caught.value) or "not TOML" in str(caught.value)


def test_half_a_manifest_is_heard(tmp_path: Path) -> None:
    """Some fields, one that is not ours, a time that is NaN -> what is said; the NaN left out. No file's name: none."""
    trace = tmp_path / "a.trace.json.gz"
    path = manifest_path(trace)
    timing = "timing = {unprofiled_step_ms = 2.0, profiled_step_ms = nan}"
    path.write_text(f"trace = '{trace.name}'\nmine = [1, {{a = 2}}]\n{timing}\n")
    assert manifest_entry(trace)[0] == {
        "trace": trace.name, "mine": [1, {"a": 2}], "timing": {"unprofiled_step_ms": 2.0},
    }  # fmt: skip
    for name in ("", "a/b", ".", "a\\u0000"):
        path.write_text(f'trace = "{name}"\nconcurrency = 4\n')
        manifest_entry(trace)
