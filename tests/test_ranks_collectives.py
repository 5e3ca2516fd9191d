"""Collectives across ranks: alignment, clocks, transfer and wait, late ranks; on simulated ranks with planted truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.clocks import fit_clock
from hta_dsv4.analysis.collective_calls import is_symmetric, members_of
from hta_dsv4.analysis.collective_layers import layer_of_scope
from hta_dsv4.analysis.communication import Communication
from hta_dsv4.analysis.waits import GroupWaits
from tests.rank_traces import ALL_REDUCE, Clock, RankSim

CUSTOM = "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)"


def said(sim: RankSim, folder: Path) -> Communication:
    """The collectives of simulated ranks, by way of files."""
    return hta_dsv4.load(sim.write(folder)).collectives()


def only(found: Communication) -> GroupWaits:
    """The one group of a run."""
    assert not found.failed
    (group,) = found.groups
    return group


@pytest.mark.parametrize("ranks", [2, 8])
def test_planted_straggler_found(tmp_path: Path, ranks: int) -> None:
    """40 us of extra work on one rank in layer 4 -> that rank, layer, half, kernel and microseconds within 10 %."""
    sim = RankSim(ranks, layers=6, noise_us=1.0, skew_us=0.6, clocks={1: Clock(7_000_000, 3.0)})
    sim.straggle(rank=1, layer=4, half="attention", us=40)
    found = said(sim, tmp_path)
    ((group, late),) = found.stragglers
    at = group.aligned.place.tolist().index(late.place)
    assert (late.rank, group.layers.layer[at], group.layers.half[at]) == (1, 4, "attention")
    assert (late.cause, late.steps, late.of_steps) == ("work", 3, 3)
    assert late.extra_ns == pytest.approx(40_000, rel=0.1)
    assert late.late_ns == pytest.approx(40_000, rel=0.1)
    assert late.waited_ns == pytest.approx((ranks - 1) * 40_000, rel=0.1)
    assert late.extras[0].kernel == "void extra_work_kernel()"
    assert late.extras[0].ns == pytest.approx(40_000, rel=0.1)
    assert late.extras[0].launches == pytest.approx(1)


@pytest.mark.parametrize(("noise", "skew"), [(0.0, 0.0), (1.0, 0.6), (8.0, 2.0)])
def test_no_straggler_nothing_blamed(tmp_path: Path, noise: float, skew: float) -> None:
    """Ranks that differ by noise alone -> waits are counted and nothing is blamed."""
    for seed in range(3):
        found = said(RankSim(4, layers=10, noise_us=noise, skew_us=skew, seed=seed), tmp_path / str(seed))
        assert len(found.groups) == 1
        assert found.stragglers == ()


def test_one_off_is_not_blamed(tmp_path: Path) -> None:
    """200 us of extra work in one of three steps -> counted as lateness, not blamed."""
    sim = RankSim(2, layers=6, noise_us=1.0)
    sim.straggle(1, 3, "moe", 200, when=lambda step: step == 1)
    found = said(sim, tmp_path)
    assert found.stragglers == ()
    assert found.causes.iloc[0][["late_rank", "collectives"]].tolist() == [1, 1]
    assert found.causes.iloc[0]["late_ns"] == pytest.approx(200_000, rel=0.05)


def test_wait_below_the_clock_fit_is_not_blamed(tmp_path: Path) -> None:
    """4 us late every time where ends differ by up to 12 us between ranks -> below what can be told, not blamed."""
    sim = RankSim(2, layers=6, skew_us=12.0)
    sim.straggle(1, 3, "moe", 4)
    found = said(sim, tmp_path)
    assert only(found).noise_ns > 4_000
    assert found.stragglers == ()


def test_host_that_launches_late(tmp_path: Path) -> None:
    """One rank's GPU is idle for 60 us before one collective in every step -> the host is named, and no kernel."""
    sim = RankSim(3, layers=6, noise_us=1.0)
    sim.stall(2, 5, "moe", 60)
    ((_, late),) = said(sim, tmp_path).stragglers
    assert (late.rank, late.cause, late.extras) == (2, "host", ())
    assert late.extra_ns == pytest.approx(60_000, rel=0.1)


