"""Sweeps over concurrency: levels, records, tables and captures read back, the campaign's table, what a run prints."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis.speedup import Speedup, speedups
from hta_dsv4.analysis.throughput import (
    Repeat,
    Request,
    Sweep,
    SweepStoppedError,
    levels_of,
    rounds,
    spread,
    throughput,
)
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import figures
from hta_dsv4.present.machine import dumps
from hta_dsv4.present.throughput_grid import line_words, throughput_grids
from hta_dsv4.present.throughput_json import sweep_body
from hta_dsv4.sweep_record import read_sweeps
from tests.conftest import cli

DATA = Path(__file__).parent / "data" / "sweeps"
CAMPAIGN = DATA / "campaign.csv"
H200 = {v: DATA / f"h200_{v}.json" for v in ("original", "mma", "split_k", "cuda_graph")}


def measured(c: int, number: int, step_ms: float, *, ttft_ms: float = 50.0, **changes: object) -> Repeat:
    """A whole repeat of a server: C requests of 100 tokens."""
    step = round(step_ms * 1e6)
    requests = tuple(Request(100, round(ttft_ms * 1e6) + i, step + i) for i in range(c))
    return replace(Repeat(c, number, 99 * step, c * 1e3 / step_ms, requests), **changes)  # type: ignore[arg-type]


def swept(*repeats: Repeat, label: str = "mine", **changes: object) -> Sweep:
    return replace(Sweep(label, "server", repeats), **changes)  # type: ignore[arg-type]


LINE = [measured(c, r, 30 + 10 * c + (r - 2) * 0.1) for r in (1, 2, 3) for c in (1, 4, 16)]


# --- levels ---------------------------------------------------------------------------------------------------


def test_level_is_c_over_the_mean_step_and_repeats_stay_apart() -> None:
    """Three repeats at 39.9, 40 and 40.1 ms -> C over their mean; slowest and fastest kept; requests counted."""
    level = throughput(swept(*LINE)).levels[0]
    assert level.step_ns == pytest.approx(40e6)
    assert level.tokens_per_s == pytest.approx(25)
    assert (level.low_tokens_per_s, level.high_tokens_per_s) == pytest.approx((1e3 / 40.1, 1e3 / 39.9))
    assert (level.repeats, level.tried, level.requests, level.failed, level.tokens) == (3, 3, 3, 0, 300)
    assert level.ttft is not None
    assert level.ttft.n == 3


def test_percentiles_are_values_that_were_measured() -> None:
    """1..100 ns, then 1..10 -> p50 and p99 the smallest value that enough do not exceed; nothing -> no spread."""
    hundred = spread(range(1, 101))
    assert hundred is not None
    assert (hundred.p50_ns, hundred.p99_ns, hundred.mean_ns) == (50, 99, 50.5)
    ten = spread(range(1, 11))
    assert ten is not None
    assert (ten.p50_ns, ten.p99_ns) == (5, 10)
    assert spread([]) is None


def test_a_repeat_with_a_failure_is_reported_and_counts_in_no_figure() -> None:
    """One of C requests failed, the others were fast -> the level is the whole repeats'; the failure is told."""
    broken = measured(
        4, 4, 1.0, tokens_per_s=None, failures=("the server answered 500",), unusable="the batch was not full"
    )
    found = throughput(swept(*LINE, broken))
    level = found.levels[1]
    assert level.step_ns == pytest.approx(70e6)
    assert (level.repeats, level.tried, level.failed) == (3, 4, 1)
    assert level.tpot is not None
    assert level.tpot.n == 12
    said = " ".join(found.notes)
    assert "C=4, repeat 4: 1 failed: the server answered 500" in said
    assert "counts in no figure: the batch was not full" in said
    assert found.line == throughput(swept(*LINE)).line


