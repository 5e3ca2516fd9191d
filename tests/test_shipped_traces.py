"""The shipped campaign: it is what the architecture says, it is private, and the reader counts it exactly."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.trace.activities import (
    BLOCK_X,
    DUR_NS,
    GRID_Z,
    KERNEL,
    KIND,
    NAME,
    REGISTERS,
    SCOPE,
    SHARED_MEM,
)
from hta_dsv4.trace.manifest import FOLDER_MANIFEST, Manifest, read_folder_manifest
from hta_dsv4.trace.reader import read_trace

TRACES = Path(__file__).resolve().parents[1] / "traces"
MANIFESTS = {m.variant: m for m in read_folder_manifest(TRACES / FOLDER_MANIFEST)}
REQUIRED = (
    "original",
    "mma",
    "split_k",
    "bf16_gemm",
    "indexer_triton",
    "mhc_fused",
    "cuda_graph",
    "cuda_graph_eager",
    "moe_tuned",
    "moe_tuned_eager",
    "uncompiled",
    "compiled",
    "tuned",
    "tuned_eager",
    "fp8_split",
    "fp8_split_eager",
)
SCALING = (
    "mma_c1",
    "tuned_c1",
    "tuned_c1_eager",
    "split_k_c1",
    "split_k_c16",
    "split_k_c64",
    "split_k_8k",
    "split_k_64k",
)
# A string that begins with a slash or has one after a bracket, a home or scratch folder, an IPv4 or mail address.
PRIVATE = re.compile(r"\"/|\(/|/home/|/Users/|/tmp/|\b\d+\.\d+\.\d+\.\d+\b|@[a-z]+\.")
# What must be in a text for that to match, each beginning with a fixed character: searched seven times as fast.
PLACES = ('"/', "(/", "/home/", "/Users/", "/tmp/")
ADDRESSES = (re.compile(r"\.\d+\.\d+\.\d+"), re.compile(r"@[a-z]+\."))
LAYERS, C4, COMPRESSED, SITES = 43, 21, 41, 86


def private(text: str) -> str | None:
    """What :data:`PRIVATE` finds first, with what stands around it."""
    if not any(place in text for place in PLACES) and not any(address.search(text) for address in ADDRESSES):
        return None
    found = PRIVATE.search(text)
    return None if found is None else text[max(0, found.start() - 60) : found.end() + 60]


@cache
def activities(variant: str) -> pd.DataFrame:
    """The activity table of a shipped variant."""
    return read_trace(TRACES / MANIFESTS[variant].trace).activities


def per_step(variant: str, names: str, scope: str = "") -> float:
    """Kernels per step whose name matches ``names``, launched inside a scope that matches ``scope``."""
    table = activities(variant)
    kernels = table[table[KIND] == KERNEL]
    hit = kernels[NAME].astype(str).str.contains(names, regex=True)
    if scope:
        hit &= kernels[SCOPE].astype(str).str.contains(scope, regex=True)
    return int(hit.sum()) / MANIFESTS[variant].steps


def test_all_variants_are_there() -> None:
    """The folder -> every named variant and scaling point, each file listed, small enough."""
    assert set(REQUIRED + SCALING) <= set(MANIFESTS)
    files = [TRACES / m.trace for m in MANIFESTS.values()]
    assert all(f.stat().st_size <= 3_000_000 for f in files)
    assert sum(f.stat().st_size for f in TRACES.glob("*.gz")) <= 40_000_000


@pytest.mark.parametrize("variant", MANIFESTS)
def test_manifest_says_speed_and_conditions(variant: str) -> None:
    """Each entry -> unprofiled step, tokens/s that follow from it, overhead, GPU, versions, steps within 2..10."""
    m: Manifest = MANIFESTS[variant]
    t = m.timing
    assert t.tokens_per_s == pytest.approx(m.concurrency / t.unprofiled_step_ms * 1e3, rel=1e-3, abs=0.005)
    assert t.profiler_overhead == pytest.approx(t.profiled_step_ms / t.unprofiled_step_ms - 1, abs=1e-3)
    assert m.device["name"] == "NVIDIA H200"
    assert {"driver", "clock_sm_mhz", "sms"} <= set(m.device)
    assert {"torch", "triton", "cuda"} <= set(m.versions)
    assert m.commit
    assert 2 <= m.steps <= 10
    assert m.context is not None
    assert m.max_context is not None
    assert m.context <= m.max_context


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")), ids=lambda p: p.name)
def test_file_is_private(path: Path) -> None:
    """Every file, with a manifest entry or without -> no path, address or foreign name in it."""
    text = gzip.decompress(path.read_bytes()).decode()
    assert private(text) is None
    assert re.search(rf'"traceName": ?"{re.escape(path.name)}"', text)


@pytest.mark.parametrize(
    "planted",
    [
        '"/srv/x"',
        "(/srv/x",
        "in /home/x",
        "in /Users/x",
        "in /tmp/x",
        "at 10.0.0.17:80",
        "17.1.2.3",
        "x@corp.example",
    ],
)
def test_what_is_private_is_found(planted: str) -> None:
    """A path, an address or a mail address anywhere in a text -> shown; versions and times alone -> nothing."""
    harmless = '{"ts":17.25,"name":"v1.2.3.4, a/b, 12.8.90 @ 3","grid":[1,2]}'
    assert private(harmless) is None
    assert planted in str(private(harmless + planted + harmless))


def test_manifest_is_private() -> None:
    """The manifest -> no path and no address in it either."""
    assert private((TRACES / FOLDER_MANIFEST).read_text()) is None


@pytest.mark.parametrize("variant", MANIFESTS)
def test_file_is_counted_to_the_nanosecond(variant: str) -> None:
    """Each trace -> the reader's activities and their sum are the file's own, and the manifest's."""
    manifest = MANIFESTS[variant]
    with gzip.open(TRACES / manifest.trace, "rt", encoding="utf-8") as f:
        text = f.read()
    # One event stands on each line; only those of the GPU are decoded here, numbers as text.
    lines = [line for line in text.splitlines() if '"cat":"kernel"' in line or '"cat":"gpu_mem' in line]
    durations = [json.loads(line.rstrip(","), parse_float=Decimal)["dur"] for line in lines]
    total = sum(int(Decimal(d) * 1000) for d in durations)
    table = activities(variant)
    assert len(table) == len(lines)
    assert int(table[DUR_NS].sum()) == total
    timing = manifest.timing
    assert round(timing.activity_ms * manifest.steps * 1e6) == pytest.approx(total, abs=manifest.steps)
    own = int(own_ns(table).sum())
    assert timing.own_ms is not None
    assert round(timing.own_ms * manifest.steps * 1e6) == pytest.approx(own, abs=manifest.steps)
    assert round(timing.activities * manifest.steps) == pytest.approx(len(lines), abs=1)


