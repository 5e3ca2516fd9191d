"""Launch configurations: which changed between two variants, and which launches are alike at another speed."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import hta_dsv4
from hta_dsv4.analysis.counted import counted, step_times
from hta_dsv4.analysis.diff import decompose
from hta_dsv4.analysis.launch_changes import LaunchChanges, launch_changes
from hta_dsv4.analysis.launch_config import Config
from hta_dsv4.analysis.launch_pairs import NONE, pairs
from hta_dsv4.analysis.profile import Profile, profile
from hta_dsv4.present.launch_grid import SHOWN, launch_grid
from hta_dsv4.trace import activities as col
from tests.conftest import cli
from tests.variants import table_of

Launch = tuple[str, int, int]
"""Name, ns, CTAs."""


def side(label: str, steps: Sequence[Sequence[Launch]], **more: object) -> Profile:
    """A variant whose launches have these grids, blocks of 128 and 32 registers."""
    table, found = table_of([[(name, ns) for name, ns, _ in s] for s in steps], **more)
    table[col.GRID_X] = pd.array([g for s in steps for *_, g in s], dtype="Int32")
    for column in (col.BLOCK_X, col.BLOCK_Y, col.BLOCK_Z):
        table[column] = pd.array([128 if column == col.BLOCK_X else 1] * len(table), dtype="Int32")
    table[col.REGISTERS] = pd.array([32] * len(table), dtype="Int32")
    part = counted(table, found, 0)
    return profile(label, part, step_times(part))


def changes(base: Profile, other: Profile) -> LaunchChanges:
    return launch_changes(decompose(base, other))


def test_a_kernel_of_another_grid_is_one_row_with_its_own_times():
    """A grid of 4 CTAs, then of 16 -> one change of the grid, launches and time per step of both; the rest is alike."""
    base = side("a", [[("gemm", 100, 4), ("norm", 10, 1)]] * 2)
    other = side("b", [[("gemm", 60, 16), ("norm", 10, 1)]] * 2)
    (change,) = changes(base, other).changes
    assert (change.kernel, change.changed, change.paired) == ("gemm", ("grid",), "position")
    assert (change.base.grid, change.other.grid) == ((4, 1, 1), (16, 1, 1))
    assert (change.base_launches, change.base_ns, change.other_ns) == (1, 100, 60)
    assert [a.kernel for a in changes(base, other).alike] == ["norm"]


def test_the_same_launches_in_another_order_are_no_change():
    """Grids 4 and 8 swapped within the step -> nothing changed."""
    base = side("a", [[("gemm", 100, 4), ("gemm", 200, 8)]])
    other = side("b", [[("gemm", 200, 8), ("gemm", 100, 4)]])
    found = changes(base, other)
    assert (found.changes, found.alike_ns) == ((), (300, 300))


def test_launches_of_one_name_are_paired_by_their_place_in_the_step():
    """Three launches of a name, one of which grows -> that one alone is a change, with its own time."""
    base = side("a", [[("gemm", 100, 4), ("gemm", 200, 8), ("gemm", 300, 8)]] * 3)
    other = side("b", [[("gemm", 100, 4), ("gemm", 200, 8), ("gemm", 500, 32)]] * 3)
    (change,) = changes(base, other).changes
    assert (change.base.grid, change.other.grid, change.base_ns, change.other_ns) == (
        (8, 1, 1), (32, 1, 1), 300, 500
    )  # fmt: skip


def test_other_counts_are_paired_by_size_and_what_is_left_stands_alone():
    """Two launches at 4 CTAs become three at 16, and one at 2 stays -> 4 -> 16; a further size has no counterpart."""
    base = side("a", [[("gemm", 9, 2), ("gemm", 100, 4), ("gemm", 100, 4)]])
    other = side("b", [[("gemm", 9, 2), *[("gemm", 300, 16)] * 3, ("gemm", 5, 1)]])
    found = changes(base, other).changes
    assert [(c.base and c.base.grid[0], c.other and c.other.grid[0]) for c in found] == [(4, 16), (None, 1)]
    assert [(c.base_launches, c.other_launches, c.paired) for c in found] == [(2, 3, "size"), (0, 1, "size")]


def test_a_kernel_that_only_one_side_has_is_no_change_of_configuration():
    """A kernel that appears -> not among the changes: it appeared."""
    base, other = (
        side("a", [[("gemm", 9, 2)]]),
        side("b", [[("gemm", 9, 2), ("attention.core.mla", 5, 1)]]),
    )
    assert changes(base, other).changes == ()


def test_a_kernel_that_moved_to_another_origin_is_compared_as_a_whole():
    """Same launches, one counted to another origin -> alike; at another grid -> a change without an origin."""
    launches = [[("gemm", 9, 2), ("gemm", 9, 2), ("norm", 5, 1)]]
    base = side("a", launches, origins=["x", "x", "x"])
    moved = side("b", launches, origins=["x", "y", "x"])
    assert changes(base, moved).changes == ()
    larger = side("b", [[("gemm", 9, 4), ("gemm", 9, 4), ("norm", 5, 1)]], origins=["x", "y", "x"])
    assert [(c.kernel, c.origin) for c in changes(base, larger).changes] == [("gemm", "")]
    stays = side("b", [[("gemm", 9, 4), ("gemm", 9, 4), ("norm", 5, 1)]], origins=["x", "x", "x"])
    assert [(c.kernel, c.origin) for c in changes(base, stays).changes] == [("gemm", "x")]


def test_alike_launches_at_another_speed_say_in_which_steps():
    """Half the speed in every step; in one of four steps -> said apart; within the steps' range -> not said."""
    base = side("a", [[("slow", 1000, 1), ("rare", 1000, 1), ("noisy", 1000 + 500 * i, 1)] for i in range(4)])
    other = side(
        "b",
        [
            [("slow", 2000, 1), ("rare", 9000 if i == 3 else 1000, 1), ("noisy", 1100 + 500 * i, 1)]
            for i in range(4)
        ],
    )
    notes = launch_grid(changes(base, other)).notes
    assert any(
        "slow is launched alike and takes +1.000 us/step (2.00 times, in every step)" in n for n in notes
    )
    assert any("rare" in n and "in some steps only: the median step 0" in n for n in notes)
    assert not any("noisy" in n for n in notes)


