"""Folders of ranks: which files count, what is missing or double, the table of ranks, and the command."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import hta_dsv4
from hta_dsv4.errors import TraceError
from hta_dsv4.trace.ranks import captures_only, missing_ranks, world_size
from hta_dsv4.trace.reader import read_trace, read_traces
from tests.builders import KinetoTrace, baseline
from tests.conftest import CASES, cli
from tests.gate_traces import made
from tests.rank_traces import Clock, RankSim


def frontend() -> KinetoTrace:
    """What a server's front process writes: Python frames, no GPU, no distributedInfo."""
    t = KinetoTrace(rank=None)
    t.add("python_function", "serve.py(1): loop", 10, 900, 77, 77)
    return t


def graph_capture(rank: int) -> KinetoTrace:
    """Graphs captured at start-up: warm-up kernels, captures, no replay."""
    t = KinetoTrace(rank=rank, world_size=2)
    t.eager("gemm_warmup", 10, at=100)
    t.launch(200, correlation=t.next_id(), name="cudaStreamBeginCapture")
    t.launch(300, correlation=t.next_id(), name="cudaStreamEndCapture")
    t.launch(400, correlation=t.next_id(), name="cudaGraphInstantiate_v12000")
    return t


def names(folder: Path) -> list[str]:
    """Files that were taken, by rank."""
    return [t.path.name for t in read_traces(folder)]


def test_frontend_is_no_rank(tmp_path: Path) -> None:
    """A frontend's trace beside the ranks -> left out and said, whatever its name."""
    RankSim(2, layers=1).write(tmp_path)
    frontend().write(tmp_path / "a_host_123.async_llm.17.pt.trace.json.gz")
    assert names(tmp_path) == ["run-TP-0.trace.json.gz", "run-TP-1.trace.json.gz"]
    warnings = read_traces(tmp_path)[0].warnings
    assert sum("a_host_123" in w and "is no rank" in w for w in warnings) == 1


def test_frontend_named_like_a_rank(tmp_path: Path) -> None:
    """The same under a rank's name -> told by content, so still left out."""
    RankSim(2, layers=1).write(tmp_path)
    frontend().write(tmp_path / "frontend_rank0.pt.trace.json")
    assert names(tmp_path) == ["run-TP-0.trace.json.gz", "run-TP-1.trace.json.gz"]


def test_folder_of_runs_names_them(tmp_path: Path) -> None:
    """No trace but folders in it -> each is a run, and the line names them."""
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    with pytest.raises(TraceError, match=r"name one of those in it \(after, before\)"):
        read_traces(tmp_path)


def test_folder_of_cpu_traces_stays_whole(tmp_path: Path) -> None:
    """No file has GPU activity -> none is left out for having none."""
    for rank in (0, 1):
        t = KinetoTrace(rank=rank, world_size=2)
        t.op("aten::mm", 10, 5)
        t.write(tmp_path / f"rank{rank}.pt.trace.json")
    assert len(names(tmp_path)) == 2


def test_graph_capture_beside_the_real_rank(tmp_path: Path) -> None:
    """A trace of graphs being captured beside a decode of the same rank -> the decode counts, and it is said."""
    RankSim(2, layers=1).write(tmp_path)
    graph_capture(1).write(tmp_path / "CUDA_GRAPH-TP-1.trace.json")
    assert names(tmp_path) == ["run-TP-0.trace.json.gz", "run-TP-1.trace.json.gz"]
    assert any("captures CUDA graphs and replays none" in w for w in read_traces(tmp_path)[0].warnings)


def test_graph_captures_alone_are_read(tmp_path: Path) -> None:
    """Only captures, one a rank -> read: they are all there is."""
    for rank in (0, 1):
        graph_capture(rank).write(tmp_path / f"x-TP-{rank}.trace.json")
    assert len(names(tmp_path)) == 2