def test_a_level_without_a_whole_repeat_has_no_figure() -> None:
    """Every repeat at C=16 failed -> no throughput there, and the line is of the other two values."""
    rest = [r for r in LINE if r.concurrency < 16]
    broken = measured(16, 1, 1.0, tokens_per_s=None, failures=("x",) * 3, unusable="not full")
    found = throughput(swept(*rest, broken))
    assert found.levels[2].tokens_per_s is None
    assert found.line is not None
    assert found.line.values == (1, 4)
    table = throughput_grids([found])[0]
    assert table.rows[2][:2] == ("16", "-")
    assert table.rows[2][3] == "0 of 1"


def test_one_value_of_c_has_no_line_and_says_why() -> None:
    """C=4 alone -> no line, the reason names it; no measurement at all -> an error."""
    found = throughput(swept(*[r for r in LINE if r.concurrency == 4]))
    assert found.line is None
    assert found.reason.startswith("only C=4 was measured")
    assert line_words(found) == [found.reason]
    with pytest.raises(HtaDsv4Error, match="without a single measurement"):
        throughput(swept())


def test_few_values_for_a_p99_and_single_repeats_are_said() -> None:
    """Three requests, one repeat each -> notes say that p99 is the largest, and that nothing tests the line."""
    notes = " ".join(throughput(swept(*[r for r in LINE if r.repeat == 1])).notes)
    assert "p99 is the largest value" in notes
    assert "one repeat each" in notes


def test_repeats_that_disagree_are_said() -> None:
    """Repeats at 20 and 40 ms a step -> a note that something besides C changes; 20 and 21 -> none."""
    apart = throughput(swept(measured(4, 1, 20), measured(4, 2, 40)))
    assert any(n.startswith("C=4: repeats differ 2.0 times") for n in apart.notes)
    assert not any("differ" in n for n in throughput(swept(measured(4, 1, 20), measured(4, 2, 21))).notes)


def test_line_that_only_noise_leaves_standing() -> None:
    """Repeats that scatter by half -> not "a line fits" but that nothing rules one out, and to measure more."""
    steps = {1: (20, 60), 4: (30, 90), 16: (40, 130), 32: (150, 400)}
    found = throughput(
        swept(*[measured(c, i, s) for c, both in steps.items() for i, s in enumerate(both, 1)])
    )
    assert found.line is not None
    assert found.line.fits is True
    assert line_words(found)[0].startswith("nothing rules a line out")


def test_rounds_go_up_and_down() -> None:
    """Two rounds -> over all values of C upwards, then downwards: drift is no slope."""
    assert rounds((1, 4, 16), 2) == [(1, 1), (1, 4), (1, 16), (2, 16), (2, 4), (2, 1)]


@pytest.mark.parametrize(("text", "wanted"), [("1,4,16", (1, 4, 16)), (" 16, 4,4 ", (4, 16)), ("7", (7,))])
def test_values_of_c(text: str, wanted: tuple[int, ...]) -> None:
    """Whole numbers with commas -> increasing, each once."""
    assert levels_of(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "1,-4", "1,x", "1.5", "1,,4"])
def test_no_values_of_c(text: str) -> None:
    """Anything else -> one line with an example."""
    with pytest.raises(HtaDsv4Error, match="whole number of at least 1; write 1,4,16"):
        levels_of(text)


# --- the campaign's table, and its like measured on an H200 ---------------------------------------------------


def test_the_campaigns_table_says_what_the_campaign_said_of_mma() -> None:
    """The published tok/s -> MMA: 14 to 15 ms a request and about 70 tok/s; split-K a little more, 64 tok/s."""
    original, mma, split_k = map(throughput, read_sweeps([str(CAMPAIGN)]))
    assert mma.line is not None
    assert 14 < mma.line.per_request_ns / 1e6 < 15
    last = mma.line.segments[-1]
    assert 14 < last.slope_ns / 1e6 < 15
    assert last.ceiling.tokens_per_s == pytest.approx(70.2, abs=0.1)
    assert split_k.line is not None
    assert split_k.line.per_request_ns / 1e6 == pytest.approx(15.66, abs=0.01)
    assert split_k.line.ceiling.tokens_per_s == pytest.approx(63.8, abs=0.1)
    assert split_k.line.ceiling.high == pytest.approx(70.0, abs=0.1)
    # "whatever the kernel" does not hold of the first one: a request more costs it twice as much.
    assert original.line is not None
    assert original.line.per_request_ns / 1e6 == pytest.approx(32.7, abs=0.1)
    assert original.line.ceiling.tokens_per_s == pytest.approx(30.6, abs=0.1)