def test_late_host_everywhere_is_nobodys_place(tmp_path: Path) -> None:
    """A rank whose host is 20 us late before every collective -> much wait, but no place stands out to be blamed."""
    sim = RankSim(2, layers=6, noise_us=1.0)
    for layer in range(6):
        for half in ("attention", "moe"):
            sim.stall(1, layer, half, 20)
    found = said(sim, tmp_path)
    assert found.stragglers == ()
    rows = found.by_rank.set_index("rank")
    assert rows.loc[0, "wait_ns"] == pytest.approx(3 * 12 * 20_000, rel=0.1)
    assert set(found.causes[found.causes["bucket"] == "idle"]["late_rank"]) == {1}


def test_slower_rank_shows_in_the_table_of_ranks(tmp_path: Path) -> None:
    """A rank with more work all over the step -> no place is blamed, but it is the slowest rank with its bucket."""
    sim = RankSim(2, layers=6)
    for layer in range(6):
        for half in ("attention", "moe"):
            sim.straggle(0, layer, half, 10, kernel="void fused_moe_fp4_kernel()")
    run = hta_dsv4.load(sim.write(tmp_path))
    assert run.collectives().stragglers == ()
    table = run.ranks_table()
    assert table.slowest == 0
    assert table.table.set_index("bucket").loc["fp4_moe", "spread_ns"] == 12 * 10_000


def test_uneven_moe_is_blamed_in_every_layer(tmp_path: Path) -> None:
    """One rank's MoE kernel takes 15 us longer in every layer, its attention does not -> blamed at every MoE half."""
    sim = RankSim(4, layers=6, noise_us=1.0)
    for layer in range(6):
        sim.straggle(3, layer, "moe", 15, kernel="void fused_moe_fp4_kernel()")
    found = said(sim, tmp_path)
    assert len(found.stragglers) == 6
    for group, late in found.stragglers:
        at = group.aligned.place.tolist().index(late.place)
        assert (late.rank, group.layers.half[at], late.extras[0].bucket) == (3, "moe", "fp4_moe")
        assert late.extra_ns == pytest.approx(15_000, rel=0.1)


def test_two_stragglers_the_costlier_first(tmp_path: Path) -> None:
    """30 us on rank 0 and 90 us on rank 2 in other layers -> both, most costly first."""
    sim = RankSim(3, layers=8, noise_us=1.0, skew_us=0.3)
    sim.straggle(0, 1, "moe", 30)
    sim.straggle(2, 6, "attention", 90)
    found = said(sim, tmp_path).stragglers
    assert [(s.rank, round(s.late_ns, -4)) for _, s in found] == [(2, 90_000), (0, 30_000)]


def test_clock_offset_and_drift_recovered(tmp_path: Path) -> None:
    """A clock 3 s ahead that gains 800 us per s -> both recovered, and lateness read through them."""
    sim = RankSim(2, layers=20, steps=10, noise_us=1.0, skew_us=0.4, clocks={1: Clock(3_000_000_000, 800.0)})
    sim.straggle(1, 7, "moe", 25)
    group = only(said(sim, tmp_path))
    fit = group.clocks[1]
    assert fit.drift_resolved
    assert fit.drift_ppm == pytest.approx(-800, rel=0.02)
    true_middle = (fit.middle_ns - 1_790_000_000_000_000_000 - 3_000_000_000) / (1 + 800e-6)
    assert fit.offset_ns == pytest.approx(-3_000_000_000 - 800e-6 * true_middle, abs=300)
    assert fit.p95_ns < 600
    (late,) = group.stragglers
    assert late.late_ns == pytest.approx(25_000, rel=0.1)


def test_one_clock_has_no_offset(tmp_path: Path) -> None:
    """Both ranks on one clock -> offset within the skew of the ends, no drift."""
    fit = only(said(RankSim(2, layers=10, noise_us=3.0, skew_us=1.0), tmp_path)).clocks[1]
    assert abs(fit.offset_ns) < 400
    assert (fit.drift_resolved, fit.drift_ppm) == (False, 0.0)


def test_clock_fit_survives_odd_collectives() -> None:
    """A tenth of the ends are off by a second -> the fit is that of the others."""
    ends = np.arange(0, 200_000_000, 1_000_000, dtype=np.int64)
    other = ends + 5_000
    other[::10] += 1_000_000_000
    fit = fit_clock(1, 0, ends, other)
    assert (fit.offset_ns, fit.p50_ns, fit.drift_resolved) == (5_000, 0, False)