def test_replays_are_no_capture(tmp_path: Path) -> None:
    """A trace that captures a graph and replays it -> a decode like any other."""
    t = graph_capture(0)
    t.replay(["gemm_a"], at=500)
    assert not captures_only(read_trace(t.write(tmp_path / "x.json")))
    assert captures_only(read_trace(graph_capture(0).write(tmp_path / "y.json")))


def test_merged_copy_beside_its_ranks(tmp_path: Path) -> None:
    """A merged file beside the files it was merged from -> the single files count, nothing twice."""
    sim = RankSim(2, layers=1)
    sim.merged(sim.write(tmp_path) / "merged-run.trace.json")
    assert names(tmp_path) == ["run-TP-0.trace.json.gz", "run-TP-1.trace.json.gz"]
    assert any("merged copy" in w for w in read_traces(tmp_path)[0].warnings)


def test_two_traces_of_one_rank_refused(tmp_path: Path) -> None:
    """Two decodes of one rank -> one line that names both files and the rank."""
    sim = RankSim(2, layers=1)
    sim.write(tmp_path)
    sim.traces()[1].write(tmp_path / "later-TP-1.trace.json")
    with pytest.raises(TraceError, match=r"later-TP-1.trace.json and run-TP-1.trace.json.gz are both rank 1"):
        read_traces(tmp_path)


def test_missing_ranks_named(tmp_path: Path) -> None:
    """Ranks 0 and 3 of a world of 5 -> 1, 2 and 4 are said to be missing, in warnings, table and JSON."""
    traces = read_traces(RankSim(5, layers=1).write(tmp_path, only=(0, 3)))
    assert (world_size(traces), missing_ranks(traces)) == (5, (1, 2, 4))
    assert any("ranks 1, 2, 4 of 5 are missing" in w for w in traces[0].warnings)
    (variant,) = json.loads(cli("ranks", str(tmp_path), "--json").stdout)["variants"]
    assert (variant["world_size"], variant["missing"]) == (5, [1, 2, 4])
    assert "2 of 5 ranks" in cli("ranks", str(tmp_path)).stdout


@pytest.mark.parametrize("size", [0, -3, "x", None, 2.5, [2], 2**40])
def test_odd_world_sizes(tmp_path: Path, size: object) -> None:
    """A world size that is none -> unknown, nothing missing."""
    t = baseline()
    t.top["distributedInfo"]["world_size"] = size
    traces = [read_trace(t.write(tmp_path / "x.json"))]
    assert (world_size(traces), missing_ranks(traces)) == (None, ())


def test_huge_world_size_takes_no_memory(tmp_path: Path) -> None:
    """A world size of two billion -> only so many missing ranks are listed."""
    t = baseline()
    t.top["distributedInfo"]["world_size"] = 2**31 - 1
    assert len(missing_ranks([read_trace(t.write(tmp_path / "x.json"))])) < 100_000


def test_ranks_are_never_summed(tmp_path: Path) -> None:
    """A folder of three ranks -> each rank's own sum, equal to what its file alone gives."""
    folder = RankSim(3, layers=2, noise_us=3.0).write(tmp_path)
    overview = hta_dsv4.load(folder).ranks_table().overview.set_index("rank")
    for rank in range(3):
        alone = hta_dsv4.load(folder / f"run-TP-{rank}.trace.json.gz").ranks_table().overview.iloc[0]
        assert overview.loc[rank].tolist()[:8] == alone.drop("rank").tolist()[:8]


def test_overview_adds_up(tmp_path: Path) -> None:
    """Every rank -> sum is work plus communication, communication is transfer plus wait, wall is busy plus idle."""
    folder = RankSim(4, layers=3, noise_us=4.0, clocks={2: Clock(10**9)}).write(tmp_path)
    done = cli("ranks", str(folder), "--csv")
    rows = [
        {k: float(v) for k, v in r.items() if k.endswith("_ns")}
        for r in csv.DictReader(io.StringIO(done.stdout))
    ]
    assert len(rows) == 4
    for row in rows:
        assert abs(row["sum_ns"] - row["work_ns"] - row["communication_ns"]) <= 1  # each rounded per step
        assert abs(row["communication_ns"] - row["transfer_ns"] - row["wait_ns"]) <= 1
        assert abs(row["wall_ns"] - row["busy_ns"] - row["idle_ns"]) <= 1