def test_a_gpu_that_is_slower_on_the_whole_is_told_before_any_kernel():
    """All kernels 5 % slower, launched alike -> one line about clocks."""
    base = side("a", [[(f"k{i}", 1000, 1) for i in "abcdef"]] * 2)
    other = side("b", [[(f"k{i}", 1050, 1) for i in "abcdef"]] * 2)
    assert changes(base, other).alike_ratio() == changes(base, other).speed == pytest.approx(1.05)
    assert any("look at clocks" in n for n in launch_grid(changes(base, other)).notes)


def test_one_large_kernel_at_another_speed_is_no_clock():
    """Half of the time twice as fast, the rest as before -> the kernel is named, clocks are not."""
    base = side("a", [[("big", 6000, 1), *[(f"k{i}", 1000, 1) for i in "abcdef"]]] * 2)
    other = side("b", [[("big", 3000, 1), *[(f"k{i}", 1000, 1) for i in "abcdef"]]] * 2)
    notes = launch_grid(changes(base, other)).notes
    assert changes(base, other).speed is None
    assert any("big is launched alike and takes -3.000" in n for n in notes)
    assert not any("look at clocks" in n for n in notes)


def test_a_trace_without_grids_says_so():
    """No grid in one trace -> the table says that nothing can be compared, not that nothing changed."""
    base, other = (side(x, [[("gemm", 100, 4)]]) for x in "ab")
    for column in (col.GRID_X, col.GRID_Y, col.GRID_Z):
        other.part.activities[column] = pd.array([pd.NA] * 1, dtype="Int32")
    (note,) = launch_grid(changes(base, other)).notes
    assert "b: the trace gives no grids" in note


def test_copies_alone_have_no_grids_to_miss():
    """No kernels, copies of other sizes -> their changes, and not a word about grids."""
    base, other = (side(x, [[("Memcpy DtoD", 100, 4)]]) for x in "ab")
    for one in (base, other):
        one.part.activities[col.KIND] = col.MEMCPY
        for column in (col.GRID_X, col.GRID_Y, col.GRID_Z):
            one.part.activities[column] = pd.array([pd.NA], dtype="Int32")
    assert not any("grids" in n for n in launch_grid(changes(base, other)).notes)


