"""The shipped captures of two ranks: whole, private, and what tensor parallelism makes of the step."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

import hta_dsv4
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.trace.activities import DUR_NS, GRID_X, GRID_Z, KERNEL, KIND, NAME, SCOPE, START_NS
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, Manifest, read_folder_manifest
from hta_dsv4.trace.reader import read_trace

from .test_shipped_traces import private

TRACES = Path(__file__).resolve().parents[1] / "traces"
TP2 = TRACES / "tp2"
FOLDERS = (
    "split_k_c32_tp2",
    "split_k_c32_tp2_straggler",
    "cuda_graph_c32_tp2",
    "cuda_graph_c32_tp2_eager",
    "cuda_graph_c32_tp2_straggler",
    "cuda_graph_c32_tp2_straggler_eager",
)
RANKS = [(folder, rank) for folder in FOLDERS for rank in range(2)]
STRAGGLERS = [f for f in FOLDERS if "straggler" in f]
LAYER = 20
SUMS = 2 * 43 + 1
AT = 1 + 2 * LAYER  # the planted work stands before this all-reduce of the step, counted from 0


def manifest(folder: str, rank: int) -> Manifest:
    """The entry of a rank."""
    return read_folder_manifest(TP2 / folder / FOLDER_MANIFEST)[rank]


@cache
def kernels(path: Path) -> pd.DataFrame:
    """Kernels of a trace, by start."""
    table = read_trace(path).activities
    return table[table[KIND] == KERNEL].sort_values(START_NS)


def rank_kernels(folder: str, rank: int) -> pd.DataFrame:
    """Kernels of a rank."""
    return kernels(TP2 / folder / manifest(folder, rank).trace)


def named(table: pd.DataFrame, pattern: str) -> pd.DataFrame:
    """Kernels whose name matches."""
    return table[table[NAME].astype(str).str.contains(pattern, regex=True)]


def all_reduces(folder: str, rank: int) -> pd.DataFrame:
    """All-reduces of a rank, in order."""
    return named(rank_kernels(folder, rank), "ncclDevKernel_AllReduce")


def test_nothing_is_missing_or_too_large() -> None:
    """The folder -> two launch modes, normal and late, graphs with companions; each file within 3 MB."""
    assert sorted(p.name for p in TP2.iterdir() if p.is_dir()) == sorted(FOLDERS)
    files = sorted(TP2.rglob("*.gz"))
    assert len(files) == 2 * len(FOLDERS)
    assert all(f.stat().st_size <= 3_000_000 for f in files)


@pytest.mark.parametrize(("folder", "rank"), RANKS)
def test_rank_says_who_it_is_and_names_nobody(folder: str, rank: int) -> None:
    """Each trace -> its rank by itself and by the manifest; no path, address or foreign name."""
    entry = manifest(folder, rank)
    assert (entry.parallel["rank"], entry.parallel["world_size"], entry.parallel["backend"]) == (
        rank,
        2,
        "nccl",
    )
    text = gzip.decompress((TP2 / folder / entry.trace).read_bytes()).decode()
    assert private(text) is None
    assert re.search(rf'"rank":{rank},"world_size":2', text)
    if entry.companion is not None:
        assert (TP2 / folder / entry.companion).is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_manifest_holds_no_private_name(folder: str) -> None:
    """The manifest -> no path, no address; one of an eager companion names no companion of its own."""
    assert private((TP2 / folder / FOLDER_MANIFEST).read_text().replace('"../', '"')) is None
    assert (manifest(folder, 0).companion is not None) == (
        folder.startswith("cuda") and not folder.endswith("eager")
    )


@pytest.mark.parametrize(("folder", "rank"), RANKS)
def test_manifest_counts_what_the_reader_counts(folder: str, rank: int) -> None:
    """Each rank -> activities and their exact sum per step as the manifest says."""
    entry = manifest(folder, rank)
    table = read_trace(TP2 / folder / entry.trace).activities
    assert len(table) == round(entry.timing.activities * entry.steps)
    assert int(table[DUR_NS].sum()) == pytest.approx(
        entry.timing.activity_ms * entry.steps * 1e6, abs=entry.steps
    )
    assert entry.timing.own_ms is not None
    assert int(own_ns(table).sum()) == pytest.approx(entry.timing.own_ms * entry.steps * 1e6, abs=entry.steps)


@pytest.mark.parametrize(("folder", "rank"), RANKS)
def test_two_all_reduces_a_layer_and_one_for_the_embedding(folder: str, rank: int) -> None:
    """Every step of every rank -> 87 all-reduces of [32, 4096] bf16 and one all-gather."""
    entry = manifest(folder, rank)
    assert len(all_reduces(folder, rank)) == SUMS * entry.steps
    assert len(named(rank_kernels(folder, rank), "ncclDevKernel_AllGather")) == entry.steps
    if entry.launch == "eager":  # replayed kernels carry no scope
        first = [str(s).rsplit("layer.", 1)[-1] for s in all_reduces(folder, rank)[SCOPE].iloc[:SUMS]]
        assert "embedding/comm/all_reduce" in first[0]
        for n in range(43):
            assert first[1 + 2 * n].startswith(f"{n}/attention/comm/all_reduce")
            assert first[2 + 2 * n].startswith(f"{n}/moe/comm/all_reduce")


@pytest.mark.parametrize(
    ("name", "axis", "one", "two"),
    [
        ("_moe_fp4_gemm_w13_kernel", GRID_X, {32}, {16}),  # 64 rows of an expert's width a program
        ("_q_norm_rope_kernel", GRID_X, {32 * 64}, {32 * 32}),  # requests x heads
        ("_fp8_block_gemm_kernel", GRID_Z, {1, 8}, {1, 4}),  # output groups
        ("_moe_fp4_gemm_w2_kernel", GRID_X, {64}, {64}),  # cut along what is summed: same outputs
        ("_save_partial_state_kernel", GRID_X, {32}, {32}),  # compressors are replicated
    ],
)
def test_what_is_sharded_is_half_as_wide(name: str, axis: str, one: set[int], two: set[int]) -> None:
    """One rank's split_k against a rank of two -> as many launches of each kernel, half as wide where shared."""
    alone, half = kernels(TRACES / "split_k.trace.json.gz"), rank_kernels("split_k_c32_tp2", 0)
    assert len(named(alone, name)) == len(named(half, name))
    assert set(named(alone, name)[axis]) == one
    assert set(named(half, name)[axis]) == two