def test_merged_case_as_ranks() -> None:
    """The case of a merged file with text pids -> two ranks, one all-reduce, 4 us of wait on rank 0."""
    run = hta_dsv4.load(CASES / "26-merged-ranks-TP.json")
    assert run.ranks == (0, 1)
    table = run.collectives().table
    assert table[["rank", "dur_ns", "transfer_ns", "wait_ns"]].to_numpy().tolist() == [
        [0, 20_000, 16_000, 4_000], [1, 16_000, 16_000, 0],
    ]  # fmt: skip


def test_two_devices_are_one_rank() -> None:
    """The case of one process with two GPUs -> one rank, no collectives, and why is said."""
    run = hta_dsv4.load(CASES / "36-two-gpus-one-process.json")
    assert run.ranks == (0,)
    assert any("one rank" in n for n in run.collectives().notes)


def test_command_text(tmp_path: Path) -> None:
    """A folder with a straggler -> ranks, buckets, who is late and where, causes, layers and clocks in words."""
    sim = RankSim(2, layers=6, noise_us=1.0)
    sim.straggle(1, 4, "attention", 40)
    done = cli("ranks", f"tp2={sim.write(tmp_path)}")
    assert done.returncode == 0
    for words in (
        "tp2: 2 ranks, never summed", "rank 1 has most work", "13 collectives a step (3 steps)", "layer 4 attention",
        "void extra_work_kernel()", "3 of 3", "clocks of the ranks", "not resolved", "world_size",
    )[:-1]:  # fmt: skip
        assert words in done.stdout


def test_command_says_that_nothing_is_blamed(tmp_path: Path) -> None:
    """No straggler -> said in words."""
    assert "nothing is blamed" in cli("ranks", str(RankSim(2, layers=3).write(tmp_path))).stdout


def test_many_ranks_fit_a_line(tmp_path: Path) -> None:
    """Twelve ranks -> least, median, most and spread instead of a column for each."""
    out = cli("ranks", str(RankSim(12, layers=1, steps=2).write(tmp_path))).stdout
    assert "rank 11 us/step" not in out
    assert "least us/step" in out


@pytest.mark.parametrize("rows", ["ranks", "collectives", "layers", "causes", "clocks", "late"])
def test_every_table_as_csv(tmp_path: Path, rows: str) -> None:
    """Each of --rows -> CSV with a header and at least one row; Parquet of the same columns."""
    sim = RankSim(2, layers=4)
    sim.straggle(1, 2, "moe", 40)
    folder = sim.write(tmp_path / "ranks")
    done = cli("ranks", str(folder), "--csv", "--rows", rows)
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert found
    assert found[0]["variant"] == "ranks"
    target = tmp_path / "x.parquet"
    assert cli("ranks", str(folder), "--parquet", str(target), "--rows", rows).returncode == 0
    assert target.stat().st_size > 0


def test_unknown_table_refused(tmp_path: Path) -> None:
    """--rows with another word -> one line with the choice, exit 2."""
    done = cli("ranks", str(RankSim(2, layers=1).write(tmp_path)), "--csv", "--rows", "nothing")
    assert done.returncode == 2
    assert "choose from ranks, collectives" in done.stderr


def test_json_is_finite_and_whole(tmp_path: Path) -> None:
    """JSON -> one object with ranks, groups, clocks, late ranks and layers; a group that failed says why."""
    sim = RankSim(2, layers=4)
    sim.straggle(1, 2, "moe", 40)
    (variant,) = json.loads(cli("ranks", str(sim.write(tmp_path)), "--json").stdout)["variants"]
    (group,) = variant["groups"]
    assert (group["matched_by"], group["steps"], group["collectives"]) == ("order within the step", 3, 27)
    (late,) = group["late"]
    assert (late["rank"], late["layer"], late["half"], late["cause"]) == (1, 2, "moe", "work")
    total = sum(r["dur_ns"] for r in group["ranks_waits"])
    assert total == sum(r["wait_ns"] for r in group["ranks_waits"]) + 2 * group["transfer_ns"]


