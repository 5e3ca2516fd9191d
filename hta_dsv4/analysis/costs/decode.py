"""The kernels of a DeepSeek-V4 decode step that no op describes, from the architecture and the workload.

One function per role; each says what it assumes. Activations count once in and once out, weights and caches once: what
a split, a retry or a second launch adds is the implementation's, not the floor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hta_dsv4.analysis.costs.cost import Cost, helper, unknown
from hta_dsv4.analysis.costs.geometry import (
    C4,
    HEAD_DIM,
    INDEX_DIM,
    INDEX_KEY_BYTES,
    KV_BYTES,
    STREAMS,
    SWA,
    Geometry,
)
from hta_dsv4.analysis.costs.workload import Workload

_SOURCE = "architecture and workload"
_MIXES = STREAMS * (STREAMS + 2)  # 24 rows of a hyper-connection's weights


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the step a launch stands.

    Attributes:
        kind: layer kind (``swa``, ``c4``, ``c128``); ``None`` where not known.
        origin: what asked for it.
        nth, of: the launch is number ``nth`` of ``of`` launches of its role with this origin in its layer.
        grid: CTAs in x, y, z; 0 where not recorded.
        kernel: its name.
    """

    kind: str | None
    origin: str
    nth: int
    of: int
    grid: tuple[int, int, int]
    kernel: str


