"""The shipped campaign, told by the tool: what each change did, who asked for the time, what grows without need.

Times are the traces' own; each trace is read once for all tests of this file.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hta_dsv4 import shipped
from hta_dsv4.analysis import shares as sh
from hta_dsv4.analysis.stats import BEYOND_SPREAD, STRUCTURAL, WITHIN_SPREAD
from hta_dsv4.analysis.why import Explanation, Why
from hta_dsv4.present.diff_grid import explanation_grids
from hta_dsv4.runs import comparing
from hta_dsv4.runs.loading import load
from hta_dsv4.runs.profiler_cost import Recorded, profiler_notes, recorded, reversals
from hta_dsv4.runs.run import Run
from hta_dsv4.trace import activities as col
from tests.conftest import cli

TRACES = shipped.traces()


class Story:
    """Shipped runs, read when first asked for."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def __call__(self, name: str) -> Run:
        if name not in self.runs:
            self.runs[name] = load(TRACES[name], label=name)
        return self.runs[name]


@pytest.fixture(scope="module")
def story() -> Story:
    return Story()


@pytest.fixture(scope="module")
def chain(story: Story) -> Explanation:
    return comparing.why([story(n) for n in ("original", "mma", "split_k")], "bucket")


def rows(why: Why) -> dict[str, tuple[int, str]]:
    """Row -> change in ns per step, and its verdict."""
    changes = [c.verdict for c in why.row_changes]
    return {
        r: (int(ns), v) for r, ns, v in zip(why.rows["bucket"], why.rows["delta_ns"], changes, strict=True)
    }


def test_the_chain_is_explained_to_the_nanosecond(chain):
    """Original, mma, split_k -> residual 0 in each change, at every level, and the changes add up to the whole."""
    for why in (*chain.pairs, chain.whole):
        assert why.decomposition.residual_ns == 0
        for by in ("bucket", "role", "origin", "kernel", ("bucket", "origin")):
            table = why.decomposition.table(by)
            assert table["delta_ns"].sum() == why.decomposition.change.own_ns
        change = why.decomposition.change
        # each is the nearest ns of a mean over two steps, or a difference of two such
        assert abs(change.wall_ns - (change.own_ns - change.streams_ns + change.idle_ns)) <= 2
        assert abs(change.own_ns - (change.sum_ns - change.early_ns)) <= 2
    total = sum(why.decomposition.change.own_ns for why in chain.pairs)
    ends = chain.whole.decomposition
    assert total == ends.change.own_ns
    # one stream: own time is busy time, of two steps
    busy = [int(side.times["busy"].sum()) for side in (ends.base, ends.other)]
    assert abs(total - (busy[1] - busy[0]) / 2) <= 1
    assert ends.change.sum_ns == -703_213_790


def test_tensor_cores_take_the_attention_away(chain):
    """Original -> mma: 702 of 703 ms go with the SIMT kernel: structural, though only 2 steps were recorded."""
    first = chain.pairs[0]
    assert rows(first)["attention"] == (-700_775_698, STRUCTURAL)
    assert first.sum_change.verdict == STRUCTURAL
    assert first.sum_change.interval is None
    (gone,) = [m.name for m in first.decomposition.unmatched if "sparse_mla" in m.name]
    assert gone == "_sparse_mla_simt_kernel"


def test_split_k_is_named_with_its_own_cost(chain):
    """Mma -> split_k: 1 kernel became 2 in 43 layers, the combine owns 453 of its 945 us, attention falls by 471."""
    second = chain.pairs[1]
    (rewrite,) = [r for r in second.alignment.rewrites if r.kind == "split"]
    assert (rewrite.other, rewrite.times) == (
        ("_sparse_mla_split_k_kernel", "_sparse_mla_combine_kernel"),
        43,
    )
    effects = explanation_grids(chain)[2]
    assert "attention_combine is new in split_k: it costs 453.316 us per step" in effects.notes
    assert second.sum_change.verdict == WITHIN_SPREAD
    kernel = dict(zip(second.kernels["kernel"], second.kernel_changes, strict=True))
    assert kernel["_sparse_mla_combine_kernel"].verdict == STRUCTURAL
    assert rows(second)["attention"] == (-470_835, STRUCTURAL)
    assert "appeared +1,218.819 (attention_core +765.503)" in effects.lead[0]