def test_clock_of_other_lengths_refused() -> None:
    """Ends of different collectives -> an error, not a fit."""
    with pytest.raises(ValueError, match="same collectives"):
        fit_clock(1, 0, np.zeros(3, np.int64), np.zeros(4, np.int64))


@settings(max_examples=12)
@given(
    ranks=st.integers(2, 5), layers=st.integers(1, 4), steps=st.integers(1, 3), noise=st.floats(0, 30),
    skew=st.floats(0, 5), seed=st.integers(0, 1000), offset=st.integers(-(10**12), 10**12), seq=st.booleans(),
)  # fmt: skip
def test_transfer_and_wait_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, layers: int, steps: int, noise: float, skew: float,
    seed: int, offset: int, seq: bool,
) -> None:  # fmt: skip
    """Any ranks, noise, skew and clock -> waits plus ranks times transfer is the time in collectives, to the ns."""
    sim = RankSim(
        ranks, layers, steps, noise_us=noise, skew_us=skew, seed=seed, seq=seq, clocks={1: Clock(offset)}
    )
    run = hta_dsv4.load(sim.write(tmp_path_factory.mktemp("ranks")))
    group = only(run.collectives())
    of_file = run.activities.query("bucket == 'communication'")["dur_ns"].sum()
    assert int(group.wait.sum()) + ranks * int(group.transfer.sum()) == of_file
    assert (group.wait >= 0).all()
    assert (group.lateness > 0).sum(axis=0).max() <= 1
    table = run.collectives().table
    assert int(table["dur_ns"].sum()) == of_file
    assert (table["wait_ns"] + table["transfer_ns"] == table["dur_ns"]).all()
    cut = group.segments
    assert (cut.work <= cut.length).all()
    assert int(cut.pieces["ns"].sum()) == int(cut.work.sum())


def test_groups_align_only_inside(tmp_path: Path) -> None:
    """TP groups 0, 1 and 2, 3 that run at their own pace -> two groups, each with its straggler, none across."""
    pairs = {0: ("1", (0, 1)), 1: ("1", (0, 1)), 2: ("2", (2, 3)), 3: ("2", (2, 3))}
    sim = RankSim(4, layers=6, noise_us=1.0, groups=pairs)
    sim.straggle(1, 2, "moe", 50)
    sim.straggle(2, 4, "attention", 70)
    found = said(sim, tmp_path)
    assert [(g.aligned.group, g.ranks) for g in found.groups] == [("1", (0, 1)), ("2", (2, 3))]
    assert [(g.aligned.group, s.rank) for g, s in found.stragglers] == [("2", 2), ("1", 1)]


def test_unnamed_groups_told_by_their_ends(tmp_path: Path) -> None:
    """The same without process groups, as in CUDA graphs -> told apart by which ranks end together, and said."""
    pairs = {0: ("1", (0, 1)), 1: ("1", (0, 1)), 2: ("2", (2, 3)), 3: ("2", (2, 3))}
    sim = RankSim(4, layers=6, noise_us=6.0, groups=pairs, args=False)
    found = said(sim, tmp_path)
    assert [g.ranks for g in found.groups] == [(0, 1), (2, 3)]
    assert "end together: 0, 1; 2, 3" in " ".join(found.notes)


def test_unrelated_ranks_are_no_group(tmp_path: Path) -> None:
    """Two ranks that never speak to each other, without process groups -> not aligned, with the reason."""
    sim = RankSim(2, layers=6, noise_us=20.0, groups={0: ("1", (0,)), 1: ("2", (1,))}, args=False)
    found = said(sim, tmp_path)
    assert found.groups == ()
    assert "not one group's" in found.failed[0].reason


@pytest.mark.parametrize("kernel", [ALL_REDUCE, CUSTOM])
def test_graph_kernels_without_arguments(tmp_path: Path, kernel: str) -> None:
    """87 all-reduces a step without arguments or scopes -> aligned by order, layers from the count, straggler found."""
    sim = RankSim(2, layers=43, steps=3, noise_us=0.5, skew_us=0.3, args=False, scopes=False, kernel=kernel)
    sim.straggle(0, 17, "attention", 30)
    found = said(sim, tmp_path)
    group = only(found)
    assert (group.aligned.places, group.aligned.how, group.layers.how) == (
        87,
        "order within the step",
        "count",
    )
    (late,) = group.stragglers
    at = group.aligned.place.tolist().index(late.place)
    assert (late.rank, group.layers.layer[at], group.layers.half[at]) == (0, 17, "attention")
    assert late.late_ns == pytest.approx(30_000, rel=0.1)