def attention(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Sparse MLA: each request's valid tokens once, the queries once, the output once.

    A launch covers both scopes (one per layer) or one of them (two per layer: window first). One program per head reads
    the tokens again for each head; ``requested`` and ``issued`` then say how often, and what the padded width costs.
    """
    if place.kind is None or place.of > 2:
        return unknown("sparse attention: which scopes a launch covers is not known")
    extra = w.tokens(place.kind)
    if extra is None:
        return unknown("sparse attention: the context is not known (--context)")
    single = place.of == 2 and place.kind != SWA
    tokens = (extra if place.nth else w.window) if single else w.window + extra
    per_head = "simt" in place.kernel.lower() or (place.grid[1] == g.heads and place.grid[0] == B)
    query = 2.0 * B * g.heads * HEAD_DIM
    cost = Cost(
        read=B * tokens * (KV_BYTES + 4) + query,
        written=query + 4.0 * B * g.heads,
        flops=B * tokens * g.heads * 4.0 * HEAD_DIM,
        arithmetic="bf16",
        source=_SOURCE,
        assumes=f"{tokens:g} valid tokens a request, each read once for all {g.heads} heads, products on tensor cores",
    )
    if not per_head:
        return cost
    width = tokens
    if place.kind == "c128" and w.c128_width and (place.nth or not single):
        width = w.c128_width if single else w.window + w.c128_width
    elif place.kind == C4 and (place.nth or not single):
        width = g.index_topk if single else w.window + g.index_topk
    return Cost(
        cost.read, cost.written, cost.flops, "bf16", cost.known, cost.source,
        cost.assumes + f"; here one program a head reads them {g.heads} times and walks {width:g} padded columns",
        requested=g.heads * B * (tokens * KV_BYTES + 4.0 * width) + 2 * query,
        issued=B * width * g.heads * 4.0 * HEAD_DIM,
    )  # fmt: skip


def indexer_logits(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Index scores over the real length: 132 bytes in and 4 out per entry."""
    n = w.index_length
    if n is None:
        return unknown("indexer logits: the context is not known (--context)")
    return Cost(
        read=B * n * INDEX_KEY_BYTES + B * g.index_heads * (INDEX_DIM + 4.0),
        written=4.0 * B * n,
        flops=2.0 * B * n * g.index_heads * INDEX_DIM,
        arithmetic="fp8",
        source=_SOURCE,
        assumes=f"{n:g} real entries a request; nothing past them needs scoring",
    )


def indexer_topk(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Selection: every score once, the chosen slots out."""
    n = w.index_length
    if n is None:
        return unknown("indexer top-k: the context is not known (--context)")
    if place.nth:
        return helper("the first launch of the selection")
    return Cost(
        read=4.0 * B * n, written=4.0 * B * g.index_topk, flops=B * n, source=_SOURCE,
        assumes=f"{n:g} real entries a request",
    )  # fmt: skip


def indexer_query(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Rotation, Hadamard product and quantisation of the index queries."""
    n = B * g.index_heads
    return Cost(
        read=2.0 * n * (INDEX_DIM + 1) + 2.0 * INDEX_DIM**2, written=n * (INDEX_DIM + 4.0),
        flops=2.0 * n * INDEX_DIM**2, arithmetic="bf16", source=_SOURCE,
        assumes="the Hadamard product on tensor cores",
    )  # fmt: skip


def hyper_gemm(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """The mixing product [B, 4D] x [4D, 24] in FP32."""
    width = STREAMS * g.hidden
    return Cost(
        read=2.0 * B * width + 4.0 * _MIXES * width, written=4.0 * B * _MIXES, flops=2.0 * B * width * _MIXES,
        arithmetic="tf32", source=_SOURCE, assumes="bf16 streams, FP32 weights",
    )  # fmt: skip


def hyper_pre(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Sinkhorn and the mix of the streams down to the block's input."""
    return Cost(read=2.0 * B * STREAMS * g.hidden + 4.0 * B * _MIXES, written=2.0 * B * g.hidden + 80.0 * B,
                flops=2.0 * B * STREAMS * g.hidden, source=_SOURCE)  # fmt: skip


def hyper_post(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """The mix of a block's output back into the streams."""
    return Cost(read=2.0 * B * (STREAMS + 1) * g.hidden + 80.0 * B, written=2.0 * B * STREAMS * g.hidden,
                flops=2.0 * B * STREAMS * (STREAMS + 1) * g.hidden, source=_SOURCE)  # fmt: skip


def hyper_head(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """The last mix, weights included."""
    width = STREAMS * g.hidden
    return Cost(read=2.0 * B * width + 4.0 * STREAMS * width, written=2.0 * B * g.hidden,
                flops=2.0 * B * width * (STREAMS + 1), source=_SOURCE)  # fmt: skip


def distinct_experts(g: Geometry, B: int) -> float:
    """Expected distinct experts of a layer when B tokens choose uniformly, without replacement within a token."""
    return g.experts * (1.0 - (1.0 - g.chosen / g.experts) ** B)


def moe_gemm(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """A routed FP4 product: the distinct experts' weights and block scales once, the chosen tokens' activations."""
    lower = place.kernel.lower()
    if place.of not in (1, 2):
        return unknown("FP4 MoE: which product a launch is, is not known")
    second = place.nth == 1
    if place.of == 1 and "w13" not in lower and "w2" not in lower:
        return unknown("FP4 MoE: one launch a layer, and its name does not say which products it holds")
    if "w13" in lower or "w2" in lower:
        second = "w13" not in lower
    experts, pairs = distinct_experts(g, B), B * g.chosen
    block = 0.5 + (1 / 16 if "nvfp4" in lower else 1 / 32)
    rows, inner = (g.hidden, g.inter) if second else (2 * g.inter, g.hidden)
    activations = 2.0 * pairs * g.inter if second else 2.0 * B * g.hidden
    out = 4.0 * B * g.hidden if second else 2.0 * pairs * g.inter
    return Cost(
        read=experts * rows * inner * block + activations, written=out, flops=2.0 * pairs * rows * inner,
        arithmetic="bf16", source=_SOURCE,
        assumes=f"{experts:.1f} distinct experts of {g.experts}, as uniform routing gives on average (skewed routing "
        f"reads fewer), {block:g} bytes a weight, products in bf16",
    )  # fmt: skip


def moe_combine(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """The weighted sum over a token's experts."""
    return Cost(read=4.0 * B * g.chosen * g.hidden, written=2.0 * B * g.hidden, flops=B * g.chosen * g.hidden,
                source=_SOURCE, assumes="FP32 partial results")  # fmt: skip


def moe_routing(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Scores and the choice of experts."""
    return Cost(read=4.0 * B * g.experts + 4.0 * g.experts, written=8.0 * B * g.chosen,
                flops=8.0 * B * g.experts, source=_SOURCE)  # fmt: skip


def moe_permute(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Sorting token-expert pairs by expert."""
    return Cost(read=4.0 * B * g.chosen, written=8.0 * B * g.chosen, source=_SOURCE)


# origin -> the projections launched for it, in order: outputs, inputs, groups
_PROJECTIONS: dict[str, Callable[[Geometry], list[tuple[int, int, int]]]] = {
    "qkv_proj": lambda g: [(g.q_lora + HEAD_DIM, g.hidden, 1), (g.heads * HEAD_DIM, g.q_lora, 1)],
    "o_proj": lambda g: [
        (g.o_lora, g.heads // g.o_groups * HEAD_DIM, g.o_groups), (g.hidden, g.o_groups * g.o_lora, 1)
    ],
    "shared_expert": lambda g: [(2 * g.inter, g.hidden, 1), (g.hidden, g.inter, 1)],
    "indexer": lambda g: [(g.index_heads * INDEX_DIM, g.q_lora, 1)],
}  # fmt: skip


def fp8_projection(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """A dense projection with 128 x 128-block FP8 weights."""
    known = _PROJECTIONS.get(place.origin)
    projections = known(g) if known else []
    if len(projections) != place.of:
        return unknown(
            f"FP8 projection: {place.of} a layer for {place.origin}, where the architecture has {len(projections)}"
        )
    n, k, groups = projections[place.nth]
    return Cost(
        read=groups * n * k * (1 + 4 / 128**2) + B * groups * k * (1 + 4 / 128), written=2.0 * B * groups * n,
        flops=2.0 * B * groups * n * k, arithmetic="fp8", source=_SOURCE,
        assumes=f"{groups} x [{n}, {k}] FP8 weights with 128 x 128 scales",
    )  # fmt: skip


def group_quant(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Quantisation of activations in groups of 128 channels, one program a group."""
    if place.grid[0] <= 0 or "per_token_group_quant_fp8_kernel" not in place.kernel:
        return unknown("quantisation: its size is not known from the grid")
    groups = max(place.grid[0], 1) * max(place.grid[1], 1) * max(place.grid[2], 1)
    n = 128.0 * groups
    return Cost(read=2 * n, written=n + 4.0 * groups, flops=3 * n, source="grid",
                assumes="one program quantises 128 channels")  # fmt: skip


def head_prep(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Norm and rotation of the queries or of the attention's output, per head."""
    n = float(B * g.heads * HEAD_DIM)
    return Cost(read=2 * n, written=2 * n, flops=4 * n, source=_SOURCE)


def kv_write(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Norm, rotation, quantisation and store of one token a request."""
    return Cost(
        read=2.0 * B * HEAD_DIM, written=float(B * KV_BYTES), flops=8.0 * B * HEAD_DIM, source=_SOURCE
    )


def compressor(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """Folding a token into the partial group, or closing the groups that are complete."""
    if place.kind not in (C4, "c128"):
        return unknown("compressor: the layer's kind is not known")
    ratio, overlap = (4, 2) if place.kind == C4 else (128, 1)
    dim = INDEX_DIM if place.origin == "indexer" else HEAD_DIM
    if "save_partial" in place.kernel or "partial_state" in place.kernel:
        n = float(B * overlap * dim)
        return Cost(read=8 * n + 4 * n, written=8 * n, flops=n, source=_SOURCE)
    closing = B / ratio
    state = 8.0 * overlap * ratio * dim  # values and scores, FP32
    return Cost(
        read=closing * state, written=closing * KV_BYTES, flops=closing * state, source=_SOURCE,
        assumes=f"one in {ratio} requests closes a group in a step",
    )  # fmt: skip


def activation(place: Place, w: Workload, g: Geometry, B: int) -> Cost:
    """The shared expert's gated activation."""
    n = float(B * g.inter)
    return Cost(read=4 * n, written=2 * n, flops=4 * n, source=_SOURCE)


BY_ROLE: dict[str, Callable[[Place, Workload, Geometry, int], Cost]] = {
    "attention_core": attention,
    "indexer_logits": indexer_logits,
    "indexer_topk": indexer_topk,
    "indexer_qk_prep": indexer_query,
    "mhc_gemm": hyper_gemm,
    "mhc_pre": hyper_pre,
    "mhc_post": hyper_post,
    "mhc_head": hyper_head,
    "moe_gemm_fp4": moe_gemm,
    "moe_combine": moe_combine,
    "moe_routing": moe_routing,
    "moe_permute": moe_permute,
    "gemm_fp8": fp8_projection,
    "quant": group_quant,
    "attention_qkv_prep": head_prep,
    "kv_write": kv_write,
    "compressor": compressor,
    "activation": activation,
}
"""Role -> cost of one launch of it."""

HELPERS = {
    "attention_combine": "attention_core",
    "gemm_splitk_reduce": "the product it finishes",
}
"""Roles whose work another role's cost already holds: an implementation without them moves nothing more."""
