"""What one decode step must move and compute whatever its kernels are: weights, caches and chosen experts, by origin.

The floors of launches are those of the work a program set itself; an indexer that scores padding has a floor too. This
is the model's own: every weight the step uses once, every cached entry that is really attended to once, and nothing
between the parts. It is what is left when all is fused and nothing is padded, on one GPU without parallelism.
"""

from __future__ import annotations

from hta_dsv4.analysis.costs.cost import Cost
from hta_dsv4.analysis.costs.decode import distinct_experts
from hta_dsv4.analysis.costs.geometry import (
    C4,
    C128,
    HEAD_DIM,
    INDEX_DIM,
    INDEX_KEY_BYTES,
    KV_BYTES,
    STREAMS,
)
from hta_dsv4.analysis.costs.workload import Workload

_SOURCE = "architecture and workload"
_FP8 = 1 + 4 / 128**2  # bytes a weight: e4m3 and a float32 scale per 128 x 128 block
_FP4 = 0.5 + 1 / 32  # e2m1 and a scale per 32


def step_costs(w: Workload) -> dict[str, Cost]:
    """Origin -> what its part of one step costs at least; empty where model, concurrency or context is unknown.

    Args:
        w: what was decoded.
    """
    g, B = w.geometry, w.batch
    if g is None or B is None or w.context is None:
        return {}
    n = len(g.layers)
    layers = {k: sum(kind == k for kind in g.layers) for k in (C4, C128)}

    def weights(count: float, rows: int, inner: int, size: float, arithmetic: str, assumes: str = "") -> Cost:
        return Cost(
            read=count * rows * inner * size, flops=2.0 * B * count * rows * inner, arithmetic=arithmetic,
            source=_SOURCE, assumes=assumes,
        )  # fmt: skip

    tokens = sum(w.window + (w.tokens(kind) or 0.0) for kind in g.layers)
    experts = distinct_experts(g, B)
    routed = 3 * g.hidden * g.inter
    index_length = w.index_length or 0.0
    indexer = layers[C4] * (
        g.index_heads * INDEX_DIM * g.q_lora * _FP8 + 2.0 * (g.index_heads + 4 * INDEX_DIM) * g.hidden
    )
    compress = layers[C4] * 4 * HEAD_DIM * g.hidden + layers[C128] * 2 * HEAD_DIM * g.hidden
    mixes = STREAMS * (STREAMS + 2) * STREAMS * g.hidden
    return {
        "qkv_proj": weights(n, 1, (g.q_lora + HEAD_DIM) * g.hidden + g.heads * HEAD_DIM * g.q_lora, _FP8, "fp8"),
        "o_proj": weights(n, 1, g.heads * HEAD_DIM * g.o_lora + g.hidden * g.o_groups * g.o_lora, _FP8, "fp8"),
        "attention": Cost(
            read=B * tokens * KV_BYTES, flops=B * tokens * g.heads * 4.0 * HEAD_DIM, arithmetic="bf16", source=_SOURCE,
            assumes="each valid token read once for all heads",
        ),
        "compressor": weights(1, 1, compress, 2.0, "bf16"),
        "indexer": Cost(
            read=indexer + layers[C4] * B * index_length * INDEX_KEY_BYTES,
            flops=2.0 * B * layers[C4] * g.index_heads * INDEX_DIM * (index_length + g.q_lora),
            arithmetic="fp8", source=_SOURCE, assumes=f"{index_length:g} real entries a request scored, none past them",
        ),
        "moe": Cost(
            read=n * experts * routed * _FP4, flops=2.0 * B * g.chosen * n * routed, arithmetic="bf16", source=_SOURCE,
            assumes=f"{experts:.1f} distinct experts a layer, as uniform routing gives on average",
        ),
        "shared_expert": weights(n, 1, routed, _FP8, "fp8"),
        "router": weights(n, g.experts, g.hidden, 4.0, "fp32"),
        "mhc_pre": weights(2 * n, 1, mixes, 4.0, "tf32"),
        "lm_head": weights(1, g.vocab, g.hidden, 2.0, "bf16", "bf16 weights"),
    }  # fmt: skip
