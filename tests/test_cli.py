"""The command line: one job end to end per command, and one clear line for every mistake."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from hta_dsv4 import shipped
from tests.builders import KinetoTrace
from tests.conftest import CASES, cli

PROBE = str(shipped.traces()["h200_probe"])


def test_shares_json_adds_up_and_is_versioned():
    """Shares --json on the probe -> schema 1, rows add up to the sum, integers in ns."""
    done = cli("shares", PROBE, "--json", "--by", "kernel")
    body = json.loads(done.stdout)
    assert (done.returncode, body["schema"], body["by"]) == (0, 1, ["kernel"])
    (variant,) = body["variants"]
    assert variant["steps"] == 5
    assert sum(r["time_ns"] for r in variant["rows"]) == variant["sum_ns"]
    assert all(
        isinstance(r["time_ns"], int) and isinstance(r["time_ns_per_step"], int) for r in variant["rows"]
    )
    assert variant["wall_ns"] == variant["busy_ns"] + variant["idle_ns"]


def test_info_counts_and_times_equal_the_file():
    """Info --json on the probe -> the counts and the exact kernel time of the file."""
    body = json.loads(cli("info", PROBE, "--json").stdout)
    assert (body["kernels"], body["memcpys"], body["memsets"]) == (150, 30, 5)
    assert body["kernel_sum_ns"] == 4_119_182
    assert body["devices"][0]["name"] == "NVIDIA H200"


def test_info_of_a_trace_without_gpu_activity_gives_its_rank_and_no_false_remedy(tmp_path):
    """CPU ops of rank 1 alone -> rank 1, and no advice to record the CPU."""
    made = KinetoTrace(rank=1, world_size=2)
    made.op("aten::mm", 10, 5)
    told = json.loads(cli("info", str(made.write(tmp_path / "cpu.json")), "--json").stdout)
    assert [r["rank"] for r in told["ranks"]] == [1]
    assert "ProfilerActivity.CPU" not in json.dumps(told["capabilities"])


def test_diff_is_per_step_and_names_the_renamed_kernel():
    """Diff of the pair with 4 and 3 steps -> -19 us per step in all."""
    done = cli(
        "diff", f"a={CASES / '34-diff-a.json'}", f"b={CASES / '34-diff-b.json'}", "--by", "kernel", "--json"
    )
    body = json.loads(done.stdout)
    a, b = body["variants"]
    assert (a["steps"], b["steps"], body["base"]) == (4, 3, "a")
    delta = {r["kernel"]: r["delta_ns_per_step"] for r in b["rows"]}
    assert (delta["attn_c"], delta["quant_e"]) == (2_000, 9_000)
    assert sum(delta.values()) == -19_000


@pytest.mark.parametrize("command", [["shares"], ["diff"], ["info"]])
@pytest.mark.parametrize("form", ["--json", "--csv", "--md", ""])
def test_every_command_writes_every_form(command, form):
    """Each command in each form on a real trace -> exit 0, something written, nothing on stderr."""
    inputs = [f"a={PROBE}", f"b={PROBE}"] if command == ["diff"] else [PROBE]
    done = cli(*command, *inputs, *([form] if form else []))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 100


def test_hostile_names_survive_csv_markdown_and_json():
    """Names with pipes, formulas, quotes, HTML, CJK -> CSV and JSON round-trip, Markdown keeps its columns."""
    path = str(CASES / "37-hostile-kernel-names.json")
    body = json.loads(cli("shares", path, "--by", "kernel", "--json").stdout)
    names = {r["kernel"] for r in body["variants"][0]["rows"]}
    assert "pipe|in|name" in names
    assert len(names) == 8
    rows = list(csv.DictReader(io.StringIO(cli("shares", path, "--by", "kernel", "--csv").stdout)))
    assert {r["kernel"] for r in rows} == names
    text = cli("shares", path, "--by", "kernel", "--md").stdout
    table = [line for line in text.splitlines() if line.startswith("|")]
    bars = {len([i for i, c in enumerate(line) if c == "|" and line[i - 1 : i] != "\\"]) for line in table}
    assert len(bars) == 1
    assert "<script" not in text.replace("\\<", "")


def test_explain_reads_names_from_stdin_and_answers_one_object_a_line():
    """Names on stdin -> JSON lines in order."""
    names = ["cutlass_80_simt_sgemm_64x128_8x5_tn_align1", "no_such_thing_at_all_zq"]
    done = cli("explain", "-", "--json", stdin="\n".join(names) + "\n")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f["name"] for f in found] == names
    assert [f["bucket"] for f in found] == ["fp32_simt_gemm", "unknown"]
    assert found[0]["candidates"]
    assert found[0]["ambiguous"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["shares"], "Missing argument"),
        (["shares", "/nowhere/a.json"], "no such file"),
        (["shares", PROBE, "--by", "colour"], "bucket, role, origin, kernel"),
        (["shares", PROBE, "--json", "--csv"], "exclude each other"),
        (["shares", PROBE, "--no-such-flag"], "No such option"),
        (["diff", PROBE], "at least two"),
        (["diff", f"a={PROBE}", f"a={PROBE}"], "'a'"),
        (["shares", str(CASES / "25d-empty-file.json")], "empty"),
        (["shares", str(CASES / "25e-not-a-trace.json")], "traceEvents"),
        (["shares", str(CASES / "25c-cpu-only.json")], "CPU-only"),
        (["shares", str(CASES / "25b-empty-traceEvents.json")], "no GPU events"),
        (["shares", str(CASES / "01-truncated-mid-string.json")], "2483"),
        (["shares", PROBE, "--rules", "/nowhere/rules.toml"], "rules.toml"),
        (["explain", "-"], "no kernel name"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(args, says):
    """Wrong flag, missing, empty, cut or foreign file -> one line that says what, exit 2, no output."""
    done = cli(*args, stdin="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error():
    """Output into a reader that leaves -> no traceback."""
    run = subprocess.run(
        f"{sys.executable} -m hta_dsv4 shares {PROBE} --by kernel --json | head -1",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.stdout, run.stderr) == ("{\n", "")


def test_analysis_half_runs_without_torch():
    """A whole diff -> torch, triton and the kernels were never imported."""
    code = (
        "import sys; sys.argv = ['hta-dsv4', 'diff', 'a=h200_probe', 'b=h200_probe', '--json']\n"
        "import hta_dsv4.cli.main as c\n"
        "try: c.main()\n"
        "except SystemExit as e: assert not e.code\n"
        "bad = {'torch', 'triton', 'dsv4_kernels', 'hta'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