def test_three_published_points_do_not_bound_mma() -> None:
    """Three points without repeats -> MMA's ceiling is not bounded by them, and that is said beside the estimate."""
    done = cli("sweep", "--from", str(CAMPAIGN))
    assert done.returncode == 0
    assert "mma: a ceiling is not bounded by these data" in done.stdout
    assert "the line itself says 67.13 tok/s" in done.stdout
    assert (
        "from C=16 to 64 a request more costs 14.250 ms; if that goes on, throughput ends at 70.17"
        in done.stdout
    )
    row = next(line for line in done.stdout.splitlines() if line.startswith("split_k"))
    assert row.split()[1:4] == ["22.43", "56.46", "61.98"]


def test_measured_sweep_on_an_h200() -> None:
    """Real sweeps, three repeats -> no line over C=1 to 64; beyond 32, kernels no longer differ but for the first."""
    original, mma, split_k, graph = (throughput(read_sweeps([str(p)])[0]) for p in H200.values())
    for found in (original, mma, split_k, graph):
        assert found.line is not None
        assert found.line.fits is False
        assert not found.line.holds
    last = {t.sweep.label: t.line.segments[-1] for t in (original, mma, split_k, graph) if t.line}
    assert last["mma"].interval is not None
    assert last["mma"].interval[0] < last["split_k"].slope_ns < last["mma"].interval[1]
    assert last["original"].slope_ns > 3 * last["mma"].slope_ns
    assert last["mma"].slope_ns > 10 * last["cuda_graph"].slope_ns
    assert mma.line is not None
    assert mma.line.bend is not None
    assert mma.line.bend.at == 16


def times_of(steps_a: list[float], steps_b: list[float]) -> Speedup:
    """Throughput of b over a's at C=4, from step times in ms."""
    a, b = (
        throughput(swept(*[measured(4, i + 1, s) for i, s in enumerate(steps)], label=label))
        for label, steps in (("a", steps_a), ("b", steps_b))
    )
    (found,) = speedups(a, b)
    return found


def test_speedup_is_the_ratio_of_the_table_with_an_interval_from_the_repeats() -> None:
    """Twice as fast, three repeats each -> 2 times, sure; the same but for noise -> not sure; one repeat -> unknown."""
    fast = times_of([100, 101, 99], [50, 50.2, 49.8])
    assert fast.times == pytest.approx(2)
    assert fast.interval is not None
    assert fast.interval[0] < 2 < fast.interval[1] < 2.1
    assert fast.sure is True
    assert times_of([100, 101, 99], [100.5, 99.5, 99.9]).sure is False
    assert times_of([100], [50, 51]).interval is None
    assert times_of([100], [50, 51]).sure is None