def test_layers_are_not_invented(tmp_path: Path) -> None:
    """13 collectives a step without scopes fit no known model -> no layer; the place in the step is given instead."""
    sim = RankSim(2, layers=6, scopes=False)
    sim.straggle(0, 2, "moe", 30)
    found = said(sim, tmp_path)
    assert set(only(found).layers.layer) == {None}
    assert not len(found.by_layer)


def test_sequence_numbers_match_captures_that_overlap(tmp_path: Path) -> None:
    """One rank's capture lacks the first collectives -> matched by number, the rest counted as left out."""
    sim = RankSim(2, layers=6, noise_us=1.0, seq=True)
    sim.straggle(1, 4, "moe", 40)
    folder = sim.write(tmp_path)
    traces = sim.traces()
    cut = traces[1]
    gone = [e for e in cut.events if "Seq" in e["args"]][:5]
    cut.events = [e for e in cut.events if not any(e is g for g in gone)]
    cut.write(folder / "run-TP-1.trace.json.gz")
    found = hta_dsv4.load(folder).collectives()
    group = only(found)
    assert (group.aligned.how, len(group.aligned)) == ("sequence number", 3 * 13 - 5)
    assert "5 collectives of rank 0 are not on every rank" in " ".join(found.notes)
    (late,) = group.stragglers
    assert (late.rank, late.late_ns) == (1, pytest.approx(40_000, rel=0.1))


def test_different_counts_are_not_guessed(tmp_path: Path) -> None:
    """One all-reduce is missing on one rank and nothing numbers them -> no waits; rank, step and counts are named."""
    sim = RankSim(2, layers=4)
    folder = sim.write(tmp_path)
    cut = sim.traces()[1]
    lost = [e for e in cut.events if e["name"] == ALL_REDUCE][12]
    cut.events = [e for e in cut.events if e is not lost]
    cut.write(folder / "run-TP-1.trace.json.gz")
    found = hta_dsv4.load(folder).collectives()
    assert found.groups == ()
    assert found.failed[0].reason == "rank 0 has 9 collectives in step ProfilerStep#2 and rank 1 has 8"


def test_other_collective_in_one_place(tmp_path: Path) -> None:
    """The third collective of a step is an all-gather on one rank -> not aligned; place, names and sizes are named."""
    sim = RankSim(2, layers=4)
    folder = sim.write(tmp_path)
    other = sim.traces()[1]
    event = [e for e in other.events if e["name"] == ALL_REDUCE][9 + 2]
    event["args"] |= {"Collective name": "_allgather_base", "In msg nelems": 7}
    other.write(folder / "run-TP-1.trace.json.gz")
    (failed,) = hta_dsv4.load(folder).collectives().failed
    assert failed.reason == (
        "collective 3 of step ProfilerStep#2 is allreduce of 131,072 elements on rank 0 and _allgather_base of 7 "
        "elements on rank 1"
    )


def test_steps_that_one_rank_lacks(tmp_path: Path) -> None:
    """One rank's capture ends a step earlier, and steps are numbered -> the steps both have are compared."""
    sim = RankSim(2, layers=4, noise_us=1.0)
    sim.straggle(1, 2, "moe", 40)
    folder = sim.write(tmp_path)
    cut = sim.traces()[1]
    last = next(e for e in cut.events if e["name"] == "ProfilerStep#3")
    cut.events = [e for e in cut.events if e["ts"] < last["ts"] + (1_000 if e["cat"] == "kernel" else 0)]
    cut.write(folder / "run-TP-1.trace.json.gz")
    run = hta_dsv4.load(folder)
    group = only(run.collectives())
    assert (group.steps, len(group.aligned)) == (2, 2 * 9)
    assert group.stragglers[0].late_ns == pytest.approx(40_000, rel=0.1)
    assert "ranks have 2 to 3 counted steps" in " ".join(run.ranks_table().notes)


