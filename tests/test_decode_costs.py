"""Costs from the architecture: geometry, workload, and single kernels worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

import hta_dsv4
from hta_dsv4.analysis.costs.assign import launch_costs
from hta_dsv4.analysis.costs.cost import UNKNOWN
from hta_dsv4.analysis.costs.decode import BY_ROLE, Place, distinct_experts
from hta_dsv4.analysis.costs.geometry import FLASH, MODELS
from hta_dsv4.analysis.costs.step import step_costs
from hta_dsv4.analysis.costs.workload import Workload, workload
from hta_dsv4.capture.config import CONFIGS, StepShape
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import activities as col
from hta_dsv4.trace.manifest import manifest_entry
from tests.frames import activity_table
from tests.speed import counted_of

W = Workload(FLASH, 32, 3840, 1 << 20)


def place(kind="c4", nth=0, of=1, grid=(0, 0, 0), kernel="k", origin="x"):
    return Place(kind, origin, nth, of, grid, kernel)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_geometry_is_that_of_the_captured_step(name):
    """Every size the costs use -> the one the decode step is built from."""
    ours, theirs = MODELS[name], CONFIGS[name]
    names = {"experts_per_token": "chosen", "moe_inter": "inter"}
    for f in dataclasses.fields(theirs):
        mine = names.get(f.name, f.name)
        if f.name not in ("name", "layers") and hasattr(ours, mine):
            assert getattr(ours, mine) == getattr(theirs, f.name), f.name
    assert ours.layers == tuple(k.value for k in theirs.layers)


@pytest.mark.parametrize("maximum", [4096, 8192, 100_000, 1 << 20])
def test_padded_widths_are_those_of_the_captured_step(maximum):
    """A static maximum -> the widths the decode step pads to."""
    shape, w = StepShape(1, 4096, maximum), Workload(max_context=maximum)
    assert (w.index_width, w.c128_width) == (shape.index_pages * 64, shape.c128_width)


def test_fused_attention_reads_each_token_once():
    """B 32, c4 layer, one launch -> 640 tokens of 584 bytes and their slots, queries in, outputs out."""
    cost = BY_ROLE["attention_core"](place(kernel="_sparse_mla_split_k_kernel"), W, FLASH, 32)
    assert cost.read == 32 * 640 * 588 + 32 * 64 * 512 * 2
    assert cost.written == 32 * 64 * 512 * 2 + 32 * 64 * 4
    assert cost.flops == 32 * 640 * 64 * 2 * (512 + 512)
    assert (cost.arithmetic, cost.requested) == ("bf16", None)


def test_one_program_a_head_reads_the_tokens_64_times():
    """The SIMT kernel's c4 list -> the same unique bytes, and 64 times the KV asked for."""
    simt = place(nth=1, of=2, grid=(32, 64, 1), kernel="_sparse_mla_simt_kernel")
    cost = BY_ROLE["attention_core"](simt, W, FLASH, 32)
    assert cost.read == 32 * 512 * 588 + 32 * 64 * 512 * 2
    assert cost.requested == pytest.approx(64 * 32 * 512 * 588 + 2 * 32 * 64 * 512 * 2)


def test_one_program_a_head_walks_the_padded_c128_list():
    """8,192 padded columns for 30 valid tokens -> operations carried out 273 times over."""
    simt = place("c128", nth=1, of=2, grid=(32, 64, 1), kernel="_sparse_mla_simt_kernel")
    cost = BY_ROLE["attention_core"](simt, W, FLASH, 32)
    assert cost.issued is not None
    assert cost.issued / cost.flops == pytest.approx(8192 / 30)


def test_expected_distinct_experts():
    """Uniform routing -> 6 experts for one token, 136 for 32, all of them for very many."""
    assert distinct_experts(FLASH, 1) == pytest.approx(6)
    assert distinct_experts(FLASH, 32) == pytest.approx(136.1, abs=0.1)
    assert distinct_experts(FLASH, 10_000) == pytest.approx(256)


def test_fp4_products_read_the_distinct_experts():
    """w13 and w2 at 32 tokens -> 136 experts of 8.9 and 4.5 MB."""
    one = BY_ROLE["moe_gemm_fp4"](place(nth=0, of=2, kernel="_moe_fp4_gemm_w13_kernel"), W, FLASH, 32)
    two = BY_ROLE["moe_gemm_fp4"](place(nth=1, of=2, kernel="_moe_fp4_gemm_w2_kernel"), W, FLASH, 32)
    experts = distinct_experts(FLASH, 32)
    assert one.read == pytest.approx(experts * 2 * 2048 * 4096 * (0.5 + 1 / 32) + 2 * 32 * 4096)
    assert two.read == pytest.approx(experts * 2048 * 4096 * (0.5 + 1 / 32) + 2 * 192 * 2048)
    assert "uniform routing" in one.assumes


def test_the_mixing_product_is_its_fp32_weights():
    """MHC's [32, 16384] x [16384, 24] -> 1.57 MB of weights and 1 MB of streams."""
    cost = BY_ROLE["mhc_gemm"](place(), W, FLASH, 32)
    assert cost.read == 4 * 24 * 16384 + 2 * 32 * 16384
    assert cost.flops == 2 * 32 * 16384 * 24


@pytest.mark.parametrize(
    ("origin", "nth", "weights"),
    [("qkv_proj", 0, 1536 * 4096), ("qkv_proj", 1, 32768 * 1024), ("o_proj", 0, 8 * 1024 * 4096),
     ("o_proj", 1, 4096 * 8192), ("shared_expert", 0, 4096 * 4096), ("shared_expert", 1, 4096 * 2048)],
)  # fmt: skip
def test_projections_in_their_order(origin, nth, weights):
    """The nth FP8 product of an origin -> that projection's weights."""
    cost = BY_ROLE["gemm_fp8"](place(origin=origin, nth=nth, of=2), W, FLASH, 32)
    assert cost.flops == 2 * 32 * weights
    assert cost.read > weights


