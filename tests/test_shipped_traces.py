"""The shipped campaign: it is what the architecture says, it is private, and the reader counts it exactly."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hta_dsv4.capture.manifest import FOLDER_MANIFEST, Manifest, read_folder_manifest
from hta_dsv4.trace.activities import DUR_NS, KERNEL, KIND, NAME, SCOPE
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
)
SCALING = ("split_k_c1", "split_k_c16", "split_k_c64", "split_k_8k", "split_k_64k")
LAYERS, C4, COMPRESSED, SITES = 43, 21, 41, 86


@cache
def activities(variant: str) -> pd.DataFrame:
    """The activity table of a shipped variant."""
    return read_trace(TRACES / MANIFESTS[variant].trace).activities


@cache
def raw(variant: str) -> dict[str, Any]:
    """The file itself, numbers exact."""
    with gzip.open(TRACES / MANIFESTS[variant].trace, "rt", encoding="utf-8") as f:
        data: dict[str, Any] = json.load(f, parse_float=Decimal)
    return data


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
    assert sum(f.stat().st_size for f in TRACES.glob("*.gz")) <= 30_000_000


@pytest.mark.parametrize("variant", MANIFESTS)
def test_manifest_says_speed_and_conditions(variant: str) -> None:
    """Each entry -> unprofiled step, tokens/s that follow from it, overhead, GPU, versions, steps within 2..5."""
    m: Manifest = MANIFESTS[variant]
    t = m.timing
    assert t.tokens_per_s == pytest.approx(m.concurrency / t.unprofiled_step_ms * 1e3, rel=1e-3)
    assert t.profiler_overhead == pytest.approx(t.profiled_step_ms / t.unprofiled_step_ms - 1, abs=1e-3)
    assert m.device["name"] == "NVIDIA H200"
    assert {"driver", "clock_sm_mhz", "sms"} <= set(m.device)
    assert {"torch", "triton", "cuda"} <= set(m.versions)
    assert m.commit
    assert 2 <= m.steps <= 5
    assert m.context is not None
    assert m.max_context is not None
    assert m.context <= m.max_context


@pytest.mark.parametrize("variant", MANIFESTS)
def test_reader_counts_the_file_to_the_nanosecond(variant: str) -> None:
    """Each trace -> the reader's activities and their summed time are the file's own, and the manifest's."""
    own = [e for e in raw(variant)["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    total = sum(int(Decimal(e["dur"]) * 1000) for e in own)
    table = activities(variant)
    assert len(table) == len(own)
    assert int(table[DUR_NS].sum()) == total
    timing, steps = MANIFESTS[variant].timing, MANIFESTS[variant].steps
    assert round(timing.activity_ms * steps * 1e6) == pytest.approx(total, abs=steps)
    assert round(timing.activities * steps) == pytest.approx(len(own), abs=1)


@pytest.mark.parametrize("variant", MANIFESTS)
def test_no_name_of_the_machine(variant: str) -> None:
    """Each trace -> no home folder, no absolute path, no address, in no string of the file."""
    with gzip.open(TRACES / MANIFESTS[variant].trace, "rt", encoding="utf-8") as f:
        text = f.read()
    for pattern in (
        r"/home/",
        r"/root\b",
        r"/work/",
        r"/Users/",
        r"/tmp/",
        r"\b\d+\.\d+\.\d+\.\d+\b",
        r"@[a-z]+\.",
    ):
        assert re.search(pattern, text) is None, pattern
    assert raw(variant)["traceName"] == MANIFESTS[variant].trace


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
    ],
)
def test_each_lever_is_pulled(variant: str, names: str, expected: int) -> None:
    """Each variant -> its own kernel is there, as often as layers use it."""
    assert per_step(variant, names) == expected


def test_graph_replays_what_its_companion_launches() -> None:
    """CUDA graph and its eager companion -> the same kernels per step, name by name."""

    def names(variant: str) -> Counter[str]:
        table = activities(variant)
        counts = Counter(table.loc[table[KIND] == KERNEL, NAME].astype(str))
        assert all(n % MANIFESTS[variant].steps == 0 for n in counts.values())
        return Counter({k: v // MANIFESTS[variant].steps for k, v in counts.items()})

    assert names("cuda_graph") == names("cuda_graph_eager")
    assert MANIFESTS["cuda_graph"].companion == MANIFESTS["cuda_graph_eager"].trace


def test_wider_maximum_costs_the_fallback_time() -> None:
    """8K, 64K, 1M maximum at the same real context -> the indexer's time grows, everything else's hardly."""

    def indexer_ns(variant: str) -> float:
        table = activities(variant)
        inside = table[SCOPE].astype(str).str.contains("indexer/(?:logits|topk)")
        return float(table.loc[inside, DUR_NS].sum()) / MANIFESTS[variant].steps

    assert indexer_ns("split_k_8k") < indexer_ns("split_k_64k") < indexer_ns("split_k") / 4