def test_steps_without_numbers_are_not_guessed(tmp_path: Path) -> None:
    """The same with an engine's annotations, which do not number steps -> no waits, and the counts are said."""
    sim = RankSim(2, layers=4)
    for rank, trace in enumerate(sim.traces()):
        for e in trace.events:
            if e["name"].startswith("ProfilerStep"):
                e["name"] = (
                    "step[DECODE bs=32]" if e["name"] != "ProfilerStep#3" or rank == 0 else "something else"
                )
        trace.write(tmp_path / f"run-TP-{rank}.trace.json.gz")
    (failed,) = hta_dsv4.load(tmp_path).collectives().failed
    assert failed.reason.startswith("ranks have different numbers of steps (3 on rank 0, 2 on rank 1)")


def test_no_steps_at_all(tmp_path: Path) -> None:
    """GPU events alone, one pass -> matched by order within the trace, waits of the whole, nothing blamed."""
    sim = RankSim(2, layers=4, steps=1, noise_us=1.0)
    sim.straggle(1, 2, "moe", 40)
    for rank, trace in enumerate(sim.traces()):
        trace.events = [e for e in trace.events if e["cat"] == "kernel"]
        trace.write(tmp_path / f"run-TP-{rank}.trace.json.gz")
    found = hta_dsv4.load(tmp_path).collectives()
    group = only(found)
    assert (group.aligned.how, group.steps, group.stragglers) == ("order within the trace", 0, ())
    assert int(found.by_rank["wait_ns"].max()) == pytest.approx(40_000, rel=0.1)
    assert found.causes["late_ns"].iloc[0] == pytest.approx(40_000, rel=0.1)


def test_hidden_work_is_told_apart(tmp_path: Path) -> None:
    """One rank has 30 us more work, the other's host is 100 us late there -> work listed as hidden, host blamed."""
    sim = RankSim(2, layers=6, noise_us=1.0)
    sim.straggle(1, 3, "moe", 30)
    sim.stall(0, 3, "moe", 100)
    found = said(sim, tmp_path)
    ((_, late),) = found.stragglers
    ((_, hidden),) = found.hidden
    assert (late.rank, late.cause) == (0, "host")
    assert (hidden.rank, hidden.cause, hidden.steps) == (1, "work", 0)
    assert hidden.extra_ns == pytest.approx(30_000, rel=0.1)


def test_steps_that_begin_apart(tmp_path: Path) -> None:
    """A rank whose host launches each step 150 us later -> stated for the start of steps, not blamed."""
    sim = RankSim(2, layers=6, noise_us=1.0)
    sim.stall(1, -1, "embedding", 150)
    group = only(said(sim, tmp_path))
    assert group.stragglers == ()
    assert group.step_start is not None
    rank, late, steps, of = group.step_start
    assert (rank, steps, of) == (1, 3, 3)
    assert late == pytest.approx(150_000, rel=0.1)


def test_work_that_explains_little_is_not_blamed(tmp_path: Path) -> None:
    """10 us more work where the same rank's host is 60 us late -> the host is blamed, not the kernel."""
    sim = RankSim(2, layers=6, noise_us=0.5)
    sim.straggle(1, 3, "moe", 10)
    sim.stall(1, 3, "moe", 60)
    found = said(sim, tmp_path)
    assert [(s.rank, s.cause) for _, s in found.stragglers + found.hidden] in (
        [(1, "host")], [(1, "work")],
    )  # fmt: skip
    assert all(s.hidden for _, s in (*found.stragglers, *found.hidden) if s.cause == "work")


def test_one_step_says_that_it_is_one(tmp_path: Path) -> None:
    """A single recorded step -> extra work is blamed, as seen once; a late host is not."""
    sim = RankSim(2, layers=8, steps=1, noise_us=1.0)
    sim.straggle(1, 3, "moe", 40)
    sim.stall(0, 6, "moe", 90)
    ((_, late),) = said(sim, tmp_path).stragglers
    assert (late.rank, late.cause, late.of_steps) == (1, "work", 1)


def test_absent_rank_makes_transfer_a_bound(tmp_path: Path) -> None:
    """Two of a group's three ranks are loaded -> aligned, and transfer is called an upper bound."""
    found = hta_dsv4.load(RankSim(3).write(tmp_path, only=(0, 2))).collectives()
    assert only(found).aligned.absent == (1,)
    assert "an upper bound" in " ".join(found.notes)


