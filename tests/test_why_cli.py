"""``diff`` and ``scaling`` as a user meets them: what is printed, JSON that adds up, one line for each mistake."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from hta_dsv4 import shipped
from hta_dsv4.analysis.why import Captured, explain
from hta_dsv4.present.diff_grid import explanation_grids
from tests.conftest import CASES, cli
from tests.variants import variant

PROBE = str(shipped.traces()["h200_probe"])
A, B = f"a={CASES / '34-diff-a.json'}", f"b={CASES / '34-diff-b.json'}"


def sweep_trace(path: Path, indexer_us: float, steps: int = 8) -> Path:
    """A trace of ``steps`` ProfilerSteps, each an indexer scoring kernel and an attention kernel."""
    events: list[dict[str, object]] = []
    for i in range(steps):
        at = 1_000.0 + i * 50_000
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{i}",
                "pid": 1,
                "tid": 1,
                "ts": at,
                "dur": 49_000,
            }
        )
        for k, (name, us) in enumerate(
            (("fp8_mqa_logits_kernel", indexer_us), ("_sparse_mla_split_kernel", 700.0))
        ):
            link = 10 * i + k + 1
            events.append(
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1,
                    "tid": 1,
                    "ts": at + 10 + k,
                    "dur": 1,
                    "args": {"correlation": link},
                }
            )
            events.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name,
                    "pid": 0,
                    "tid": 7,
                    "ts": at + 100 + 20_000 * k,
                    "dur": us + i % 3,
                    "args": {
                        "correlation": link,
                        "device": 0,
                        "stream": 7,
                        "grid": [1, 1, 1],
                        "block": [128, 1, 1],
                    },
                }
            )
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_the_explanation_adds_up_in_json():
    """Diff --json of the hand-made pair -> effects, rows and kernels sum to -19 us, residual 0, quant_e extra."""
    body = json.loads(cli("diff", A, B, "--json").stdout)
    (pair,) = body["explanation"]["pairs"]
    assert body["explanation"]["whole"] is None
    assert (pair["per_step"]["delta"]["sum_ns"], pair["residual_ns"]) == (-19_000, 0)
    assert pair["effects"] == {
        "count_ns": 0,
        "duration_ns": -28_000,
        "appeared_ns": 9_000,
        "disappeared_ns": 0,
    }
    for rows in (pair["rows"], pair["kernels"]):
        assert sum(r["delta_ns"] for r in rows) == -19_000
    times = pair["per_step"]["delta"]
    for total in pair["over_steps"].values():
        assert total["wall_ns"] == total["sum_ns"] - total["overlap_ns"] + total["idle_ns"]
    renamed = next(k for k in pair["kernels"] if k["method"] == "suffix")
    assert (renamed["base_names"], renamed["delta_ns"]) == (["triton_poi_fused_mul_3"], -30_000)
    assert (pair["extra"], pair["unmatched"]) == (["quant_e"], [])
    # a step of a ends at 360 us, of b at 509; a step begins every 1,000 us in both
    assert (times["wall_ns"], times["between_ns"] < 0, pair["wall_change"]["verdict"]) == (
        149_000,
        True,
        "beyond spread",
    )


def test_the_text_says_why_in_one_line():
    """Diff in text -> the sum's change with its effects and the wall's, too few steps said once, no traceback."""
    text = cli("diff", A, B).stdout
    assert (
        "sum 160.000 -> 141.000 us/step: -19.000 (-11.9 %, beyond spread) = count 0, duration -28.000, "
        "appeared +9.000" in text
    )
    assert text.count("no intervals: only 3 or 4 steps recorded, an interval needs 6") == 1
    assert text.count("one capture per variant") == 1


def test_a_variant_against_itself_finds_nothing():
    """The probe twice -> every verdict unchanged, all effects 0, no rewrite, no table of movers."""
    body = json.loads(cli("diff", f"a={PROBE}", f"b={PROBE}", "--json").stdout)
    (pair,) = body["explanation"]["pairs"]
    assert set(pair["effects"].values()) == {0}
    assert {r["change"]["verdict"] for r in (*pair["rows"], *pair["kernels"])} == {"unchanged"}
    assert pair["rewrites"] == []
    assert "moved most" not in cli("diff", f"a={PROBE}", f"b={PROBE}").stdout


def test_three_variants_give_two_changes_and_the_whole():
    """a, b and a again -> a to b, b to a, and a whole of 0."""
    body = json.loads(cli("diff", A, B, f"c={CASES / '34-diff-a.json'}", "--json").stdout)["explanation"]
    assert [(p["base"], p["other"]) for p in body["pairs"]] == [("a", "b"), ("b", "c")]
    assert [p["per_step"]["delta"]["sum_ns"] for p in body["pairs"]] == [-19_000, 19_000]
    assert body["whole"]["per_step"]["delta"]["sum_ns"] == 0


def test_a_repeated_capture_gives_across_run_evidence():
    """--again with the same trace -> the floor across runs is 0 and the change is real across runs."""
    body = json.loads(cli("diff", A, B, "--again", A, "--json").stdout)
    change = body["explanation"]["pairs"][0]["sum_change"]
    assert (change["within_run"], change["across_run"], change["verdict"]) == (
        "beyond spread",
        "real",
        "real",
    )


def test_a_trace_without_steps_is_compared_by_share_and_says_why_not_more(tmp_path):
    """No markers, nothing periodic -> shares as before, explanation null with its reason, exit 0."""
    kernels = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": n,
            "pid": 0,
            "tid": 7,
            "ts": 10 * i,
            "dur": 5,
            "args": {"device": 0, "stream": 7},
        }
        for i, n in enumerate("pqrs")
    ]
    path = tmp_path / "none.json"
    path.write_text(json.dumps({"traceEvents": kernels}))
    done = cli("diff", A, f"none={path}", "--json")
    body = json.loads(done.stdout)["explanation"]
    assert (done.returncode, body["pairs"]) == (0, [])
    assert "none has no steps" in body["reason"]
    assert "not explained: none has no steps" in cli("diff", A, f"none={path}").stdout


def test_split_k_is_told_as_a_split_with_a_cost_of_its_own():
    """Attention of 60 us -> split of 22 us and combine of 4 us in 43 layers: the notes say so, the headline adds up."""

    def step(*attention: tuple[str, int]) -> list[tuple[str, int]]:
        return [("dense_gemm.dense.gemm", 20_000), *attention, ("glue.pointwise.mul", 3_000)] * 43

    mma = variant("mma", [step(("attention.attention_core.mhead", 60_000))] * 8)
    split = [("attention.attention_core.part", 22_000), ("attention.attention_combine.merge", 4_000)]
    why = explain([Captured(mma), Captured(variant("split_k", [step(*split)] * 7))], ["bucket"])
    effects, movers, rewrites, sure = explanation_grids(why, full=True)
    assert effects.title == "mma -> split_k"
    assert effects.lead[0].startswith(
        "sum 3,569.000 -> 2,107.000 us/step: -1,462.000 (-41.0 %, structural) = count 0, duration 0, "
        "appeared +1,118.000"
    )
    assert "attention_combine is new in split_k: it costs 172.000 us per step" in effects.notes
    (split_note,) = [n for n in effects.notes if "became 2" in n]
    assert split_note.endswith("43x per step: 43 launches more and 1,462.000 us saved per step")
    assert [r[0] for r in rewrites.rows] == ["split"]
    assert len(movers.rows) == 3
    verdict = {r[0]: r[effects.headers.index("verdict")] for r in effects.rows}
    assert verdict == {"attention": "structural", "dense_gemm": "unchanged", "glue": "unchanged"}
    assert not any("no intervals" in n for n in sure.notes)


@pytest.mark.parametrize("form", ["--json", "--csv", "--md", ""])
def test_scaling_names_the_indexer(tmp_path, form):
    """Indexer time proportional to max context, attention constant -> the indexer is named, in every form."""
    inputs = [f"{x}={sweep_trace(tmp_path / f'c{x}.json', x / 100)}" for x in (8_192, 65_536, 262_144)]
    done = cli("scaling", *inputs, "--param", "max_context", *([form] if form else []))
    assert (done.returncode, done.stderr) == (0, "")
    if form == "--json":
        body = json.loads(done.stdout)
        (name,) = body["flagged"]
        row = next(r for r in body["rows"] if r["name"] == name)
        assert name == "indexer"
        assert row["power_law"]["power"] == pytest.approx(1, abs=0.02)
        assert row["linear"]["slope_ns"] == pytest.approx(10, rel=0.02)
    elif form == "--csv":
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        assert {r["bucket"] if "bucket" in r else r["origin"] for r in rows if r["flagged"] == "1"} == {
            "indexer"
        }
    else:
        assert "indexer grows with" in done.stdout.replace("\\", "")


def test_scaling_reads_the_parameter_from_the_manifest(tmp_path):
    """Two captures with manifests and no X= -> their max_context is used."""
    for x in (8_192, 65_536):
        sweep_trace(tmp_path / f"c{x}.json", x / 100)
    times = "unprofiled_step_ms unprofiled_min_ms unprofiled_max_ms profiled_step_ms profiler_overhead tokens_per_s"
    timing = "".join(f"{k} = 1.0\n" for k in (*times.split(), "activity_ms", "activities", "launches"))
    (tmp_path / "manifest.toml").write_text(
        "\n".join(
            f'[[trace]]\ntrace = "c{x}.json"\nvariant = "v"\nconcurrency = 32\nsteps = 8\nwarmup = 0\n'
            f'captured_at = ""\n'
            f"max_context = {x}\n[trace.timing]\nunprofiled_steps = 3\n{timing}"
            for x in (8_192, 65_536)
        )
    )
    paths = [str(tmp_path / f"c{x}.json") for x in (8_192, 65_536)]
    body = json.loads(cli("scaling", *paths, "--param", "max_context", "--json").stdout)
    assert (body["values"], body["flagged"]) == ([8_192, 65_536], ["indexer"])
    refused = cli("scaling", *paths, "--param", "page_size")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "manifests state only max_context, context, concurrency" in refused.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["scaling", f"8192={PROBE}"], "at least two different values"),
        (["scaling", PROBE, PROBE], "X=TRACE"),
        (["scaling", PROBE, PROBE, "--param", "max_context"], "no manifest"),
        (["scaling", f"0={PROBE}", f"1={PROBE}"], "above 0"),
        (["scaling", f"1={PROBE}", f"2={PROBE}", "--by", "bucket,role"], "single key"),
        (["scaling", f"1={PROBE}", f"2={PROBE}", "--by", "colour"], "colour"),
        (["diff", A, B, "--again", f"c={PROBE}"], "repeats no variant"),
    ],
)
def test_a_mistake_is_one_line(args, says):
    """One value, no value, no manifest, zero, two keys, an unknown repeat -> one line on stderr, exit 2."""
    done = cli(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
