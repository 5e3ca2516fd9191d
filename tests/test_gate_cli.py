"""``hta-dsv4 gate``: the exit code is the verdict, on built traces and on shipped ones."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CASES, Done, cli
from tests.gate_traces import ATTENTION, MANIFEST, budgets, made

BUDGETS = """
[step.sum]
max_us = 300
max_increase_percent = 2
[bucket.attention]
max_increase_percent = 3
why = "decode is bound by it"
[kernel."_sparse_mla*"]
max_launches = 2
[unknown]
max_share_percent = 2
"""


def gate(tmp_path: Path, *args: str, text: str = BUDGETS) -> Done:
    return cli("gate", "--budget", str(budgets(tmp_path / "budgets.toml", text)), *args)


def verdicts(done: Done) -> dict[str, str]:
    return {f"{c['kind']} {c['name']} {c['limit']}": c["verdict"] for c in json.loads(done.stdout)["checks"]}


@pytest.fixture
def pair(tmp_path):
    """Two captures of the same code."""
    return [
        str(made(tmp_path / name / "a.json.gz", seed=seed)) for seed, name in enumerate(("main", "candidate"))
    ]


def test_same_code_passes_with_0(tmp_path, pair):
    """Two captures of one code -> every budget passes, exit code 0, nothing on stderr."""
    done = gate(tmp_path, "--baseline", *pair, "--json")
    body = json.loads(done.stdout)
    assert (done.returncode, done.stderr, body["verdict"], body["exit_code"]) == (0, "", "pass", 0)
    assert body["comparability"]["comparable"]
    assert body["comparability"]["same"]["concurrency"] == 32


def test_regression_fails_with_1_and_names_the_kernel(tmp_path, pair):
    """Attention 10 % slower -> its bucket and the step fail with the kernel behind it, exit code 1."""
    slow = made(tmp_path / "slow.json.gz", attention=110)
    done = gate(tmp_path, "--baseline", pair[0], str(slow), "--json")
    found = verdicts(done)
    assert done.returncode == 1
    assert found["bucket attention max_increase_percent"] == found["step sum max_increase_percent"] == "fail"
    assert found["kernel _sparse_mla* max_launches"] == found["bucket unknown max_share_percent"] == "pass"
    check = next(c for c in json.loads(done.stdout)["checks"] if c["name"] == "attention")
    (cause,) = check["causes"]
    assert (cause["kernel"], cause["effect"]) == (ATTENTION, "slower")
    assert cause["delta_ns"] == pytest.approx(20_000, rel=0.05)
    assert (check["why"], check["place"][-2:]) == ("decode is bound by it", ":5")


def test_more_launches_fail_without_doubt(tmp_path, pair):
    """One launch more in every step of two -> fails, though two steps say little of times."""
    more = made(tmp_path / "more.json.gz", copies=3, steps=2)
    text = '[kernel."_sparse_mla*"]\nmax_launches = 2\nmax_increase_launches = 0\n'
    done = gate(tmp_path, "--baseline", pair[0], str(more), "--json", text=text)
    assert done.returncode == 1
    checks = json.loads(done.stdout)["checks"]
    assert {(c["noise"], c["evidence"]) for c in checks} == {(0, "exact")}
    assert [(k["kernel"], k["delta_launches"]) for c in checks for k in c["causes"]] == [(ATTENTION, 1)] * 2
    shown = gate(tmp_path, "--baseline", pair[0], str(more), text=text).stdout
    assert f"Grew: {ATTENTION} +1 launch " in shown
    assert " us (" not in shown


def test_over_by_less_than_noise_is_inconclusive_with_3(tmp_path, pair):
    """Over the limit by 0.1 us at a noise of 5 us -> inconclusive, exit code 3."""
    loud = made(tmp_path / "loud.json.gz", noise=5, seed=3)
    found = json.loads(gate(tmp_path, str(loud), "--json", text="[step.sum]\nmax_us = 1\n").stdout)["checks"][
        0
    ]
    limit = found["candidate"] / 1e3 - 0.1
    done = gate(tmp_path, str(loud), "--json", text=f"[step.sum]\nmax_us = {limit}\n")
    (check,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, check["verdict"], check["excess"]) == (3, "inconclusive", 100)
    assert check["noise"] > 1000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpu": "NVIDIA B200"}, "gpu differs"),
        ({"manifest": {**MANIFEST, "concurrency": 16}}, "concurrency differs"),
        ({"manifest": {**MANIFEST, "max_context": 8192}}, "max_context differs"),
        ({"manifest": {**MANIFEST, "context": 1024}}, "context differs"),
        ({"manifest": {**MANIFEST, "switches": {"attention": "mma"}}}, "switches.attention differs"),
        ({"manifest": {**MANIFEST, "launch": "cuda_graph"}}, "launch differs"),
        ({"manifest": {**MANIFEST, "device": {"clock_sm_mhz": 1500}}}, "clock_sm_mhz differs"),
        ({"manifest": None}, "says nothing"),
    ],
)
def test_captures_made_otherwise_are_not_compared(tmp_path, pair, change, says):
    """Another GPU, batch, context, switch, launch or clock -> relative budgets inconclusive, absolute ones judged."""
    other = made(tmp_path / "other.json.gz", attention=200, **change)
    done = gate(
        tmp_path, "--baseline", pair[0], str(other), "--json", text="[step.sum]\nmax_increase_percent = 2\n"
    )
    body = json.loads(done.stdout)
    assert (done.returncode, body["verdict"]) == (3, "inconclusive")
    assert any(says in d["said"] for d in body["comparability"]["differs"])
    assert gate(tmp_path, "--baseline", pair[0], str(other)).returncode == 1


def test_what_is_tested_may_differ(tmp_path, pair):
    """A switch the file allows to differ -> compared, with a note."""
    other = made(tmp_path / "o.json.gz", manifest={**MANIFEST, "switches": {"attention": "mma"}})
    text = '[comparability]\nmay_differ = ["switches.*"]\n' + BUDGETS
    done = gate(tmp_path, "--baseline", pair[0], str(other), "--json", text=text)
    assert done.returncode == 0
    assert any("switches.attention" in n and "may differ" in n for n in json.loads(done.stdout)["notes"])


def test_conditions_and_facts_that_must_be_known(tmp_path, pair):
    """Budgets for another batch, or a fact nobody recorded -> inconclusive, absolute ones too."""
    wrong = "[comparability.conditions]\nconcurrency = 64\n[step.sum]\nmax_us = 1\n"
    unknown = '[comparability]\nmust_be_known = ["power_limit_w"]\n[step.sum]\nmax_us = 1\n'
    for text, says in ((wrong, "hold for 64"), (unknown, "power_limit_w is not known")):
        done = gate(tmp_path, pair[0], text=text)
        assert done.returncode == 3
        assert says in done.stdout


def test_cut_trace_is_inconclusive(tmp_path):
    """A salvaged trace -> inconclusive whatever its numbers are; without --salvage an error."""
    path = str(CASES / "01-truncated-mid-string.json")
    text = "[step.sum]\nmax_us = 0.001\n"
    assert gate(tmp_path, path, text=text).returncode == 2
    done = gate(tmp_path, path, "--salvage", text=text)
    assert (done.returncode, "cut" in done.stdout) == (3, True)


def test_profiler_overhead_makes_wall_time_inconclusive(tmp_path, pair):
    """A profiler that added 40 % -> wall is inconclusive, sums are judged."""
    timing = {"profiler_overhead": 0.4}
    slow = made(tmp_path / "slow.json.gz", manifest={**MANIFEST, "timing": timing})
    text = "[step.wall]\nmax_us = 1\n[step.sum]\nmax_us = 10_000\n"
    done = gate(tmp_path, str(slow), "--json", text=text)
    assert verdicts(done) == {"step wall max_us": "inconclusive", "step sum max_us": "pass"}
    assert done.returncode == 3


def test_repeats_in_folders_are_told_apart_by_the_option(tmp_path):
    """A folder of five captures -> asked what they are; as repeats they show noise between captures, as ranks one."""
    for i in range(5):
        made(tmp_path / "main" / f"r{i}.json.gz", attention=100 + 3 * (i % 3), seed=i, steps=6)
    new = str(made(tmp_path / "new.json.gz", attention=104, seed=9))
    base = str(tmp_path / "main")
    text = "[bucket.attention]\nmax_increase_percent = 0\n"
    asked = gate(tmp_path, "--baseline", base, new, text=text)
    assert (asked.returncode, "--folders ranks" in asked.stderr, "5 traces" in asked.stderr) == (
        2,
        True,
        True,
    )
    done = gate(tmp_path, "--baseline", base, new, "--folders", "repeats", "--json", text=text)
    body = json.loads(done.stdout)
    assert (done.returncode, body["baseline"]["captures"], body["checks"][0]["evidence"]) == (
        3,
        5,
        "captures",
    )
    one = gate(tmp_path, "--baseline", str(tmp_path / "main" / "r0.json.gz"), new, text=text)
    assert one.returncode == 1  # a single capture knows nothing of the noise between captures


def test_a_folder_of_ranks_is_one_capture(tmp_path):
    """Two ranks in a folder, each side -> one capture a side."""
    for side in ("main", "new"):
        for rank in (0, 1):
            made(tmp_path / side / f"rank{rank}.json.gz", rank=rank, seed=rank)
    args = ("--baseline", str(tmp_path / "main"), str(tmp_path / "new"), "--folders", "ranks")
    done = gate(tmp_path, *args, "--json", text="[step.sum]\nmax_increase_percent = 2\n")
    body = json.loads(done.stdout)
    assert (done.returncode, body["baseline"]["captures"], body["comparability"]["same"]["ranks"]) == (
        0,
        1,
        2,
    )


def test_repeats_given_one_by_one(tmp_path):
    """Several candidates and --baseline several times -> repeats of one side each."""
    paths = [str(made(tmp_path / f"{i}.json.gz", seed=i)) for i in range(6)]
    base = [w for p in paths[:3] for w in ("--baseline", p)]
    done = gate(tmp_path, *base, *paths[3:], "--json")
    body = json.loads(done.stdout)
    assert (done.returncode, body["baseline"]["captures"], body["candidate"]["captures"]) == (0, 3, 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[bucket.attention]\nmax_uss = 3\n", "budgets.toml:2: bucket.attention.max_uss: is not known; did you mean"),
        ("[buckets.attention]\nmax_us = 3\n", "budgets.toml:1: buckets: is not known; did you mean bucket?"),
        ("[bucket.atention]\nmax_us = 3\n", "budgets.toml:1: bucket atention matches nothing in any trace; did you"),
        ('[kernel."_nope*"]\nmax_us = 3\n', "matches nothing"),
        ("[step.sums]\nmax_us = 3\n", "did you mean sum?"),
        ('[step.sum]\n\nmax_us = "3"\n', "budgets.toml:3: step.sum.max_us: '3' is not a number"),
        ("[bucket]\nmax_us = 3\n", "budgets.toml:2: bucket.max_us: a budget is a table; write [bucket.NAME]"),
        ("[step]\nmax_us = 3\n", "write [step.sum] and below it max_us"),
        ("[step.max_us]\nmax_us = 3\n", "a step has no 'max_us'"),
        ("[step.sum]\nmax_us = -3\n", "not within 0"),
        ("[step.sum]\nmax_us = nan\n", "not a number"),
        ("[step.wall]\nmax_launches = 3\n", "makes no sense here"),
        ("[step.sum]\n", "no limit in it"),
        ("", "no budget in it"),
        ("[step.sum\n", "not TOML"),
        ("[step.sum]\nmax_increase_percent = 3\n", "give --baseline"),
        ("schema = 2\n[step.sum]\nmax_us = 3\n", "schema 2 is not known"),
        ("[gate]\nlevel = 95\n[step.sum]\nmax_us = 3\n", "budgets.toml:2: gate.level: 95 is not within"),
        ('[comparability]\nmay_differ = "gpu"\n[step.sum]\nmax_us = 3\n', "list of names"),
        ("[unknown]\nmax_share_percent = 3\n[bucket.unknown]\nmax_us = 3\n", "keep one of the two"),
    ],
)  # fmt: skip
def test_bad_budget_files_end_with_2_and_one_line(tmp_path, pair, text, says):
    """A mistake in the file -> exit code 2, one line with file, line and remedy."""
    done = gate(tmp_path, pair[0], text=text)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_missing_files_end_with_2(tmp_path, pair):
    """No budget file, no trace, no folder for the summary -> exit code 2, one line."""
    text = "[step.sum]\nmax_us = 1000\n"
    for done, says in (
        (cli("gate", "--budget", str(tmp_path / "none.toml"), pair[0]), "none.toml"),
        (gate(tmp_path, "/nowhere/a.json", text=text), "no such file"),
        (gate(tmp_path, pair[0], "--summary", str(tmp_path / "no" / "s.md"), text=text), "--summary"),
        (cli("gate", pair[0]), "--budget"),
    ):
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert says in done.stderr


def test_a_kernel_that_is_gone_is_not_a_kept_budget(tmp_path, pair):
    """The guarded kernel was renamed away -> inconclusive, unless the budget is optional."""
    text = f'[kernel."{ATTENTION}"]\nmax_us = 500\n'
    gone = str(made(tmp_path / "gone.json.gz", copies=0))
    assert gate(tmp_path, "--baseline", pair[0], gone, text=text).returncode == 3
    assert gate(tmp_path, "--baseline", pair[0], gone, text=text + "optional = true\n").returncode == 0


def test_summary_is_appended_beside_the_table(tmp_path, pair):
    """--summary twice -> two Markdown tables in the file, the verdict in each, stdout as ever."""
    out = tmp_path / "summary.md"
    for _ in range(2):
        done = gate(tmp_path, "--baseline", *pair, "--summary", str(out))
        assert "PASS" in done.stdout
    assert out.read_text().count("gate: PASS") == 2
    assert out.read_text().count("| --- |") >= 2


def test_csv_and_markdown(tmp_path, pair):
    """--csv -> one line per check, numbers in ns; --md -> a table."""
    rows = list(csv.DictReader(io.StringIO(gate(tmp_path, "--baseline", *pair, "--csv").stdout)))
    assert [r["limit"] for r in rows][:2] == ["max_us", "max_increase_percent"]
    assert 200_000 < float(rows[0]["candidate"]) < 300_000
    assert gate(tmp_path, "--baseline", *pair, "--md").stdout.startswith("**gate: PASS")


def test_shipped_traces_through_a_process():
    """Shipped variants against docs' example budgets -> 0, 1 and 3 as real exit codes of a process."""
    file = str(Path(__file__).parent / "data" / "gate_shipped.toml")

    def run(base: str, candidate: str) -> int:
        command = [sys.executable, "-m", "hta_dsv4", "gate", "--budget", file, "--baseline", base, candidate]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert run("mma", "split_k") == 0
    assert run("split_k", "original") == 1
    assert run("split_k", "split_k_8k") == 3


