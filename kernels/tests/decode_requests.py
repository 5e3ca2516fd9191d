"""The compile requests of the indexer, mHC and MoE kernels, as their launchers make them for V4-Flash and V4-Pro."""

from __future__ import annotations

from typing import Any

from aot import Request
from dsv4_kernels import mhc_fused, moe_grouped, moe_select, paged_logits, tiled_topk

TARGETS = (90, 100, 120)


def _each(
    module: str, kernel: str, signature: str, constexprs: dict[str, Any], warps: int = 4
) -> list[Request]:
    names = dict(item.split("=") for item in signature.split())
    return [Request(f"dsv4_kernels.{module}", kernel, target, names, constexprs, warps) for target in TARGETS]


def indexer() -> list[Request]:
    """Logits with both query dtypes; the selection at 1024."""
    requests = []
    for dtype, operand in (("fp8e4nv", "tl.float8e4nv"), ("bf16", "tl.bfloat16")):
        requests += _each(
            "paged_logits",
            "_indexer_logits_kernel",
            f"q_ptr=*{dtype} key_ptr=*fp8e4nv scale_ptr=*fp32 weights_ptr=*fp32 table_ptr=*i32 lengths_ptr=*i32 "
            "out_ptr=*fp32 max_pages=i32:16",
            {"BLOCK_S": paged_logits.BLOCK_S, "STAGES": paged_logits.NUM_STAGES, "OPERAND": operand},
            paged_logits.NUM_WARPS,
        )
    tile = tiled_topk.TILE
    # K 512 has the same code with half the survivors.
    for topk in (1024,):
        requests += _each(
            "tiled_topk",
            "_indexer_topk_tile_kernel",
            "logits_ptr=*fp32 lengths_ptr=*i32 kept_ptr=*i32 width=i32",
            {"K": topk, "TILE": tile, "CHUNK": tiled_topk.CHUNK},
            tiled_topk.warps_for(tile),
        )
        merge = 16 * topk
        requests += _each(
            "tiled_topk",
            "_indexer_topk_merge_kernel",
            "logits_ptr=*fp32 lengths_ptr=*i32 table_ptr=*i32 kept_ptr=*i32 "
            "slots_ptr=*i32 width=i32 kept_stride=i32",
            {
                "K": topk,
                "K_SPAN": topk,
                "TILE": tile,
                "SHORT": tiled_topk.SHORT,
                "MERGE": merge,
                "CHUNK": tiled_topk.CHUNK,
            },
            tiled_topk.warps_for(max(tile, merge)),
        )
    return requests


def mhc() -> list[Request]:
    """All four kernels at D 4096; the split-K parts of one token, the most."""
    requests = _each(
        "mhc_fused",
        "_mhc_pre_gemm_kernel",
        "x_ptr=*bf16 fn_ptr=*fp32 part_ptr=*fp32 tokens=i32 width=i32:16 share=i32:16",
        {"BLOCK_T": mhc_fused.BLOCK_T, "BLOCK_K": mhc_fused.BLOCK_K},
    )
    for tokens in (1,):
        requests += _each(
            "mhc_fused",
            "_mhc_pre_finish_kernel",
            "x_ptr=*bf16 part_ptr=*fp32 scale_ptr=*fp32 base_ptr=*fp32 y_ptr=*bf16 post_ptr=*fp32 comb_ptr=*fp32 "
            "tokens=i32 dim=i32:16 eps=fp32 hc_eps=fp32 iters=i32",
            {"PARTS": mhc_fused.pre_parts(tokens, 16384), "BLOCK_D": mhc_fused.FINISH_BLOCK_D},
            mhc_fused.FINISH_WARPS,
        )
    requests += _each(
        "mhc_fused",
        "_mhc_post_kernel",
        "block_ptr=*bf16 x_ptr=*bf16 post_ptr=*fp32 comb_ptr=*fp32 out_ptr=*bf16 dim=i32:16",
        {"BLOCK_D": 1024},
    )
    requests += _each(
        "mhc_fused",
        "_hc_head_kernel",
        "x_ptr=*bf16 fn_ptr=*fp32 scale_ptr=*fp32 base_ptr=*fp32 y_ptr=*bf16 dim=i32:16 eps=fp32 hc_eps=fp32",
        {"BLOCK_D": 1024},
        8,
    )
    return requests


def moe() -> list[Request]:
    """The products in both formats with every tile that is chosen, and the three small kernels (Pro's 384 experts)."""
    requests = []
    products = {(c.places, name, getattr(c, name)) for c in moe_select.CHOICES for name in ("w13", "w2")}
    for places, product, tile in sorted(products, key=str):
        for group, scale in ((32, "u8"), (16, "fp8e4nv")):
            if group == 16 and (product == "w2" or tile != moe_select.MANY.w13):
                continue  # nothing in it that the others have not
            own = "x_ptr=*bf16 out_ptr=*bf16 topk=i32 limit=fp32"
            if product == "w2":
                own = "hidden_ptr=*bf16 weights_ptr=*fp32 out_ptr=*fp32"
            requests += _each(
                "moe_grouped",
                f"_moe_fp4_gemm_{product}_kernel",
                f"packed_ptr=*i32 scale_ptr=*{scale} overall_ptr=*fp32 pairs_ptr=*i32 expert_ptr=*i32 total_ptr=*i32 "
                f"dim=i32:16 inter=i32:16 words=i32:16 groups=i32:16 shift=i32 {own}",
                {
                    "BLOCK_M": places // 2,
                    "ROWS": tile.rows,
                    "PARTS": 2,
                    "BLOCK_K": tile.block_k,
                    "GROUP": group,
                    "STAGES": tile.stages,
                    "OPERAND": "tl.bfloat16",
                    "ASM": True,
                    "PDL": True,
                },
                tile.warps,
            )
    requests += _each(
        "moe_grouped",
        "_moe_align_kernel",
        "ids_ptr=*i32 x_ptr=*bf16 pairs_ptr=*i32 expert_ptr=*i32 total_ptr=*i32 ordered_ptr=*bf16 count=i32:16 "
        "experts=i32:16 dim=i32:16",
        {"SPAN": 1024, "E_SPAN": 512, "BLOCK_M": 16, "COPY_SPAN": moe_grouped.COPY_SPAN, "PDL": True},
    )
    requests += _each(
        "moe_route",
        "_moe_route_kernel",
        "logits_ptr=*fp32 bias_ptr=*fp32 hash_ptr=*i32 ids_ptr=*i32 weights_ptr=*fp32 experts=i32:16 scaling=fp32",
        {"TOPK": 6, "TOPK_SPAN": 8, "E_SPAN": 512, "HAS_BIAS": True, "HAS_HASH": False},
        1,
    )
    requests += _each(
        "moe_grouped",
        "_moe_reduce_kernel",
        "pairs_ptr=*fp32 out_ptr=*bf16 dim=i32:16",
        {"TOPK": 6, "BLOCK_D": 1024, "PDL": True},
    )
    return requests
