"""The step's kernels as the step calls them: plain in eager mode and graphs, opaque to ``torch.compile``.

The compiler is meant to fuse the torch operations between the kernels. Handed a Triton kernel that writes through
typed views of one byte pool, its code generator fails outright, so in compile mode each launched kernel stands as a
graph break with a reason, and the report counts them. Torch forms stay visible to the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dsv4_kernels.decode import sparse_mla_decode
from dsv4_kernels.indexer import indexer_logits, indexer_topk
from dsv4_kernels.mhc import hc_head, mhc_post, mhc_pre
from dsv4_kernels.moe_fp4 import moe_fp4, route

from hta_dsv4.capture import fused_glue
from hta_dsv4.capture.linear import Linear
from hta_dsv4.capture.parallel import all_gather_columns, all_reduce
from hta_dsv4.capture.straggler import spend
from hta_dsv4.capture.switches import Switches

Part = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """One callable per kernel or collective, with the signature of the function it stands for."""

    attention: Part
    index_logits: Part
    index_topk: Part
    mhc_pre: Part
    mhc_post: Part
    hc_head: Part
    route: Part
    experts: Part
    project: Part
    q_norm_rope: Part
    kv_insert: Part
    compress_insert: Part
    index_insert: Part
    index_query: Part
    swiglu: Part
    all_reduce: Part
    all_gather: Part
    spend: Part


def parts_for(switches: Switches) -> Parts:
    """The kernels of a step with these switches."""
    compiling = switches.launch == "compile"

    def part(fn: Part, opaque_to_compiler: bool, why: str = "launches Triton kernels of its own") -> Part:
        if not (compiling and opaque_to_compiler):
            return fn
        why = f"{fn.__name__} {why}"
        opaque: Part = torch.compiler.disable(fn, reason=why)  # type: ignore[no-untyped-call]
        return opaque

    indexer, mhc = switches.indexer == "triton", switches.mhc == "fused"
    return Parts(
        attention=part(sparse_mla_decode, True),
        index_logits=part(indexer_logits, indexer),
        index_topk=part(indexer_topk, indexer),
        mhc_pre=part(mhc_pre, mhc),
        mhc_post=part(mhc_post, mhc),
        hc_head=part(hc_head, mhc),
        route=part(route, switches.moe == "triton"),
        experts=part(moe_fp4, switches.moe == "triton"),
        project=part(
            _project_split if switches.gemm == "fp8_split" else _project, switches.gemm.startswith("fp8")
        ),
        q_norm_rope=part(fused_glue.q_norm_rope, True),
        kv_insert=part(fused_glue.kv_norm_rope_insert, True),
        compress_insert=part(fused_glue.compress_insert, True),
        index_insert=part(fused_glue.index_compress_insert, True),
        index_query=part(fused_glue.index_query, True),
        swiglu=part(fused_glue.silu_mul_clamp, True),
        all_reduce=part(all_reduce, True, "waits for other ranks"),
        all_gather=part(all_gather_columns, True, "waits for other ranks"),
        spend=part(spend, True),
    )


def _project(weights: Linear, x: torch.Tensor) -> torch.Tensor:
    return weights(x)


def _project_split(weights: Linear, x: torch.Tensor) -> torch.Tensor:
    return weights(x, split=True)