@pytest.mark.parametrize(
    ("role", "spot", "w"),
    [("attention_core", place(kind=None), W), ("attention_core", place(), Workload(FLASH, 32)),
     ("attention_core", place(of=3), W), ("indexer_logits", place(), Workload(FLASH, 32)),
     ("indexer_topk", place(), Workload(FLASH, 32)), ("gemm_fp8", place(origin="o_proj", of=3), W),
     ("gemm_fp8", place(origin="norm"), W), ("moe_gemm_fp4", place(kernel="fused_moe"), W),
     ("compressor", place(kind="swa"), W), ("quant", place(), W)],
)  # fmt: skip
def test_what_the_architecture_does_not_tell_is_unknown(role, spot, w):
    """Layer kind, context or count of launches missing -> unknown, with the reason."""
    cost = BY_ROLE[role](spot, w, FLASH, 32)
    assert cost.known == UNKNOWN
    assert cost.source


def test_layers_without_scopes_come_from_the_order_of_launches():
    """43 attention launches in a step without scopes -> windows for two layers, then c4 and c128 in turn."""
    what = {col.ROLE: "attention_core", col.ORIGIN: "attention"}
    rows = [("_sparse_mla_mma_kernel", 100 * i, 50, what) for i in range(43)]
    costs, code = launch_costs(counted_of(rows), W)
    flops = [costs[c].flops / (32 * 64 * 2048) for c in code]
    assert flops[:4] == [128, 128, 640, 158]
    assert (flops.count(640), flops.count(158)) == (21, 20)


def test_the_models_own_step_at_one_token_is_its_weights():
    """B 1 at a short context -> about 11.3 GB a step, the experts' share 3.4 GB."""
    costs = step_costs(Workload(FLASH, 1, 4096, 1 << 20))
    total = sum(c.moved for c in costs.values())
    assert total / 1e9 == pytest.approx(11.3, abs=0.5)
    assert costs["moe"].moved == pytest.approx(43 * 6 * 13.37e6, rel=0.01)


def test_the_models_own_step_needs_the_workload():
    """Context or concurrency unknown -> no floor of the model."""
    assert step_costs(Workload(FLASH, 32)) == {}
    assert step_costs(Workload(FLASH, None, 4096)) == {}


def test_the_manifest_says_the_workload_and_the_caller_overrides_it():
    """A shipped trace -> its manifest's sizes, the mean context; what the caller says goes first."""
    path = hta_dsv4.traces()["split_k_c16"]
    found = workload(path, activity_table([]), None)
    assert (found.geometry, found.batch, found.context, found.max_context) == (FLASH, 16, 3840, 1 << 20)
    assert workload(path, activity_table([]), None, batch=7).batch == 7
    assert any("as given" in s for s in workload(path, activity_table([]), None, batch=7).sources)


def test_a_rank_of_two_is_held_against_its_half_of_the_weights():
    """A tensor-parallel folder -> half the heads, expert widths and vocabulary, said so; half the FP4 bytes."""
    path = hta_dsv4.traces()["cuda_graph"].parent / "tp2" / "cuda_graph_c32_tp2"
    found = workload(path / "cuda_graph_c32_tp2_rank0.trace.json.gz", activity_table([]), None)
    assert (found.geometry.heads, found.geometry.inter, found.geometry.vocab) == (32, 1024, 64640)
    assert any("one of 2 tensor-parallel ranks" in s for s in found.sources)
    whole, half = (
        BY_ROLE["moe_gemm_fp4"](place(kernel="_moe_fp4_gemm_w13_kernel", nth=0, of=2), Workload(g, 32), g, 32)
        for g in (FLASH, FLASH.share(2))
    )
    assert half.read == pytest.approx(whole.read / 2, rel=0.01)


def test_ranks_that_nothing_says_the_share_of():
    """Two ranks and no manifest -> floors of the whole model, said, and nothing modelled is called at its floor."""
    run = hta_dsv4.load(hta_dsv4.traces()["mhc_fused"])
    part, reading = run.counted.activities, run.architecture[0]
    found = workload(None, part, reading, batch=32, context=3840, ranks=2)
    assert found.undivided
    assert any("2 ranks, and nothing says how they share the model" in s for s in found.sources)
    assert not workload(None, part, reading, ranks=1).undivided
    rank = hta_dsv4.traces()["cuda_graph"].parent / "tp2" / "cuda_graph_c32_tp2"
    assert not workload(rank / "cuda_graph_c32_tp2_rank0.trace.json.gz", part, reading, ranks=2).undivided


def test_a_trace_without_manifest_tells_its_batch_by_its_shapes(tmp_path):
    """No manifest, activations [24, 4096] -> concurrency 24 once the model is known; nothing else."""
    run = hta_dsv4.load(hta_dsv4.traces()["mhc_fused"])
    found = workload(tmp_path / "t.json", run.counted.activities, run.architecture[0])
    assert (found.geometry, found.batch, found.context) == (FLASH, 32, None)


def test_a_broken_manifest_is_one_line(tmp_path):
    """manifest.toml that is not TOML -> an error naming it."""
    (tmp_path / "manifest.toml").write_text("[[trace\n")
    with pytest.raises(HtaDsv4Error, match=r"manifest\.toml: not TOML"):
        manifest_entry(tmp_path / "a.trace.json.gz")


def test_sizes_below_one_are_refused():
    """--concurrency 0 -> an error naming it."""
    with pytest.raises(HtaDsv4Error, match="--concurrency 0"):
        workload(None, activity_table([]), None, batch=0)
