"""Origins under graph replay: carried over from an eager companion, or inferred and marked so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hta_dsv4.classify import matching
from hta_dsv4.classify.architecture import read_activities
from hta_dsv4.classify.graphs import from_companion
from hta_dsv4.classify.inference import infer
from hta_dsv4.classify.matching import BY_NAME, EXACT, UNMATCHED, match_sequences
from hta_dsv4.classify.origin_columns import COMPANION, MULTIPLICITY, NEIGHBOUR
from hta_dsv4.classify.origins_file import default_origins
from hta_dsv4.classify.rules_file import default_rules
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.steps import GRAPH, PERIOD, PROFILER, find_steps
from tests.builders import KinetoTrace
from tests.campaign import COPY, MULTIPLY, SGEMM, campaign
from tests.conftest import cli
from tests.frames import kernel, make_trace, marker

COPY_K, MUL_K, GEMM_K = "at::copy_kernel", "at::mul_kernel", "cutlass_80_simt_sgemm_64x128_8x5_tn_align1"


def step_parts(layers: int = 8) -> list[tuple[str, str, tuple[int, int, int]]]:
    """(kernel, scope, grid) of one step in order: what is glue by name belongs to several parts."""
    out = [("embedding_kernel", "embedding", (32, 1, 1))]
    for i in range(layers):
        at = f"layer.{i}"
        out += [
            (GEMM_K, f"{at}/mhc_pre/attention", (1, 4, 1)),
            *[(MUL_K, f"{at}/mhc_pre/attention", (2, 1, 1))] * 3,
        ]
        out += [
            ("norm_kernel", f"{at}/norm/attention", (32, 1, 1)),
            ("gemm_fp8", f"{at}/attention/q_kv_proj", (24, 1, 1)),
        ]
        if i % 2:
            out += [(COPY_K, f"{at}/indexer/logits", (4096, 1, 1))] * 4
            out += [
                (GEMM_K, f"{at}/indexer/logits", (2, 64, 32)),
                (MUL_K, f"{at}/indexer/logits", (999, 1, 1)),
            ]
        out += [
            ("attn_kernel", f"{at}/attention/core", (32, 4, 1)),
            (COPY_K, f"{at}/attention/out_proj", (7, 1, 1)),
        ]
        out += [("moe_kernel", f"{at}/moe/experts", (188, 1, 1)), (MUL_K, f"{at}/mhc_post/moe", (2, 1, 1))]
    return [*out, ("lm_head_gemm", "head/lm_head", (500, 1, 1)), ("argmax_kernel", "sampling", (1, 1, 1))]  # fmt: skip


def grid(g: tuple[int, int, int]) -> dict[str, object]:
    return dict(zip((col.GRID_X, col.GRID_Y, col.GRID_Z), g, strict=True))


def eager(steps: int = 3, drop: set[int] = frozenset(), extra: int = 0, regrid: int = 1) -> Trace:
    """The step run eagerly, each launch in its scope; ``drop``: kernels left out; ``extra``: fills put in between."""
    rows, events, at = [], [], 0
    for s in range(steps):
        begin = at
        for i, (name, scope, g) in enumerate(step_parts()):
            if extra and i % extra == 0:
                rows.append(
                    kernel(
                        "at::fill_kernel", at + 50, 3, launch=at, **{col.SCOPE: scope, col.OP: "aten::fill_"}
                    )
                )
                at += 10
            if i not in drop:
                more = {
                    col.SCOPE: f"ProfilerStep#{s} > {scope}",
                    col.OP: f"op{i}",
                    **grid((g[0] * regrid, g[1], g[2])),
                }
                rows.append(kernel(name, at + 50, 5, launch=at, **more))
                at += 10
        events.append(marker(f"ProfilerStep#{s}", begin, at))
    return make_trace(rows, events)


def graph(steps: int = 3, nodes: bool = False) -> Trace:
    """The same step as graph replays, one launch a step, no op, no scope."""
    rows = []
    for s in range(steps):
        for i, (name, _, g) in enumerate(step_parts()):
            more: dict[str, object] = {col.LAUNCH_NAME: "cudaGraphLaunch", col.CORRELATION: s + 1, **grid(g)}
            rows.append(kernel(name, 10_000 * s + 10 * i + 50, 5, launch=10_000 * s, **more))
            if nodes:
                rows[-1][col.GRAPH_NODE] = 100 + i
    return make_trace(rows)


def classified(trace: Trace):
    table = default_rules().classify_frame(trace.activities)
    return default_origins().classify_frame(trace, table), find_steps(trace)


TRUTH = [default_origins().of_path([scope]).origin for _, scope, _ in step_parts()]


def carried(graph_trace: Trace, companion: Trace):
    table, steps = classified(graph_trace)
    other, other_steps = classified(companion)
    assert (steps.method, other_steps.method) == (GRAPH, PROFILER)
    return from_companion(table, steps, other, other_steps)


@pytest.mark.parametrize("nodes", [False, True])
def test_a_replay_takes_op_scope_and_origin_from_the_eager_run(nodes):
    """The same kernels in the same order -> every origin, op and scope of the eager run, method companion."""
    table, fit = carried(graph(nodes=nodes), eager())
    assert table[col.ORIGIN].tolist() == TRUTH * 3
    assert set(table[col.ORIGIN_METHOD]) == {COMPANION}
    assert set(table[col.ORIGIN_CONFIDENCE]) == {1.0}
    assert table[col.OP].tolist() == [f"op{i}" for i in range(len(TRUTH))] * 3
    assert table[col.SCOPE].iloc[0].endswith("embedding")
    assert (fit.coverage, fit.exact, fit.sequences) == (1.0, len(TRUTH) * 3, 1)


def test_kernels_only_one_of_the_two_has_do_not_shift_the_others():
    """Fills between the eager kernels, two missing -> all others right."""
    table, fit = carried(graph(), eager(drop={9, 40}, extra=3))
    origin = table[col.ORIGIN].tolist()[: len(TRUTH)]
    wrong = [i for i, (a, b) in enumerate(zip(origin, TRUTH, strict=True)) if a != b]
    assert set(wrong) <= {9, 40}
    assert fit.matched >= 3 * (len(TRUTH) - 2)
    assert fit.coverage < 1.0


def test_another_batch_is_matched_by_name_with_less_confidence():
    """The companion ran another batch, so all grids differ -> same origins, confidence below 1."""
    table, fit = carried(graph(), eager(regrid=2))
    assert table[col.ORIGIN].tolist() == TRUTH * 3
    assert fit.exact == 0
    assert table[col.ORIGIN_CONFIDENCE].max() < 1.0


def test_a_companion_of_another_program_covers_nothing():
    """No kernel in common -> nothing carried over, and the fit says so."""
    other = make_trace([kernel(f"foreign_{i}", 10 * i, 5, launch=i, **{col.SCOPE: "moe"}) for i in range(50)])
    table, steps = classified(graph())
    found, other_steps = classified(other)
    out, fit = from_companion(table, steps, found, other_steps)
    assert fit.matched == 0
    assert COMPANION not in set(out[col.ORIGIN_METHOD])
    assert "0 of" in fit.sentence


def test_an_eager_trace_needs_no_companion():
    """No replay in the trace -> unchanged, and said."""
    table, steps = classified(eager())
    out, fit = from_companion(table, steps, table, steps)
    assert out[col.ORIGIN].tolist() == table[col.ORIGIN].tolist()
    assert "not needed" in fit.sentence


def test_the_campaigns_glue_is_inferred_to_be_the_indexers():
    """Eleven unmarked steps of the published profile -> sgemm by multiplicity, its glue by neighbours."""
    made = campaign(linked=False)
    table, steps = classified(made.trace)
    assert steps.method == PERIOD
    table = infer(table, steps, read_activities(table, steps))
    origin = table.groupby(col.NAME, observed=True)[col.ORIGIN].agg(
        lambda s: s.astype(str).value_counts().to_dict()
    )
    method = table.groupby(col.NAME, observed=True)[col.ORIGIN_METHOD].agg(lambda s: set(s.astype(str)))
    assert origin[SGEMM] == {"indexer": 231}
    assert method[SGEMM] == {MULTIPLICITY}
    assert origin[COPY] == {"indexer": 2541}
    assert method[COPY] == {NEIGHBOUR}
    assert origin[MULTIPLY] == {"indexer": 2772, "unknown": 11}  # the one of the embedding is nobody's
    assert (table[col.ORIGIN_CONFIDENCE][table[col.ORIGIN] == "indexer"] < 0.75).all()


def test_nothing_is_inferred_across_other_parts():
    """Unknown kernels between attention and MoE, or far between two of one part -> unknown."""
    far = [kernel(f"odd{i}", 100 + 10 * i, 5) for i in range(60)]
    acts = [
        kernel("_fp8_paged_mqa_logits_kernel", 0, 5),
        *far,
        kernel("_fp8_paged_mqa_logits_kernel", 5000, 5),
    ]
    acts += [kernel("odd", 5010, 5), kernel("marlin_moe_fp4_gemm", 5020, 5)]
    table, steps = classified(make_trace(acts))
    table = infer(table, steps, None)
    assert set(table[col.ORIGIN].iloc[1:61]) == {"unknown"}
    assert table[col.ORIGIN].iloc[62] == "unknown"


def test_sequences_are_matched_in_order():
    """Insertions on both sides among repeated kernels -> ascending counterparts, exact where grid and name agree."""
    rng = np.random.default_rng(0)
    layer = rng.integers(0, 12, 40)
    base = np.concatenate([[100], np.tile(layer, 20), [101]])
    places = np.sort(rng.choice(len(base), 15, replace=False))
    a, b = np.insert(base, places, 50), np.delete(base, places[::3])
    found, fit = match_sequences((a, b), (a, b))
    hit = found >= 0
    assert (np.diff(found[hit]) > 0).all()
    assert (b[found[hit]] == a[hit]).all()
    assert (fit[hit] == EXACT).all()
    assert hit.sum() >= len(base) - 15
    assert (fit[~hit] == UNMATCHED).all()


def test_longer_than_one_search_takes(monkeypatch):
    """More kernels than one search may hold -> block by block, the same counterparts where little is missing."""
    rng = np.random.default_rng(4)
    a = rng.integers(0, 400, 30_000)
    b = np.delete(a, rng.choice(len(a), 300, replace=False))
    whole, _ = matching.match_sequences((a, b), (a, b))
    monkeypatch.setattr(matching, "MAX_CELLS", 10**6)
    found, fit = matching.match_sequences((a, b), (a, b))
    hit = found >= 0
    assert (np.diff(found[hit]) > 0).all()
    assert (b[found[hit]] == a[hit]).all()
    assert (whole >= 0).sum() == len(b)
    assert hit.sum() >= len(b) - 5
    assert (fit[hit] == EXACT).all()


def test_names_decide_where_grids_differ():
    """One stretch with other grids -> matched by name in place."""
    names = np.array([1, 2, 3, 4, 5, 6, 7, 8])
    exact_a, exact_b = names.copy(), names.copy()
    exact_b[3:5] = [90, 91]
    found, fit = match_sequences((names, names), (exact_a, exact_b))
    assert found.tolist() == list(range(8))
    assert fit.tolist() == [EXACT] * 3 + [BY_NAME] * 2 + [EXACT] * 3


def write_pair(folder: Path) -> tuple[str, str]:
    """The same step as a file of graph replays and as an eager file with scopes, three steps each."""
    replays, run = KinetoTrace(), KinetoTrace()
    at = 0.0
    for s in range(3):
        names = [name for name, _, _ in step_parts()]
        replays.replay(names, at=10_000 * s)
        run.step(s, at, 30 * len(names))
        for name, scope, _ in step_parts():
            run.annotation(scope, at + 1, 20)
            run.eager(name, 5, at=at + 3)
            at += 30
    return str(replays.write(folder / "graph.json")), str(run.write(folder / "eager.json"))


def test_the_command_line_takes_a_companion(tmp_path):
    """Shares by bucket,origin of a graph trace with its eager companion -> all known, the fit said."""
    graph_file, eager_file = write_pair(tmp_path)
    alone = cli("shares", graph_file, "--by", "origin", "--json")
    assert "unknown" in {r["origin"] for r in json.loads(alone.stdout)["variants"][0]["rows"]}
    done = cli("shares", graph_file, "--by", "origin", "--companion", eager_file, "--json")
    (variant,) = json.loads(done.stdout)["variants"]
    assert {r["origin"] for r in variant["rows"]} == set(TRUTH)
    assert any("100.0 % of their time" in n for n in variant["notes"])
    text = cli("shares", graph_file, "--by", "bucket,origin", "--companion", f"graph={eager_file}").stdout
    assert "bucket x origin" in text
    assert "points belong to" in text


def test_a_shipped_trace_is_a_companion_by_its_name():
    """Names of shipped traces without LABEL= -> taken for the only input."""
    done = cli("shares", "cuda_graph", "--by", "origin", "--companion", "cuda_graph_eager", "--json")
    rows = json.loads(done.stdout)["variants"][0]["rows"]
    assert "unknown" not in {r["origin"] for r in rows}


@pytest.mark.parametrize(
    ("given", "says"), [("other={}", "no variant is called 'other'"), ("/nowhere/x.json", "no such file")]
)
def test_a_companion_of_nobody_is_one_clear_line(tmp_path, given, says):
    """A label that no variant has, a file that is not there -> exit 2, one line."""
    graph_file, eager_file = write_pair(tmp_path)
    done = cli("shares", graph_file, "--companion", given.format(eager_file))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(0, 12), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_counterparts_are_the_same_kernel_in_ascending_order(seed, kinds, edits, layers):
    """Random sequences with repeated layers and random edits -> ascending, each the same kernel."""
    rng = np.random.default_rng(seed)
    base = np.concatenate([np.tile(rng.integers(0, kinds, 25), layers), [999]])
    other = np.delete(base, rng.choice(len(base), min(edits, len(base) - 1), replace=False))
    other = np.insert(other, np.sort(rng.integers(0, len(other) + 1, edits)), 1000 + np.arange(edits))
    found, fit = match_sequences((base, other), (base, other))
    hit = found >= 0
    assert (np.diff(found[hit]) > 0).all()
    assert (other[found[hit]] == base[hit]).all()
    assert ((fit == UNMATCHED) == ~hit).all()
    same, _ = match_sequences((base, base), (base, base))
    assert same.tolist() == list(range(len(base)))