def test_a_reduction_that_got_faster_passes(tmp_path):
    """cuda_graph -> moe_tuned, whose reduction starts early and waits: its own time fell, so + 3 % is kept."""
    text = "[comparability]\nmay_differ = ['*']\n[bucket.moe_other]\nmax_increase_percent = 3\n"
    done = gate(tmp_path, "--baseline", "cuda_graph", "moe_tuned", "--json", text=text)
    (check,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, check["verdict"]) == (0, "pass")
    assert check["candidate"] < check["baseline"]


def test_summary_is_never_added_to_an_input(tmp_path, pair):
    """--summary that names the budgets, a trace or a companion -> exit 2, and the file is as it was."""
    text = "[step.sum]\nmax_us = 400\n"
    for victim in (tmp_path / "budgets.toml", *map(Path, pair)):
        budgets(tmp_path / "budgets.toml", text)
        before = victim.read_bytes()
        done = gate(
            tmp_path, "--baseline", *pair, "--companion", pair[0], "--summary", str(victim), text=text
        )
        assert (done.returncode, victim.read_bytes()) == (2, before)
        assert done.stderr == f"hta-dsv4: {victim}: this is a file being read; name another with --summary\n"


@pytest.mark.parametrize(
    ("base", "candidate", "code"), [("moe_tuned", "fp8_split", 0), ("fp8_split", "moe_tuned", 1)]
)
def test_the_examples_budgets_on_shipped_traces(base, candidate, code):
    """The budgets in examples/ over what they were written for -> kept one way, broken the other."""
    file = Path(__file__).parents[1] / "examples" / "budgets.toml"
    assert cli("gate", "--budget", str(file), "--baseline", base, candidate).returncode == code