@pytest.mark.parametrize(
    ("names", "scope", "expected"),
    [
        ("_sparse_mla_simt_kernel", "attention/core", LAYERS + COMPRESSED),  # one per cache scope
        ("gemm", "indexer/logits", C4),
        ("gemm", "mhc_pre/", SITES),
        ("gemm", "moe/router", LAYERS),
        (
            "_fp8_block_gemm_kernel",
            "",
            5 * LAYERS + C4 + LAYERS,
        ),  # five projections, indexer's, grouped output
        ("_per_token_group_quant_fp8_kernel", "", 5 * LAYERS + C4 + LAYERS),
        ("_moe_fp4_gemm_w13_kernel", "moe/experts", LAYERS),
        ("_moe_fp4_gemm_w2_kernel", "moe/experts", LAYERS),
        ("_kv_norm_rope_insert_kernel", "attention/kv_write", LAYERS),
        ("_save_partial_state_kernel", "compressor", COMPRESSED + C4),
        ("softmax", "mhc_pre/", SITES),
        ("gatherTopK", "indexer/topk", C4),
    ],
)
def test_original_launches_what_the_architecture_asks_for(names: str, scope: str, expected: int) -> None:
    """The eager original -> launches per step as the layer list multiplies out."""
    assert per_step("original", names, scope) == expected


@pytest.mark.parametrize(
    ("variant", "names", "expected"),
    [
        ("mma", "_sparse_mla_mma_kernel", LAYERS),
        ("split_k", "_sparse_mla_split_k_kernel", LAYERS),
        ("split_k", "_sparse_mla_combine_kernel", LAYERS),
        ("indexer_triton", "_indexer_logits_kernel", C4),
        ("mhc_fused", "_mhc_post_kernel", SITES),
        ("cuda_graph", "_sparse_mla_split_k_kernel", LAYERS),
        ("cuda_graph", "_indexer_logits_kernel", C4),
        ("cuda_graph_eager", "_mhc_post_kernel", SITES),
        ("tuned", "_sparse_mla_hopper_kernel", LAYERS),
        ("tuned", "_sparse_mla_combine_kernel", LAYERS),
        ("tuned", "_sparse_mla_split_k_kernel", 0),
        ("tuned", "_fp8_splitk_reduce_kernel", 0),
        ("fp8_split", "_sparse_mla_hopper_kernel", LAYERS),
        ("fp8_split", "_fp8_block_gemm_kernel", 6 * LAYERS + C4),
        (
            "fp8_split",
            "_fp8_splitk_reduce_kernel",
            5 * LAYERS,
        ),  # all but the two wide ones, wq_b and the indexer's
    ],
)
def test_each_lever_is_pulled(variant: str, names: str, expected: int) -> None:
    """Each variant -> its own kernel is there, as often as layers use it."""
    assert per_step(variant, names) == expected