def test_speedup_holds_the_truth_as_often_as_stated() -> None:
    """300 pairs of sweeps, noise of 2 %, twice as fast in truth -> 2 inside the interval in 95 % of them or more."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(300):
        found = times_of(*(list(m * (1 + 0.02 * rng.normal(size=3))) for m in (100.0, 50.0)))
        assert found.interval is not None
        inside += found.interval[0] <= 2 <= found.interval[1]
    assert inside >= 270


def test_variants_side_by_side_have_their_ratios() -> None:
    """Four real sweeps -> each against the first at every C, in text and JSON; one sweep alone -> none."""
    names = [str(p) for p in H200.values()]
    done = cli("sweep", "--from", *names, "--json")
    variants = json.loads(done.stdout)["variants"]
    assert variants[0]["against_first"] is None
    split_k = {s["concurrency"]: s for s in variants[2]["against_first"]}
    assert list(split_k) == [1, 4, 16, 32, 64]
    assert split_k[64]["times"] == pytest.approx(92.56 / 30.60, rel=1e-3)
    low, high = split_k[64]["interval"]
    assert 3.0 < low < split_k[64]["times"] < high < 3.05
    assert "throughput as a multiple of original's" in cli("sweep", "--from", *names).stdout
    assert "multiple of" not in cli("sweep", "--from", names[0]).stdout


def test_notebook_shows_sweeps_side_by_side() -> None:
    """show() of two sweeps -> one table of both, as HTML and Markdown."""
    from hta_dsv4.present.notebook import show

    shown = show(*(throughput(read_sweeps([str(H200[v])])[0]) for v in ("mma", "split_k")))
    assert "throughput as a multiple of mma" in repr(shown)
    assert "<table" in shown._repr_html_()


# --- records, tables and captures -----------------------------------------------------------------------------


def test_record_reads_back_as_measured(tmp_path: Path) -> None:
    """--out, then --from of it -> the same JSON again, variant for variant; the old content never half written."""
    record, again = tmp_path / "a.json", tmp_path / "b.json"
    first = cli("sweep", "--from", str(H200["mma"]), str(H200["original"]), "--out", str(record), "--json")
    second = cli("sweep", "--from", str(record), "--out", str(again), "--json")
    assert first.returncode == second.returncode == 0
    assert json.loads(first.stdout) == json.loads(second.stdout) == json.loads(record.read_text())
    assert record.read_bytes() == again.read_bytes()
    body = json.loads(first.stdout)
    assert (body["schema"], body["command"]) == (1, "sweep")
    assert [v["label"] for v in body["variants"]] == ["mma", "original"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_table_of_csv_reads_back(tmp_path: Path) -> None:
    """--csv of a sweep, read as a table -> the same throughput at each C."""
    table = tmp_path / "t.csv"
    table.write_text(cli("sweep", "--from", str(H200["mma"]), "--csv").stdout)
    back, was = (throughput(read_sweeps([str(p)])[0]) for p in (table, H200["mma"]))
    assert [v.tokens_per_s for v in back.levels] == pytest.approx([v.tokens_per_s for v in was.levels])


def test_label_renames_a_record() -> None:
    """LABEL=FILE and --label -> that name; twice the same name -> an error with the remedy."""
    body = json.loads(cli("sweep", "--from", f"before={H200['mma']}", "--json").stdout)
    assert body["variants"][0]["label"] == "before"
    body = json.loads(cli("sweep", "--from", str(H200["mma"]), "--label", "after", "--json").stdout)
    assert body["variants"][0]["label"] == "after"
    done = cli("sweep", "--from", str(H200["mma"]), str(H200["mma"]))
    assert done.returncode == 2
    assert "two variants of this label; tell them apart with LABEL=PATH" in done.stderr
    assert "one label does not name them" in cli("sweep", "--from", f"x={CAMPAIGN}").stderr


def test_shipped_captures_are_one_variant_by_their_manifests() -> None:
    """split_k at C = 1, 16, 32, 64 -> one variant; step times as its manifests say; GPU time: 10 ms a request."""
    names = ["split_k", "split_k_c1", "split_k_c16", "split_k_c64"]
    (sweep,) = read_sweeps(names)
    found = throughput(sweep)
    assert sweep.label == "split_k"
    assert [v.concurrency for v in found.levels] == [1, 16, 32, 64]
    assert [v.step_ns for v in found.levels] == pytest.approx(
        [500.3908e6, 463.126e6, 560.6656e6, 717.719e6], rel=1e-4
    )
    assert found.line is not None
    assert not found.line.ceiling.bounded  # launches bind the eager steps up to C=32
    (gpu,) = read_sweeps(names, gpu_time=True)
    line = throughput(gpu).line
    assert line is not None
    assert line.per_request_ns / 1e6 == pytest.approx(10.4, abs=0.1)
    assert line.ceiling.tokens_per_s == pytest.approx(96.1, abs=0.1)
    assert "in place of its step time" in gpu.notes[0]


def test_captures_of_other_contexts_are_other_variants() -> None:
    """split_k at 1M and at 8K of maximum context -> two variants, not two points of one."""
    sweeps = read_sweeps(["split_k", "split_k_8k"])
    assert [s.label for s in sweeps] == ["split_k", "split_k_8k"]
    assert all(len(s.repeats) == 1 for s in sweeps)


def test_one_set_of_switches_before_and_after_tuning_is_two_variants() -> None:
    """cuda_graph and moe_tuned, alike in all that a manifest states but the name -> each its own; one LABEL joins."""
    two = read_sweeps(["cuda_graph", "moe_tuned"], gpu_time=True)
    assert [(s.label, len(s.repeats)) for s in two] == [
        ("cuda_graph (GPU time)", 1),
        ("moe_tuned (GPU time)", 1),
    ]
    (one,) = read_sweeps(["x=cuda_graph", "x=moe_tuned"])
    assert (one.label, len(one.repeats)) == ("x", 2)


def test_folder_with_a_manifest_gives_every_variant(tmp_path: Path) -> None:
    """A folder -> each variant of its manifest once, also where a trace of it is named too; without one: an error."""
    from hta_dsv4.shipped import traces_dir

    (mma,) = (s for s in read_sweeps([str(traces_dir()), "mma"]) if s.label == "mma")
    assert len([r for r in mma.repeats if r.concurrency == 32]) == 1
    with pytest.raises(HtaDsv4Error, match=r"holds no manifest\.toml"):
        read_sweeps([str(tmp_path)])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"schema": 1, "command": "sweep", "variants": [{"label": "x"}]}', "a broken record"),
        ("a.json", '{"schema": 1, "command": "sweep", "variants": [', "a broken record"),
        ("a.json", '{"schema": 9, "command": "sweep", "variants": []}', "schema 9; this version reads 1"),
        ("a.json", '{"traceEvents": []}', "neither a record of hta-dsv4 sweep, nor"),
        (
            "a.json",
            '{"schema": 1, "command": "sweep", "variants": [{"label": "x", "source": "server", "repeats": '
            '[{"concurrency": 4, "repeat": 1, "window_ns": 1, "tokens_per_s": -3}]}]}',
            "tokens per second is no throughput",
        ),
        ("a.json", '{"schema": 1, "command": "sweep", "variants": []}', "no variant in it"),
        (
            "a.json",
            '{"schema": 1, "command": "sweep", "variants": [{"label": "x", "source": "server", "repeats": []}]}',
            "x: no measurement in it",
        ),
        ("a.csv", "variant,concurrency,tokens_per_s\nx,4,fast\n", "line 2: tokens_per_s 'fast' is no number"),
        ("a.csv", "variant,tokens_per_s\nx,1\n", "no column concurrency"),
        ("a.csv", "variant,concurrency,tokens_per_s\n", "a table without a line"),
        ("a.csv", "variant,concurrency,tokens_per_s\nx,four,1\n", "line 2: concurrency 'four' is no whole number"),
        ("a.csv", "variant,concurrency,tokens_per_s\nx,4,nan\n", "tokens per second is no throughput"),
        ("a.csv", "variant,concurrency,tokens_per_s\nx,0,1\n", "concurrency 0; must be at least 1"),
    ],
)  # fmt: skip
def test_broken_input_is_one_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    """A record or table that is broken, or something else -> exit 2, one line naming the file."""
    path = tmp_path / name
    path.write_text(content)
    done = cli("sweep", "--from", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1


@settings(max_examples=60)
@given(st.data())
def test_damaged_records_never_crash(data: st.DataObject) -> None:
    """A real record with a value replaced by anything, or cut anywhere -> read, or one line that names the file."""
    body = json.loads(H200["mma"].read_text())
    place: Any = body
    for _ in range(data.draw(st.integers(1, 6))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list):
            break
        place = place[key]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if keys:
        place[data.draw(st.sampled_from(keys))] = data.draw(
            st.one_of(
                st.none(),
                st.integers(),
                st.floats(allow_nan=False),
                st.text(max_size=3),
                st.just([]),
                st.just({}),
            )
        )
    text = json.dumps(body)
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(40, len(text)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.json"
        path.write_text(text)
        said = ""
        try:
            found = [throughput(s) for s in read_sweeps([str(path)])]
        except HtaDsv4Error as error:
            said = str(error)
    if said:
        assert str(path) in said
        assert "\n" not in said
        return
    assert json.loads(dumps("sweep", sweep_body(found)))["command"] == "sweep"
    assert throughput_grids(found)


# --- the command ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to measure; give one of --server URL, --variant NAME, --from FILE"),
        (("--server", "http://x", "--variant", "mma"), "--server and --variant given; give one of"),
        (
            ("--variant", "mma", "--gpu-time"),
            "--gpu-time: means nothing to sweep --variant; it goes with --from",
        ),
        (("--server", "http://x", "--context", "9"), "--context: means nothing to sweep --server"),
        (("--from", str(CAMPAIGN), "-c", "1,2"), "--concurrency: means nothing to sweep --from"),
        (("--from", str(CAMPAIGN), "--gpu-time"), "only captures state their GPU time"),
        (("--from", str(CAMPAIGN), "--label", "x"), "several variants; name each as LABEL=PATH"),
        (("--from", str(CAMPAIGN), "--out", "no/such/folder/x.json"), "there is no folder no/such/folder"),
        (("--from", str(CAMPAIGN), "--out", str(CAMPAIGN)), "a file being read"),
        (("--from", str(CAMPAIGN), "--figure", "x.bmp"), "is no form of a figure"),
        (("--from", str(CAMPAIGN), "--json", "--csv"), "exclude each other"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    """Options that do not go together, or a place that cannot be written -> exit 2, one line with the remedy."""
    done = cli("sweep", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_every_form(tmp_path: Path) -> None:
    """--json, --csv, --md, --parquet and text of one sweep -> the same throughput in each."""
    name = str(H200["cuda_graph"])
    assert "1,102.47" in cli("sweep", "--from", name).stdout
    assert "| 64 | 1,102.47 |" in cli("sweep", "--from", name, "--md").stdout
    rows = cli("sweep", "--from", name, "--csv").stdout.splitlines()
    assert rows[0].startswith('"variant","concurrency","tokens_per_s"')
    assert rows[5].startswith('"cuda_graph",64,1102.4')
    import pandas as pd

    out = tmp_path / "x.parquet"
    assert cli("sweep", "--from", name, "--parquet", str(out)).returncode == 0
    table = pd.read_parquet(out)
    assert table["tokens_per_s"].iloc[-1] == pytest.approx(1102.47, abs=0.01)


def test_page_with_the_figure_works_alone(tmp_path: Path) -> None:
    """--figure x.html -> one page with figure and tables, labels of the user's as text."""
    page = tmp_path / "x.html"
    done = cli("sweep", "--from", f"<b>&={H200['mma']}", str(H200["split_k"]), "--figure", str(page))
    assert done.returncode == 0
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&=" not in text
    assert "102.59" in text


