"""Sweeps read back: records, CSV tables, captures by their manifests; broken ones are one line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.analysis.speedup import speedups
from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.machine import dumps
from hta_dsv4.present.throughput_grid import throughput_grids
from hta_dsv4.present.throughput_json import sweep_body
from hta_dsv4.runs.sweep_record import read_sweeps
from tests.conftest import cli
from tests.sweeps import CAMPAIGN, H200


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
    assert line.ceiling.tokens_per_s == pytest.approx(96.2, abs=0.1)
    assert "in place of its step time" in gpu.notes[0]


def test_gpu_time_is_own_time() -> None:
    """tuned_c1, whose kernels start early -> 9.70 ms of GPU time, below its step of 10.90, not the sum's 11.19."""
    (sweep,) = read_sweeps(["tuned_c1"], gpu_time=True)
    (step,) = read_sweeps(["tuned_c1"])
    assert sweep.repeats[0].mean_step_ns == pytest.approx(9.702273e6, rel=1e-6)
    assert step.repeats[0].mean_step_ns == pytest.approx(10.9022e6, rel=1e-6)
    assert "summed" not in sweep.notes[0]


def test_a_manifest_without_own_time_is_told(tmp_path: Path) -> None:
    """A manifest of before own times -> its summed durations, and the note says at which C and what they count."""
    from hta_dsv4.shipped import traces_dir

    text = (traces_dir() / "manifest.toml").read_text()
    older = "\n".join(line for line in text.splitlines() if not line.startswith("own_ms"))
    (tmp_path / "manifest.toml").write_text(older)
    sweep = next(s for s in read_sweeps([str(tmp_path)], gpu_time=True) if s.label == "tuned (GPU time)")
    assert sweep.repeats[0].mean_step_ns == pytest.approx(11.194338e6, rel=1e-6)
    assert "at C=1, 32 the manifest states summed durations alone" in sweep.notes[0]


def test_gpu_time_is_no_multiple_of_step_time() -> None:
    """Steps of mma beside its own GPU time -> no multiple of each other; of alike ones there is."""
    steps, gpu = (throughput(read_sweeps(["mma", "mma_c1"], gpu_time=g)[0]) for g in (False, True))
    other = throughput(read_sweeps(["split_k", "split_k_c1"], gpu_time=True)[0])
    titles = [g.title for g in throughput_grids([steps, gpu])]
    assert not any("as a multiple" in t for t in titles)
    assert [v["against_first"] for v in sweep_body([steps, gpu])["variants"]] == [None, []]
    assert [s.concurrency for s in speedups(gpu, other)] == [1, 32]
    (alike,) = [g for g in throughput_grids([gpu, other, steps]) if "as a multiple" in g.title]
    assert [row[0] for row in alike.rows] == ["split_k (GPU time)"]


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