@pytest.mark.parametrize("variant", ["cuda_graph", "moe_tuned", "tuned", "fp8_split", "tuned_c1"])
def test_graph_replays_what_its_companion_launches(variant: str) -> None:
    """CUDA graph and its eager companion -> the same kernels per step, name by name."""

    def names(variant: str) -> Counter[str]:
        table = activities(variant)
        counts = Counter(table.loc[table[KIND] == KERNEL, NAME].astype(str))
        assert all(n % MANIFESTS[variant].steps == 0 for n in counts.values())
        return Counter({k: v // MANIFESTS[variant].steps for k, v in counts.items()})

    graph, eager = names(variant), names(f"{variant}_eager")
    # A copy of the sampled tokens is a kernel in one driver's graphs and a copy elsewhere.
    graph.pop("memcpy32_post", None)
    eager.pop("memcpy32_post", None)
    assert graph == eager
    assert MANIFESTS[variant].companion == MANIFESTS[f"{variant}_eager"].trace


def test_hopper_form_takes_an_sm_to_itself() -> None:
    """The Hopper form's launches -> twelve warps, 168 registers a thread, more than half of an SM's shared memory."""
    table = activities("tuned")
    table = table[table[NAME].astype(str) == "_sparse_mla_hopper_kernel"]
    assert set(table[BLOCK_X]) == {384}
    assert set(table[REGISTERS]) == {168}
    assert set(table[SHARED_MEM]) == {177_600}  # two would not fit in 227 KB; the rest is left to L1
    assert set(table[GRID_Z]) == {32}


def test_compiler_takes_launches_out() -> None:
    """torch.compile over the same step -> opaque kernels as often as before, a third of the launches, breaks listed."""
    assert sum("Graph break" in note for note in MANIFESTS["compiled"].notes) >= 10
    assert "28 graphs" in MANIFESTS["compiled"].notes[0]
    for kept in ("_moe_fp4", "_sparse_mla", "_fp8_block_gemm", "_indexer_", "_kv_norm_rope_insert"):
        assert per_step("compiled", kept) == per_step("uncompiled", kept) > 0
    assert per_step("uncompiled", "^triton_") == 0 < per_step("compiled", "^triton_")
    assert per_step("compiled", ".") < 0.4 * per_step("uncompiled", ".")
    tables = [activities(v) for v in ("uncompiled", "compiled")]
    before, after = (t.loc[t[NAME].astype(str).str.contains("at::native"), DUR_NS].sum() for t in tables)
    assert after < before / 20


def test_wider_maximum_costs_the_fallback_time() -> None:
    """8K, 64K, 1M maximum at the same real context -> the indexer's time grows, everything else's hardly."""

    def indexer_ns(variant: str) -> float:
        table = activities(variant)
        inside = table[SCOPE].astype(str).str.contains("indexer/(?:logits|topk)")
        return float(table.loc[inside, DUR_NS].sum()) / MANIFESTS[variant].steps

    assert indexer_ns("split_k_8k") < indexer_ns("split_k_64k") < indexer_ns("split_k") / 4


@pytest.mark.parametrize("variant", MANIFESTS)
def test_readme_states_the_manifests_times(variant: str) -> None:
    """The folder's README -> each row of its table of step times is manifest's and trace's, digit for digit."""
    t = MANIFESTS[variant].timing
    own_ms = own_ns(activities(variant)).sum() / MANIFESTS[variant].steps / 1e6
    row = (
        f"| {variant} | {t.unprofiled_step_ms:.1f} | {t.unprofiled_min_ms:.1f}-{t.unprofiled_max_ms:.1f} "
        f"| {t.profiled_step_ms:.1f} | {t.profiler_overhead:+.0%} | {t.tokens_per_s:.1f} "
        f"| {t.launches:,.0f} | {t.activity_ms:.2f} | {own_ms:.2f} |"
    ).replace("%", " %")
    assert row in (TRACES / "README.md").read_text().splitlines()


LOAD_IN_HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = {}
for path in sys.argv[1:]:
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="")
    frame = analysis.t.get_trace(0)
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    found[path] = [int((frame["stream"] >= 0).sum()), float(breakdown["idle_time_pctg"].iloc[0])]
print(json.dumps(found))
"""


def test_hta_itself_loads_them() -> None:
    """Three traces in HTA's own loader, its rounding off -> no error, activities found, idle time within 0..100 %."""
    paths = [str(TRACES / MANIFESTS[v].trace) for v in ("mhc_fused", "cuda_graph", "cuda_graph_eager")]
    done = subprocess.run(
        [sys.executable, "-c", LOAD_IN_HTA, *paths],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for path in paths:
        count, idle = found[path]
        assert count > 2000
        assert 0 <= idle <= 100