def test_the_table_keeps_its_sum_where_rows_are_left_out():
    """More changes than are shown -> the rest as one row with its time, and all of them with --full."""
    names = [f"gemm_{c}" for c in "abcdefghijkl"]
    found = changes(side("a", [[(n, 10, 4) for n in names]]), side("b", [[(n, 20, 8) for n in names]]))
    short, full = launch_grid(found), launch_grid(found, full=True)
    assert len(short.rows) == SHOWN + 1
    assert short.rows[-1][:4] == (f"({12 - SHOWN} more: --full)", "", "0.040", "0.080")
    assert len(full.rows) == 12


@settings(max_examples=60, deadline=None)
@drawn(st.data())
def test_pairs_hold_every_launch_once_and_do_not_depend_on_the_direction(data):
    """Any launches of two variants -> each launch and ns of a common kernel in one pair; equal when swapped."""
    steps = [data.draw(st.integers(1, 3)) for _ in range(2)]
    frames = []
    for n in steps:
        rows = [
            (data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3)), step, data.draw(st.integers(0, 50)))
            for step in range(n)
            for _ in range(data.draw(st.integers(1, 5)))
        ]
        frame = pd.DataFrame(rows, columns=["group", "config", "step", "own"], dtype=np.int64)
        frame["place"] = frame.groupby(["group", "step"]).cumcount()
        frames.append(frame)
    found = list(pairs(*frames, *steps))
    common = set(frames[0]["group"]) & set(frames[1]["group"])
    for k, (n, ns, config) in enumerate(
        (("base_launches", "base_ns", "base"), ("other_launches", "other_ns", "other"))
    ):
        mine = frames[k][frames[k]["group"].isin(common)]
        got = Counter()
        for p in found:
            if getattr(p, config) != NONE:
                got[p.group, getattr(p, config)] += getattr(p, n)
        assert got == Counter(zip(mine["group"], mine["config"], strict=True))
        assert sum(getattr(p, ns) for p in found) == mine["own"].sum()
    turned = Counter(
        (p.group, p.other, p.base, p.other_launches, p.base_launches, p.other_ns, p.base_ns, p.how)
        for p in pairs(*frames[::-1], *steps[::-1])
    )
    straight = Counter(
        (p.group, p.base, p.other, p.base_launches, p.other_launches, p.base_ns, p.other_ns, p.how)
        for p in found
    )
    assert turned == straight


def test_what_tuning_changed_in_the_moe_kernels_is_what_the_files_say():
    """cuda_graph and moe_tuned -> grids, blocks, registers and shared memory of w13 as in the raw JSON, once each."""
    shipped = hta_dsv4.traces()
    raw = []
    for name in ("cuda_graph", "moe_tuned"):
        events = json.loads(gzip.decompress(shipped[name].read_bytes()))["traceEvents"]
        args = [e["args"] for e in events if "moe_fp4_gemm_w13" in e["name"] and e.get("cat") == "kernel"]
        (one,) = {
            (tuple(a["grid"]), tuple(a["block"]), a["registers per thread"], a["shared memory"]) for a in args
        }
        raw.append(Config(*one))
    runs = [hta_dsv4.load(shipped[n]) for n in ("cuda_graph", "moe_tuned")]
    why = hta_dsv4.why(runs).pairs[0]
    found = launch_changes(why.decomposition, *(r.traces[0].meta for r in runs))
    first = found.changes[0]
    assert (first.base, first.other) == tuple(raw)
    assert first.changed == ("grid", "block", "registers", "shared_mem")
    assert (first.base_room.resident, first.other_room.resident) == (4, 20)
    # programmatic dependent launch: the waits that durations hold are no time of the kernel's own
    combine = [c for c in found.changes if "combine" in c.kernel]
    assert sum(c.base_ns for c in combine) < 450_000


def test_diff_prints_and_writes_them():
    """Two shipped traces in diff -> a table after the movers, the same in --json; alike traces say none."""
    text = cli("diff", "cuda_graph", "moe_tuned").stdout
    assert text.index("kernels that moved most") < text.index("launch configurations that changed")
    assert "32x192 -> 128x192" in text
    (body,) = json.loads(cli("diff", "cuda_graph", "moe_tuned", "--json").stdout)["launches"]
    assert (body["base"], body["other"], body["time"]) == ("cuda_graph", "moe_tuned", "own")
    assert body["changes"][0]["base"]["grid"] == [32, 192, 1]
    assert body["alike"]["kernels"][0]["launches"] > 0
    assert "none: every kernel" in cli("diff", "mma", "split_k").stdout