def test_report_shows_variants_that_were_captured_at_several_c(tmp_path: Path) -> None:
    """A report on mma and bf16_gemm -> mma over C with its step and GPU time, by the manifest; the other has one C."""
    from hta_dsv4.shipped import traces
    from hta_dsv4.sweep_record import sweeps_beside

    known = traces()
    found = sweeps_beside([("tensor cores", known["mma"]), ("bf16_gemm", known["bf16_gemm"])])
    assert [s.label for s in found] == ["tensor cores", "tensor cores (GPU time)"]
    assert {r.concurrency for r in found[0].repeats} == {1, 32}
    page = tmp_path / "r.html"
    assert cli("report", "mma", "-o", str(page)).returncode == 0
    text = page.read_text()
    assert "<h2>Throughput over concurrency</h2>" in text
    assert "mma (GPU time)" in text


def test_figure_that_cannot_be_drawn_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--figure x.svg without kaleido, x.bmp -> one line with the remedy, and no server is asked."""
    from hta_dsv4 import cli_sweep

    monkeypatch.setattr(cli_sweep, "find_spec", lambda name: None)
    for name, says in (("x.svg", "kaleido"), ("x.bmp", "no form of a figure")):
        with pytest.raises(HtaDsv4Error, match=says):
            cli_sweep._drawable(Path(name))
    done = cli("sweep", "--server", "http://127.0.0.1:1", "--figure", "x.bmp")
    assert (done.returncode, "no form of a figure" in done.stderr) == (2, True)


def test_figure_draws_every_repeat_and_a_line_only_where_one_holds() -> None:
    """A true line and a bent one -> a point per repeat in both panels; ceiling of the first alone."""
    good = throughput(swept(*LINE, label="good"))
    bent = throughput(read_sweeps([str(H200["mma"])])[0])
    figure = figures.throughput([good, bent])
    points = [t for t in figure.data if t.mode == "markers"]
    assert [len(t.x) for t in points] == [9, 9, 15, 15]
    ceilings = [t for t in figure.data if t.name and t.name.endswith(": ceiling")]
    assert [t.name for t in ceilings] == ["good: ceiling"]
    assert ceilings[0].y[0] == pytest.approx(100, rel=0.01)
    assert good.line is not None
    assert good.line.fits is True
    joined = [t for t in figure.data if t.mode == "lines" and t.name == "mma"]
    assert list(joined[0].y) == pytest.approx([m / 1e6 for m in bent.line.mean_ns])  # type: ignore[union-attr]


def test_a_sweep_that_stops_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after some repeats -> table and record of those, exit 130; a server that went away -> exit 2."""
    pytest.importorskip("httpx")
    from hta_dsv4.serving import sweep as serving

    part = swept(*LINE[:5], notes=("stopped after 5 of 9 measurements: interrupted",))
    record = tmp_path / "x.json"
    for cause, code in ((KeyboardInterrupt(), 130), (HtaDsv4Error("the server no longer answers"), 2)):

        def stop(*_: object, cause: BaseException = cause) -> None:
            raise SweepStoppedError(part, cause)

        monkeypatch.setattr(serving, "run_server_sweep", stop)
        done = cli("sweep", "--server", "http://localhost:1", "--out", str(record))
        assert done.returncode == code
        assert "stopped after 5 of 9" in done.stdout
        assert len(json.loads(record.read_text())["variants"][0]["repeats"]) == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"window_ns": -1}, "window_ns"),
        ({"repeat": -1}, "repeat"),
        ({"step_ns": [-5]}, "step_ns"),
        ({"requests": [{"tokens": -3}]}, "tokens"),
        ({"requests": [{"tokens": 3, "ttft_ns": -1}]}, "ttft_ns"),
        ({"requests": [{"tokens": 3, "tpot_ns": 1 << 63}]}, "tpot_ns"),
        ({"concurrency": 4}, "C=4, repeat 1 stands in it twice"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Negative times and counts, one measurement twice -> one line naming what, as no figure can stand on them."""
    path = tmp_path / "r.json"
    repeats = [{"concurrency": c, "repeat": 1, "window_ns": 9, "tokens_per_s": 50.0 * c} for c in (1, 4)]
    record = {
        "schema": 1,
        "command": "sweep",
        "variants": [{"label": "x", "source": "server", "repeats": repeats}],
    }
    path.write_text(json.dumps(record))
    assert len(read_sweeps([str(path)])[0].repeats) == 2
    repeats[0] |= change
    path.write_text(json.dumps(record))
    with pytest.raises(HtaDsv4Error, match=f"^{path}: .*{said}"):
        read_sweeps([str(path)])


def test_table_of_many_repeats_is_read_in_time(tmp_path: Path) -> None:
    """20,000 lines of one variant -> each a repeat with its number, without looking through the others for it."""
    path = tmp_path / "t.csv"
    path.write_text("variant,concurrency,tokens_per_s\n" + "a,1,10\na,2,20\n" * 10_000)
    (one,) = read_sweeps([str(path)])
    assert [(r.concurrency, r.repeat) for r in one.repeats[-2:]] == [(1, 10_000), (2, 10_000)]
