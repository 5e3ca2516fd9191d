"""``hta-dsv4 capture --server`` against a server that speaks both protocols: what is kept, and how it fails."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.loading import load
from hta_dsv4.serving.client import ServerUrl
from hta_dsv4.serving.session import ServerCapture, capture_server
from hta_dsv4.trace.manifest import manifest_for
from tests.conftest import Done, cli
from tests.serving.fake_server import FakeServer, serve

ENGINES = ("vllm", "sglang")
# All that a capture may ask a server for.
PATHS = {
    "GET /v1/models", "GET /version", "GET /metrics", "POST /v1/completions", "GET /start_profile",
    "POST /start_profile", "POST /stop_profile",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder the server writes to."""
    made = tmp_path / "server"
    made.mkdir()
    return made


def capture(server: FakeServer, folder: Path, *more: str, c: int = 6, steps: int = 4) -> Done:
    """Run the command, its files beside the server's folder."""
    done = cli(
        "capture", "--server", server.url, "--trace-dir", str(folder), "-c", str(c), "--steps", str(steps),
        "--prompt-tokens", "32", "--baseline", "10", "--out", str(folder.parent), *more,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert server.most_streams <= c
    assert set(server.asked) <= PATHS
    return done


def left_in_order(server: FakeServer) -> None:
    """No session open and no stream left, a moment after the command has ended."""
    for _ in range(200):
        if not server.streams:
            break
        server.engine.stopping.wait(0.01)
    assert server.streams == 0
    assert server.engine.session is None
    assert not server.engine.session_open


def kept(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.parent.rglob("*") if p.is_file() and p.parent != folder)


@pytest.mark.parametrize("engine", ENGINES)
def test_capture_decode_steps(folder: Path, engine: str) -> None:
    """A server at C = 6, 4 steps -> one trace of exactly 4 decode steps of 6, its manifest, the share table; exit 0."""
    with serve(folder, engine=engine) as server:
        done = capture(server, folder, "--label", "as served")
        left_in_order(server)
    assert done.returncode == 0, done.stderr
    assert "as served: 4 steps" in done.stdout
    assert "all 4 captured steps are decode steps of 6 requests" in done.stderr
    assert kept(folder) == ["as_served_c6.manifest.toml", "as_served_c6.trace.json.gz"]
    trace = folder.parent / "as_served_c6.trace.json.gz"
    (written,) = (p for p in server.engine.written if "async_llm" not in p.name)
    assert trace.read_bytes() == written.read_bytes()
    manifest = manifest_for(trace)
    assert manifest is not None
    assert (manifest.variant, manifest.concurrency, manifest.steps) == ("as served", 6, 4)
    plain = manifest.timing.unprofiled_step_ms
    assert f"a step takes {plain:,.3f} ms without the profiler" in done.stderr
    assert f"{manifest.timing.tokens_per_s:,.0f} tokens/s of 6 requests" in done.stderr
    assert f"{100 * manifest.timing.profiler_overhead:+.1f} % of that more" in done.stderr
    assert manifest.workload["engine"] == engine
    assert 1.5 < manifest.timing.unprofiled_step_ms < 500  # the server's steps take 2 ms and more
    assert manifest.timing.activities == 3
    run = load(trace)
    assert run.manifest["variant"] == "as served"
    assert [s.method for s in run.steps] == ["engine annotation"]
    known = run.workload()
    assert known.batch == 6
    assert known.context is not None
    assert known.context >= 32 + 3 + 10  # prompt, warm-up, timed steps
    assert f"prompts of 32 tokens to {engine}" in known.sources[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_profiler_is_asked_for_bounded_steps(folder: Path, engine: str) -> None:
    """Each engine's own words -> a unique prefix and a number of steps; started once, always stopped after."""
    with serve(folder, engine=engine) as server:
        capture(server, folder)
        capture(server, folder)
    starts = [c for c in server.calls if c.startswith("POST")]
    assert starts == ["POST /start_profile", "POST /stop_profile"] * 2
    names, steps, others = {
        "vllm": ("profile_prefix", "max_iterations", set()),
        "sglang": ("profile_id", "num_steps", {"output_dir", "activities", "with_stack", "record_shapes"}),
    }[engine]
    assert {b[steps] for b in server.profile_bodies} == {4}
    prefixes = [b[names] for b in server.profile_bodies]
    assert len(set(prefixes)) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", p) for p in prefixes)
    assert all(set(b) == {names, steps} | others for b in server.profile_bodies)
    if engine == "sglang":  # its server would start to record
        assert "GET /start_profile" not in server.asked


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_is_kept(folder: Path, engine: str) -> None:
    """Two ranks -> a folder with one trace and manifest each, which loads as one variant; the frontend's is dropped."""
    with serve(folder, engine=engine, world_size=2) as server:
        done = capture(server, folder, "--label", "tp2")
    assert done.returncode == 0, done.stderr
    made = folder.parent / "tp2_c6"
    assert sorted(p.name for p in made.iterdir()) == [
        "rank0.manifest.toml", "rank0.trace.json.gz", "rank1.manifest.toml", "rank1.trace.json.gz",
    ]  # fmt: skip
    assert load(made).ranks == (0, 1)
    second = manifest_for(made / "rank1.trace.json.gz")
    assert second is not None
    assert second.workload["rank"] == 1


def test_folder_with_other_ranks_is_not_mixed(folder: Path) -> None:
    """An older capture's rank 2 in the folder -> refused, as it would be read as a rank of this one."""
    old = folder.parent / "tp2_c6" / "rank2.trace.json.gz"
    old.parent.mkdir()
    old.write_bytes(b"old")
    with serve(folder, world_size=2) as server:
        done = capture(server, folder, "--label", "tp2")
        left_in_order(server)
    assert done.returncode == 2
    assert "holds other traces (rank2.trace.json.gz)" in done.stderr
    assert old.read_bytes() == b"old"


def test_json_of_the_shares(folder: Path) -> None:
    """--json -> the share table's document on stdout and nothing else there."""
    with serve(folder) as server:
        done = capture(server, folder, "--json")
    assert json.loads(done.stdout)["command"] == "shares"


def test_cpu_only_trace(folder: Path) -> None:
    """A server without a GPU -> the capture succeeds and says why there is no share table."""
    with serve(folder, gpu=False) as server:
        done = capture(server, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "CPU-only trace" in done.stderr
    assert "vllm_c6.trace.json.gz" in kept(folder)


def test_key_is_sent_and_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a key -> works with HTA_DSV4_API_KEY, which is nowhere in output or files; refused without."""
    with serve(folder, key="s3cret-k3y") as server:
        refused = capture(server, folder)
        monkeypatch.setenv("HTA_DSV4_API_KEY", "s3cret-k3y")
        done = capture(server, folder)
    assert refused.returncode == 2
    assert "--api-key or HTA_DSV4_API_KEY" in refused.stderr
    assert done.returncode == 0, done.stderr
    texts = [done.stdout, done.stderr, cli("capture", "--help").stdout]
    texts += [p.read_text() for p in folder.parent.glob("*.toml")]
    assert not any("s3cret" in t for t in texts)


def test_engine_before_prefixes(folder: Path) -> None:
    """A vLLM that ignores prefix and step count -> its new files are taken, and it is said that steps may be more."""
    stale = folder / "rank0.1.pt.trace.json.gz"
    stale.write_bytes(b"another session's")
    with serve(folder, honours_window=False, frontend=False) as server:
        done = capture(server, folder)
        left_in_order(server)
    assert done.returncode == 0, done.stderr
    assert "did not name its files as asked" in done.stderr
    manifest = manifest_for(folder.parent / "vllm_c6.trace.json.gz")
    assert manifest is not None
    assert manifest.steps >= 4


def test_model_of_several(folder: Path) -> None:
    """--model -> that one decodes and is in the manifest; one that the server lacks -> its own words."""
    with serve(folder) as server:
        done = capture(server, folder, "--model", "second")
        lacking = capture(server, folder, "--model", "third", "--label", "third")
    assert done.returncode == 0, done.stderr
    assert {b["model"] for b in server.bodies[:6]} == {"second"}
    manifest = manifest_for(folder.parent / "vllm_c6.trace.json.gz")
    assert manifest is not None
    assert manifest.workload["model"] == "second"
    assert lacking.returncode == 2
    assert "The model `third` does not exist." in lacking.stderr


@pytest.mark.parametrize(
    ("out", "packed", "name"),
    [
        ("x.json.gz", True, "x.json.gz"),
        ("x.json", True, "x.json.gz"),
        ("x.trace.json.gz", False, "x.trace.json"),
        ("x.v2", True, "x.v2.trace.json.gz"),
        ("new", False, "vllm_c6.trace.json"),
    ],
)
def test_names_of_files(folder: Path, out: str, packed: bool, name: str) -> None:
    """--out as a file or a folder -> that name, ending in .gz where the content is compressed; it loads."""
    with serve(folder, packed=packed) as server:
        done = capture(server, folder, "--out", str(folder.parent / out))
    assert done.returncode == 0, done.stderr
    (trace,) = (p for p in folder.parent.rglob("*.json*") if p.parent != folder)
    assert trace.name == name
    assert load(trace).manifest["trace"] == name


def test_a_server_cannot_drive_the_terminal(folder: Path) -> None:
    """A model whose name holds escape codes and line feeds -> captured, and shown escaped on one line."""
    with serve(folder, model="x\x1b[31m\nhta-dsv4: fake") as server:
        done = capture(server, folder)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert not any(line.startswith("hta-dsv4: ") for line in done.stderr.splitlines())


def test_chunks_of_many_tokens(folder: Path) -> None:
    """Chunks of 20 tokens and one timed step -> timed over the tokens between two chunks, and said of how many."""
    with serve(folder, tokens_per_chunk=20) as server:
        done = capture(server, folder, "--baseline", "1", "--warmup", "0")
    assert done.returncode == 0, done.stderr
    manifest = manifest_for(folder.parent / "vllm_c6.trace.json.gz")
    assert manifest is not None
    assert manifest.timing.unprofiled_steps % 20 == 0
    assert 1.5 < manifest.timing.unprofiled_step_ms < 500


def test_no_metrics_is_no_failure(folder: Path) -> None:
    """A server without /metrics -> captured all the same, the trace tells the batch."""
    with serve(folder, engine="sglang", metrics=False) as server:
        done = capture(server, folder)
    assert done.returncode == 0, done.stderr
    assert "no metric of running requests" in done.stderr


def test_trace_without_annotations(folder: Path) -> None:
    """No step annotations in the trace -> kept, and said that nothing tells whether it is decode."""
    with serve(folder, annotate=False) as server:
        done = capture(server, folder)
    assert done.returncode == 0, done.stderr
    assert "the trace annotates no step" in done.stderr


# --- failures ---------------------------------------------------------------------------------------------------

FAILURES: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("vllm", {"profiler_enabled": False}, [], r"profiler is not enabled; start vLLM with --profiler-config"),
    ("vllm", {"faults": "busy"}, [], r"session is open already, perhaps somebody else's, and is left as it is"),
    ("vllm", {}, ["--engine", "sglang"], r"--engine sglang: .* says the engine is vllm"),
    ("sglang", {}, ["--engine", "vllm"], r"--engine vllm: .* says the engine is sglang"),
    ("sglang", {"owned_by": "acme"}, [], r"neither vLLM nor SGLang \(owner acme\)"),
    ("vllm", {"faults": "redirect"}, [], r"points to http://192.0.2.1/elsewhere, which is not followed"),
    ("vllm", {"faults": "fails midway"}, ["--baseline", "60"], r"a request failed: .*EngineCore died"),
    ("vllm", {"faults": "breaks midway"}, ["--baseline", "60"], r"a request failed: .*connection was lost"),
    ("vllm", {"faults": "refuses a request"}, [], r"a request failed: .*answered 500: EngineCore encountered"),
    ("vllm", {"max_model_len": 40}, [], r"--output-tokens 8: too short for 3 steps of warm-up, 10 timed and 4"),
    ("vllm", {"max_model_len": 32}, [], r"--prompt-tokens 32: leaves no room for outputs in the 32 tokens of tiny"),
    ("vllm", {}, ["--output-tokens", "9999"], r"do not fit tiny, whose length is 4096"),
    ("vllm", {"faults": "slow start"}, ["--output-tokens", "60"], r"tokens ended before all steps .* --output-tokens"),
    ("sglang", {"faults": "slow start"}, ["--output-tokens", "60"], r"outputs of 60 tokens ended before all steps"),
    ("vllm", {"running_usage": False}, [], r"does not say with each chunk how many tokens"),
    ("vllm", {"faults": "stop fails"}, [], r"/stop_profile: answered 503: the engine does not answer"),
    ("vllm", {"faults": "dies at stop"}, [], r"died as it stopped its profiler"),
    ("sglang", {"faults": "dies at stop"}, [], r"died as it stopped its profiler.*output folder that it cannot write"),
    ("vllm", {"faults": "start lost"}, [], r"/start_profile: the connection was lost"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "behaviour", "options", "said"), FAILURES, ids=[f"{f[0]}-{i}" for i, f in enumerate(FAILURES)]
)
def test_failures(
    folder: Path, engine: str, behaviour: dict[str, Any], options: list[str], said: str
) -> None:
    """Something goes wrong -> one line that says what, exit 2, nothing kept, nothing left running on the server."""
    with serve(folder, engine=engine, **behaviour) as server:
        done = capture(server, folder, *options)
        if behaviour.get("faults") != "stop fails" and not server.dead:
            left_in_order(server)
    assert done.returncode == 2
    (line,) = (text for text in done.stderr.splitlines() if text.startswith("hta-dsv4: "))
    assert re.search(said, line), line
    assert kept(folder) == []
    assert done.stdout == ""
    posts = [c for c in server.calls if c.startswith("POST")]
    if behaviour.get("faults") == "busy":
        assert posts == ["POST /start_profile"]  # somebody else's session is not stopped
    elif posts:
        assert posts == ["POST /start_profile", "POST /stop_profile"]


def test_others_use_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler runs 9 requests where we sent 6 -> refused before anything is recorded."""
    monkeypatch.setattr("hta_dsv4.serving.baseline._METRICS_S", 0.3)
    with serve(folder, others=3) as server:
        done = capture(server, folder)
    assert done.returncode == 2
    assert "runs 9 requests, not 6: do others use the server" in done.stderr
    assert "POST /start_profile" not in server.calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variant", "mma"], "--variant means nothing with --server: name the variant by --label"),
        (["--switch", "a=b"], "--switch means nothing with --server"),
        (["--straggler", "1"], "--straggler means nothing with --server"),
        (["--max-context", "9"], "--max-context means nothing with --server"),
        (["--engine", "tgi"], "--engine tgi: choose one of auto, vllm, sglang"),
        (["--baseline", "0"], "--baseline 0: must be at least 1"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--label", "a\nb"], "must be one printable line"),
        (["--out", "/proc/nowhere/x"], "cannot write there"),
        (["--trace-dir", "/nowhere"], "no such folder here"),
        (["--trace-dir", "relative"], "must be absolute"),
        (["--engine", "vllm", "--with-stack"], "torch_profiler_with_stack"),
    ],
)
def test_words_that_do_not_go_together(
    folder: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of the bundled step, or impossible ones -> refused before a single request is sent."""
    monkeypatch.chdir(folder.parent)
    Path("relative").mkdir()
    with serve(folder, engine="sglang") as server:
        done = capture(server, folder, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert server.completions == 0
    assert server.calls == []


@pytest.mark.parametrize("option", ["--engine=vllm", "--label=x", "--trace-dir=.", "--prompt-tokens=3"])
def test_server_options_without_server(option: str) -> None:
    """A server's option without --server -> refused instead of being ignored."""
    done = cli("capture", option)
    assert done.returncode == 2
    assert "goes with --server" in done.stderr


def test_server_that_is_not_there() -> None:
    """Nothing listens -> one line with the address."""
    done = cli("capture", "--server", "127.0.0.1:1", "--trace-dir", ".")
    assert done.returncode == 2
    assert "http://127.0.0.1:1/v1/models: cannot reach the server" in done.stderr


def test_without_httpx(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is not installed -> its name, and how to install it."""
    for name in [n for n in sys.modules if n.startswith("hta_dsv4.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    done = cli("capture", "--server", "x:1", "--trace-dir", ".")
    assert done.returncode == 2
    assert "pip install 'hta-dsv4[server]'" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_folder_that_would_kill_sglang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be written -> refused before SGLang, which dies of one, is asked for anything."""

    def refuse(self: Path, *args: Any, **kw: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with serve(folder, engine="sglang") as server:
        monkeypatch.setattr(Path, "touch", refuse)  # root may write everywhere
        done = cli(
            "capture",
            "--server",
            server.url,
            "--trace-dir",
            str(folder),
            "--out",
            str(folder.parent / "x.json.gz"),
        )
    assert done.returncode == 2
    assert "Permission denied" in done.stderr
    assert server.calls == []
    assert server.completions == 0


# --- files that do not come, with short waits ---------------------------------------------------------------------


def quick(server: FakeServer, folder: Path, **changes: Any) -> ServerCapture:
    """A capture that does not wait long for files."""
    base = ServerCapture(
        ServerUrl.parse(server.url), folder, concurrency=3, prompt_tokens=8, steps=3, baseline=5, out=folder.parent,
        files_s=1.0,
    )  # fmt: skip
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no file", r"no trace appeared within 1 s although the server said"),
        ("never whole", r"hta-\w+_rank0.*gz.*never became a whole trace"),
        ("cut json", r"hta-\w+_rank0.*gz.*never became a whole trace"),
    ],
)
def test_no_whole_trace(folder: Path, fault: str, said: str) -> None:
    """200 without a file, a .gz that stops growing, JSON cut inside a whole .gz -> one line, nothing kept."""
    with serve(folder, faults=fault) as server:
        with pytest.raises(HtaDsv4Error, match=said):
            capture_server(quick(server, folder), lambda line: None)
        left_in_order(server)
    assert kept(folder) == []


def test_somebody_elses_session(folder: Path) -> None:
    """SGLang, which cannot refuse, wrote another session's name -> said, and that file is not taken."""
    said = r"somebody-TP-0\.trace\.json\.gz is new: somebody else's session"
    with (
        serve(folder, engine="sglang", faults="foreign session") as server,
        pytest.raises(HtaDsv4Error, match=said),
    ):
        capture_server(quick(server, folder), lambda line: None)
    assert kept(folder) == []


def test_a_rank_that_left_no_file(folder: Path) -> None:
    """Two of three ranks wrote -> these are kept, and the missing one is named as the problem."""
    with serve(folder, world_size=3, faults="a rank without file") as server:
        done = capture_server(quick(server, folder, label="x", files_s=4.0), lambda line: None)
    assert done.problem is not None
    assert "of 3 ranks, 2 left no whole trace" in done.problem
    assert [p.name for p in done.traces] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]


def test_growing_file_is_waited_for(folder: Path) -> None:
    """A .gz that becomes whole half a second after the stop's answer -> waited for, read whole."""
    with serve(folder, grow_s=0.5) as server:
        done = capture_server(quick(server, folder, files_s=20.0), lambda line: None)
    assert done.problem is None
    assert done.found.ranks[0].check.steps == 3


# --- decode, not prefill ------------------------------------------------------------------------------------------


def test_steps_that_are_not_decode_are_told(folder: Path) -> None:
    """Somebody's prefill and another batch in the window -> kept, share table printed, counts told, exit 2."""
    with serve(folder, engine="sglang", metrics=False) as server:
        marker = server.engine._marker
        calls = iter(range(99))
        server.engine._marker = lambda c, g: (
            [marker(2, 0), marker(0, 7)][i] if (i := next(calls)) < 2 else marker(c, g)
        )  # type: ignore[method-assign]
        done = capture(server, folder)
        left_in_order(server)
    assert done.returncode == 2
    assert (
        "2 of 4 captured steps decode 6 requests and nothing else (2 decode of 6, 1 decode of 7, 1 prefill)"
        in done.stderr
    )
    assert "the trace is kept" in done.stderr
    assert "sglang: " in done.stdout
    assert "sglang_c6.trace.json.gz" in kept(folder)