def test_the_text_is_short_and_says_each_thing_once(chain):
    """The three-way diff in words -> under 70 lines at most, each note once; everything with top 0."""
    grids = explanation_grids(chain)
    notes = [n for g in grids for n in g.notes]
    assert len(notes) == len(set(notes))
    assert sum(len(g.rows) + len(g.footer) + len(g.lead) + len(g.notes) + 3 for g in grids) < 70
    for g in grids:
        if g.headers and g.headers[0] == "bucket":
            for column in (1, 2):
                parts = [float(r[column].replace(",", "")) for r in g.rows]
                assert sum(parts) == pytest.approx(float(g.footer[0][column].replace(",", "")), abs=1e-6)
    whole = explanation_grids(chain, top=0)
    assert sum(len(g.rows) for g in whole) > 3 * sum(len(g.rows) for g in grids)


def test_nothing_is_resampled_for_a_few_steps(story, monkeypatch):
    """Thousands of launches, 2 steps -> verdicts come in closed form; drawing resamples would take half a minute."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("resampled")

    monkeypatch.setattr("hta_dsv4.analysis.stats.resample", refuse)
    monkeypatch.setattr("hta_dsv4.analysis.bootstrap.resample", refuse)
    why = comparing.why([story("mma"), story("split_k")], "kernel").pairs[0]
    assert sum("single launches" in c.reason for c in why.kernel_changes) > 20


def test_waiting_for_the_host_is_told_from_working(chain):
    """Original is busy; mma and split_k wait for launches in over 90 % of their idle time; gaps are the idle time."""
    original, mma, split_k = chain.pairs[0].base_idle, chain.pairs[0].other_idle, chain.pairs[1].other_idle
    assert (original.host_bound, mma.host_bound, split_k.host_bound) == (False, True, True)
    assert min(mma.queue_empty_share, split_k.queue_empty_share) > 0.9
    for found, why in ((mma, chain.pairs[0]), (split_k, chain.pairs[1])):
        assert abs(found.idle_ns / found.steps - why.decomposition.other.per_step.idle_ns) <= 1
    assert "mma and split_k are host-bound" in explanation_grids(chain)[2].lead[2]


def test_the_profilers_part_of_the_idle_time_is_said(story):
    """Manifest: 560.7 ms a step unprofiled, 910.3 recorded -> two thirds of the idle time; a shared note for three."""
    table = story("split_k").shares()
    found = recorded(story("split_k"), table)
    assert found.unprofiled_ms == pytest.approx(560.7, abs=0.1)
    assert found.wall_ms == pytest.approx(910.3, abs=0.1)
    assert found.profiler_share == pytest.approx((found.wall_ms - found.unprofiled_ms) / found.idle_ms)
    names = ["original", "mma", "split_k"]
    note, overlap = profiler_notes([story(n) for n in names], [story(n).shares() for n in names])
    assert overlap.startswith("without the profiler mma 543.2 (540.3 to 555.9) and split_k 560.7 (532.3")
    assert "original 1,107.2, mma 543.2, split_k 560.7 ms" in note


def test_order_that_only_the_recording_has_is_said():
    """Other order without the profiler, or none -> a sentence on the pair; the same order, or walls alike -> none."""
    long, short = (
        Recorded("long", 218.0, (209.0, 230.0), 484.0, 433.0),
        Recorded("short", 241.5, (235.0, 250.0), 314.2, 279.0),
    )
    (note,) = reversals([long, short])
    assert note.startswith(
        "without the profiler short is slower: long 218.0 (209.0 to 230.0) and short 241.5"
    )
    assert "from 484.0 to 314.2 ms, says what the profiler added" in note
    assert reversals([short, long])[0].startswith("without the profiler long is faster")
    (note,) = reversals([long, replace(short, range_ms=(187.0, 346.0))])
    assert "346.0) ms a step overlap: the recorded wall time, from 484.0 to 314.2 ms, does not order" in note
    fast = Recorded("fast", 53.5, (52.9, 55.6), 56.1, 4.0)
    assert [("long" in n, "short" in n) for n in reversals([long, fast, short])] == [(True, True)]  # the ends
    assert reversals([long, fast]) == reversals([long, replace(short, wall_ms=485.0)]) == ()
    assert reversals([long]) == reversals([]) == ()


def test_a_broken_manifest_is_a_note_and_no_failure(tmp_path):
    """A manifest that is not TOML beside a trace -> the shares all the same, and a note that names the file."""
    trace = tmp_path / "h200_probe.trace.json.gz"
    trace.write_bytes(TRACES["h200_probe"].read_bytes())
    assert "profiler" not in cli("shares", str(trace)).stdout
    (tmp_path / "manifest.toml").write_text("[[trace]\n")
    done = cli("shares", str(trace), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "manifest.toml: not TOML" in json.loads(done.stdout)["variants"][0]["notes"][0]


def test_the_glue_is_the_indexers(story):
    """split_k by bucket,origin -> over 95 % of the time has an origin; of 66 % glue, 61 points are the indexer's."""
    table = story("split_k").shares("bucket,origin").table
    assert table.loc[table["origin"] != "unknown", sh.SHARE].sum() >= 0.95
    share = table.set_index(["bucket", "origin"])[sh.SHARE]
    assert share["glue"].sum() == pytest.approx(0.665, abs=0.005)
    assert share["glue", "indexer"] == pytest.approx(0.612, abs=0.005)