def test_markdown(tmp_path: Path) -> None:
    """--md -> Markdown tables."""
    assert "| rank |" in cli("ranks", str(RankSim(2, layers=2).write(tmp_path)), "--md").stdout


def test_graph_takes_layers_from_its_companion(tmp_path: Path) -> None:
    """Replays without scopes beside an eager run of the same ranks -> collectives get their layers from it."""
    eager = RankSim(2, layers=3, steps=2)
    eager.write(tmp_path / "eager")
    graph = RankSim(2, layers=3, steps=2, args=False, graph=True)
    graph.straggle(1, 1, "moe", 40)
    folder = graph.write(tmp_path / "graph")
    done = cli("ranks", str(folder), "--companion", str(tmp_path / "eager"))
    assert done.returncode == 0
    assert "layer 1 moe" in done.stdout


def test_what_is_said_of_collectives_is_read(tmp_path: Path) -> None:
    """Kineto's arguments of a collective -> one JSON text on its kernel, with or without the CPU side; NA elsewhere."""
    path = RankSim(2, layers=1, steps=1, seq=True).traces()[1].write(tmp_path / "x.json")
    for cpu in (True, False):
        acts = read_trace(path, cpu=cpu).activities
        said = acts["collective"]
        assert said.notna().tolist() == acts["name"].str.startswith("nccl").tolist()
        assert json.loads(said.dropna().iloc[1]) == {
            "name": "allreduce", "group": "0", "ranks": "[0, 1]", "elements": 131072, "dtype": "BFloat16", "seq": 1,
            "elements_out": 131072, "size": 2,
        }  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 9, 20])
def test_the_median_is_one_ranks_own_everywhere(tmp_path, ranks):
    """2 to 20 ranks, each slower than the last -> the lower middle one is the median in words, columns and JSON."""
    for rank in range(ranks):
        made(
            tmp_path / f"rank{rank}.json.gz",
            attention=100 + 10 * rank,
            rank=rank,
            world_size=ranks,
            noise=0.0,
        )
    middle = (ranks - 1) // 2
    one = json.loads(cli("ranks", str(tmp_path), "--json").stdout)["variants"][0]
    assert one["ranks"][middle]["over_median"] == 0
    for row in one["rows"]:
        assert row["median_ns"] == sorted(row["each_ns"].values())[middle]
    assert all(isinstance(r["median_ns"], int) for r in one["rows"])
    shares = cli("shares", str(tmp_path)).stdout
    name = "lower of two" if ranks == 2 else "median" if ranks % 2 else "lower median"
    assert f"rank {middle} is the {name} by own time" in shares
    assert any(line.rstrip().endswith(name) for line in shares.splitlines()[1:])  # the column's header
    said = cli("ranks", str(tmp_path)).stdout
    assert f"% over {name}" in said
    assert f"over the {'other' if ranks == 2 else name} rank" in said
    body = json.loads(cli("shares", str(tmp_path), "--json").stdout)["variants"][0]
    assert body["median_rank"] == middle
    attention = next(line for line in shares.splitlines() if line.startswith("attention"))
    assert attention.split()[-1] == f"{2 * (100 + 10 * middle):,}.000"
    spread = next(x for x in cli("ranks", str(tmp_path)).stdout.splitlines() if x.startswith("attention"))
    own = next(r for r in one["rows"] if r["bucket"] == "attention")
    assert own["own_median_ns"] == sorted(own["own_each_ns"].values())[middle]
    assert f"{own['own_median_ns'] / 1e3:,.3f}" in spread