def test_single_rank_says_why_there_are_no_waits(tmp_path: Path) -> None:
    """One rank alone -> no group, and the reason."""
    found = hta_dsv4.load(RankSim(1).write(tmp_path)).collectives()
    assert found.groups == ()
    assert "one rank" in " ".join(found.notes)


def test_merged_file_equals_separate_files(tmp_path: Path) -> None:
    """The same ranks in one merged file -> the same collectives, waits, lateness and ranks."""
    sim = RankSim(3, layers=4, noise_us=2.0, skew_us=0.5)
    sim.straggle(2, 1, "moe", 35)
    apart = hta_dsv4.load(sim.write(tmp_path / "apart"))
    merged = hta_dsv4.load(sim.merged(tmp_path / "merged-run.trace.json"))
    a, b = apart.collectives(), merged.collectives()
    assert a.table.equals(b.table)
    assert [s for _, s in a.stragglers] == [s for _, s in b.stragglers]
    assert apart.ranks_table().overview.equals(merged.ranks_table().overview)


def test_sends_and_receives_are_left_out(tmp_path: Path) -> None:
    """Kernels that send from one rank to the next -> said, and not matched with anything."""
    sim = RankSim(2, layers=2)
    folder = tmp_path
    for r, trace in enumerate(sim.traces()):
        trace.kernel(
            "ncclDevKernel_SendRecv",
            900_000,
            5,
            **{"Collective name": "send" if r == 0 else "recv", "Seq": 1},
        )
        trace.write(folder / f"run-TP-{r}.trace.json.gz")
    found = hta_dsv4.load(folder).collectives()
    assert len(only(found).aligned) == 3 * 5
    assert "2 sends and receives" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("what", "symmetric"),
    [("allreduce", True), (ALL_REDUCE, True), (CUSTOM, True), ("broadcast", False), ("reduce", False),
     ("ncclDevKernel_Broadcast_RING_LL(x)", False), ("reduce_scatter", True), ("ncclDevKernel_Reduce_Sum_f32", False)],
)  # fmt: skip
def test_rooted_collectives_fit_no_clock(what: str, symmetric: bool) -> None:
    """Collectives that some ranks leave early -> not used for clocks and blame; the others are."""
    assert is_symmetric(what) == symmetric


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("[0, 1]", (0, 1)),
        ("[3,2]", (2, 3)),
        ("[0, 1, ...]", None),
        ("", None),
        ("[0, -1]", None),
        ("x", None),
    ],
)
def test_members_of_a_group(text: str, members: tuple[int, ...] | None) -> None:
    """Ranks as Kineto writes them -> read; shortened or odd -> unknown."""
    assert members_of(text) == members


@pytest.mark.parametrize(
    ("scope", "layer", "half"),
    [("layer.17/moe/experts > nccl:all_reduce", 17, "moe"), ("layer.3/attention/out_proj", 3, "attention"),
     ("model > layers.2 > self_attn > o_proj", 2, "attention"), ("embedding", None, "embedding"),
     ("head/lm_head", None, "head"), ("player.7/x", None, None), ("layer.5", 5, None)],
)  # fmt: skip
def test_layer_of_scope(scope: str, layer: int | None, half: str | None) -> None:
    """Paths of annotations -> layer and half, where they say them."""
    assert layer_of_scope(scope) == (layer, half)


def test_hostile_collective_arguments(tmp_path: Path) -> None:
    """Arguments that are lists, objects, wide numbers or other text -> read as text or unknown, never a traceback."""
    folder = tmp_path
    odd = [{"Seq": 2**70}, {"Seq": "x"}, {"In msg nelems": [1]}, {"Process Group Ranks": [0, 1]}, {"dtype": {"a": 1}},
           {"Process Group Name": 7}, {"Collective name": ["a"]}, {"Collective name": "\ud800"}]  # fmt: skip
    for r, trace in enumerate(RankSim(2, layers=4).traces()):
        reduces = [e for e in trace.events if e["name"] == ALL_REDUCE]
        for event, change in zip(reduces[9:], odd, strict=False):
            event["args"] |= change
        trace.write(folder / f"run-TP-{r}.trace.json.gz")
    found = hta_dsv4.load(folder).collectives()
    assert sum(len(g.aligned) for g in found.groups) + len(found.failed) > 0
    json.dumps([f.reason for f in found.failed])