def test_the_graph_knows_its_origins_from_its_companion(story):
    """cuda_graph with its companion -> at least 90 % with an origin, launch by launch the eager one's in 98 %."""
    graph = load(TRACES["cuda_graph"], label="cuda_graph", companion=TRACES["cuda_graph_eager"])
    eager = story("cuda_graph_eager")
    assert (
        graph.shares("origin").table.set_index("origin")[sh.SHARE].drop("unknown", errors="ignore").sum()
        >= 0.90
    )

    def by_kernel(run: Run) -> dict[tuple[object, ...], list[str]]:
        """Kernel and grid -> origins of its launches in the first counted step, in order."""
        part = run.counted
        acts = part.activities[part.step == 0]
        keys = acts[[col.NAME, col.GRID_X, col.GRID_Y, col.GRID_Z]].astype({col.NAME: str}).fillna(-1)
        out: dict[tuple[object, ...], list[str]] = {}
        for *key, origin in zip(*(keys[c] for c in keys), acts[col.ORIGIN].astype(str), strict=True):
            out.setdefault(tuple(key), []).append(origin)
        return out

    one, two = by_kernel(graph), by_kernel(eager)
    assert {k: len(v) for k, v in one.items()} == {k: len(v) for k, v in two.items()}
    pairs = [(a, b) for k in one for a, b in zip(one[k], two[k], strict=True)]
    assert len(pairs) == 2088
    assert sum(a == b for a, b in pairs) >= 0.98 * len(pairs)
    why = comparing.why([eager, graph], "origin").pairs[0]
    assert why.decomposition.effects["appeared_ns"] == why.decomposition.effects["disappeared_ns"] == 0
    assert why.wall_change.verdict == BEYOND_SPREAD
    assert (why.base_idle.host_bound, why.other_idle.host_bound) == (True, False)


def test_replaying_blind_loses_no_kernel(story):
    """mhc_fused -> cuda_graph without a companion, origins partly unknown -> no kernel appears or goes for that."""
    graph = load(TRACES["cuda_graph"], label="cuda_graph")
    why = comparing.why([story("cuda_graph_eager"), graph], "kernel").pairs[0]
    assert why.decomposition.effects["appeared_ns"] == why.decomposition.effects["disappeared_ns"] == 0
    assert why.decomposition.effects["count_ns"] == 0


def test_only_the_indexer_grows_with_the_maximum_context(story):
    """8K, 64K, 1M maximum, 4,096 real tokens -> the indexer is flagged, alone."""
    points = [(8_192, story("split_k_8k")), (65_536, story("split_k_64k")), (1_048_576, story("split_k"))]
    found = comparing.scaling(points, "max_context")
    assert found.by == "origin"
    assert [f.name for f in found.flagged] == ["indexer"]
    assert found.flagged[0].growing_share > 0.75