def test_experts_take_half_and_the_indexer_all_of_its_time() -> None:
    """By scope, one rank against a rank of two -> experts 0.5, the replicated indexer 1.0."""

    def per_scope(path: Path, scope: str) -> float:
        table = kernels(path)
        return float(table.loc[table[SCOPE].astype(str).str.contains(scope), DUR_NS].sum())

    alone, half = (
        TRACES / "split_k.trace.json.gz",
        TP2 / "split_k_c32_tp2" / manifest("split_k_c32_tp2", 0).trace,
    )
    assert per_scope(half, "moe/experts") / per_scope(alone, "moe/experts") == pytest.approx(0.5, abs=0.05)
    assert per_scope(half, "indexer/logits") / per_scope(alone, "indexer/logits") == pytest.approx(
        1, abs=0.03
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_straggler_is_where_the_manifest_says(folder: str) -> None:
    """Each capture -> planted kernels on rank 1 alone, before the 42nd all-reduce, as long as the manifest says."""
    late = [named(rank_kernels(folder, rank), "_planted_delay_kernel") for rank in range(2)]
    assert len(late[0]) == 0
    if folder not in STRAGGLERS:
        assert len(late[1]) == 0
        assert "straggler" not in manifest(folder, 1).parallel
        return
    entry = manifest(folder, 1)
    planted = entry.parallel["straggler"]
    assert len(late[1]) == entry.steps
    assert (planted["rank"], planted["layer"]) == (1, LAYER)
    assert float(late[1][DUR_NS].median()) == pytest.approx(planted["measured_us"] * 1e3, abs=1)
    assert planted["measured_us"] == pytest.approx(planted["microseconds"], rel=2e-3)
    sums = all_reduces(folder, 1)
    for step, start in enumerate(late[1][START_NS]):
        assert int((sums[START_NS] < start).sum()) == step * SUMS + AT


def waits(folder: str) -> pd.DataFrame:
    """Microseconds each rank spends in each all-reduce beyond the shorter of the two, [steps * 87, ranks]."""
    both = pd.DataFrame({rank: all_reduces(folder, rank)[DUR_NS].to_numpy() for rank in range(2)})
    return both.sub(both.min(axis=1), axis=0) / 1e3


def test_graph_straggler_makes_the_other_rank_wait_as_long() -> None:
    """CUDA graph, 500 us planted on rank 1 -> rank 0 waits 500 us within 2 % there, and nobody elsewhere."""
    found = waits("cuda_graph_c32_tp2_straggler")
    planted = manifest("cuda_graph_c32_tp2_straggler", 1).parallel["straggler"]["measured_us"]
    place = found.index % SUMS
    assert found.loc[place == AT, 0].tolist() == pytest.approx([planted] * (place == AT).sum(), rel=0.02)
    # the first sum of a step takes up how far apart the hosts began it
    assert found[(place != AT) & (place != 0)].to_numpy().max() < 10


def test_graph_without_a_straggler_waits_nowhere() -> None:
    """CUDA graph, nothing planted -> no wait above 10 us but the first sum's of each step."""
    found = waits("cuda_graph_c32_tp2")
    assert found[found.index % SUMS != 0].to_numpy().max() < 10


@pytest.mark.parametrize("folder", FOLDERS)
def test_sums_end_together(folder: str) -> None:
    """One host, one clock -> the two ranks see 95 % of all-reduces end within a microsecond of each other."""
    ends = [(t[START_NS] + t[DUR_NS]).to_numpy() for t in (all_reduces(folder, rank) for rank in range(2))]
    assert pd.Series(abs(ends[0] - ends[1])).quantile(0.95) < 1000


@pytest.mark.parametrize("folder", FOLDERS)
def test_readme_states_the_manifests_times(folder: str) -> None:
    """The folder's README -> each row of its table is the manifest's, digit for digit."""
    t = manifest(folder, 0).timing
    row = (
        f"| {folder} | {manifest(folder, 0).steps} | {t.unprofiled_step_ms:.2f} "
        f"| {t.unprofiled_min_ms:.1f}-{t.unprofiled_max_ms:.1f} | {t.profiled_step_ms:.2f} "
        f"| {t.tokens_per_s:.1f} | {t.launches:,.0f} |"
    )
    assert any(line.startswith(row) for line in (TP2 / "README.md").read_text().splitlines()), row


def test_results_are_short_at_the_prompt() -> None:
    """Collectives and the cause of a change of two ranks' steps, shown by repr -> some kB, not every launch."""
    before, after = (hta_dsv4.load(TP2 / f) for f in ("cuda_graph_c32_tp2", "cuda_graph_c32_tp2_straggler"))
    assert "Straggler(rank=1, place=41" in repr(after.collectives())
    assert len(repr(after.collectives())) < 5_000
    found = hta_dsv4.why([before, after])
    assert 1_000 < len(repr(found)) < 50_000
    assert "rewrites" in repr(found.whole.alignment)
