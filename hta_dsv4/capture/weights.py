"""Random weights of a whole model on one GPU.

DeepSeek-V4-Flash's routed experts alone are 147 GB, so layers of one kind take turns on a few weight sets. Each
set is several times any L2 cache and many other reads lie between two uses of it, so sharing does not turn DRAM
traffic into cache hits. The small hyper-connection weights, which would fit a cache, are distinct at every site.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from dsv4_kernels.mhc import MhcWeights
from dsv4_kernels.moe_fp4 import Fp4Experts, random_experts

from hta_dsv4.capture.compressor import CompressorWeights
from hta_dsv4.capture.config import HC, HEAD_DIM, INDEX_DIM, LayerKind, ModelConfig
from hta_dsv4.capture.linear import Linear, random_linear
from hta_dsv4.capture.switches import Switches


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """The c4 indexer: query projection, per-head weights [index_heads, D] bf16 or f32, key compressor."""

    wq_b: Linear
    weights_proj: torch.Tensor
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One set of layer weights, for layers of one kind.

    Attributes:
        wqkv_a: D -> q_lora + 512, the two first projections in one product, as servers fuse them.
        wq_b: q_lora -> heads * 512.
        wo_a: [groups] heads/groups * 512 -> o_lora.
        wo_b: groups * o_lora -> D.
        attn_norm, ffn_norm: [D] bf16; q_norm: [q_lora]; kv_norm: [512].
        sink: [heads] f32.
        compressor, indexer: where the kind has them.
        router: [experts, D] f32; router_bias: [experts] f32; hash_table: [vocab, experts_per_token] int32.
        shared_w13, shared_w2: the shared expert.
        experts: routed experts.
    """

    wqkv_a: Linear
    wq_b: Linear
    wo_a: Linear
    wo_b: Linear
    attn_norm: torch.Tensor
    ffn_norm: torch.Tensor
    q_norm: torch.Tensor
    kv_norm: torch.Tensor
    sink: torch.Tensor
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None
    router: torch.Tensor
    router_bias: torch.Tensor
    hash_table: torch.Tensor
    shared_w13: Linear
    shared_w2: Linear
    experts: Fp4Experts


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """After the last layer: ``hc_fn`` [4, 4D] f32, ``hc_scale`` [1], ``hc_base`` [4], ``norm`` [D], ``lm_head``."""

    hc_fn: torch.Tensor
    hc_scale: torch.Tensor
    hc_base: torch.Tensor
    norm: torch.Tensor
    lm_head: torch.Tensor


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights of a step.

    Attributes:
        embedding: [vocab, D] bf16.
        layers: per layer, one of the shared sets.
        mhc_attn, mhc_ffn: per layer, its own.
        head: after the last layer.
        sets: how many distinct sets stand behind ``layers``.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    mhc_attn: tuple[MhcWeights, ...]
    mhc_ffn: tuple[MhcWeights, ...]
    head: HeadWeights
    sets: int


def random_weights(
    config: ModelConfig, switches: Switches, generator: torch.Generator, sets_per_kind: int = 2
) -> ModelWeights:
    """Draw a model; the same generator state gives the same model under every choice of switches.

    Args:
        config: geometry.
        switches: only the number format of the dense projections is looked at.
        generator: its device is where the weights live.
        sets_per_kind: distinct weight sets per layer kind (c4, c128); sliding-window layers share one, and routed
            experts come in this many sets for the whole model.
    """
    draw = _Draw(config, switches, generator)
    experts = [
        random_experts(
            config.experts, config.hidden, config.moe_inter, device=draw.device, generator=generator
        )
        for _ in range(sets_per_kind)
    ]
    sets: dict[tuple[LayerKind, int], LayerWeights] = {}
    layers: list[LayerWeights] = []
    seen = dict.fromkeys(LayerKind, 0)
    for kind in config.layers:
        turn = seen[kind] % (1 if kind is LayerKind.SWA else sets_per_kind)
        seen[kind] += 1
        if (kind, turn) not in sets:
            sets[kind, turn] = draw.layer(kind, experts[len(sets) % sets_per_kind])
        layers.append(sets[kind, turn])
    D = config.hidden
    return ModelWeights(
        embedding=draw.normal((config.vocab, D), 1.0).bfloat16(),
        layers=tuple(layers),
        mhc_attn=tuple(draw.mhc() for _ in layers),
        mhc_ffn=tuple(draw.mhc() for _ in layers),
        head=HeadWeights(
            hc_fn=draw.normal((HC, HC * D), (HC * D) ** -0.5),
            hc_scale=draw.ones(1),
            hc_base=draw.normal((HC,), 0.1),
            norm=draw.ones(D).bfloat16(),
            lm_head=draw.dense(config.vocab, D),
        ),
        sets=len(sets),
    )


class _Draw:
    """Draws tensors of one configuration from one generator."""

    def __init__(self, config: ModelConfig, switches: Switches, generator: torch.Generator) -> None:
        self.config, self.switches, self.generator = config, switches, generator
        self.device = generator.device

    def normal(self, size: tuple[int, ...], std: float) -> torch.Tensor:
        return torch.randn(size, generator=self.generator, device=self.device).mul_(std)

    def ones(self, n: int) -> torch.Tensor:
        return torch.ones(n, device=self.device)

    def dense(self, n: int, k: int) -> torch.Tensor:
        """A projection that servers keep unquantised: bf16, or FP32 when everything is; the same values."""
        w = self.normal((n, k), k**-0.5).bfloat16()
        return w.float() if self.switches.gemm == "fp32" else w

    def linear(self, n: int, k: int, groups: int = 1) -> Linear:
        return random_linear(n, k, self.switches.gemm, self.generator, groups)

    def mhc(self) -> MhcWeights:
        width = HC * self.config.hidden
        return MhcWeights(self.normal((24, width), width**-0.5), self.ones(3), self.normal((24,), 0.1))

    def compressor(self, ratio: int, dim: int) -> CompressorWeights:
        coff = 2 if ratio == 4 else 1
        return CompressorWeights(
            kv_gate=self.dense(2 * coff * dim, self.config.hidden),
            ape=self.normal((ratio, coff * dim), 0.1),
            norm=self.ones(dim).bfloat16(),
        )

    def layer(self, kind: LayerKind, experts: Fp4Experts) -> LayerWeights:
        c = self.config
        D = c.hidden
        indexer = None
        if kind is LayerKind.C4:
            indexer = IndexerWeights(
                wq_b=self.linear(c.index_heads * INDEX_DIM, c.q_lora),
                weights_proj=self.dense(c.index_heads, D),
                compressor=self.compressor(4, INDEX_DIM),
            )
        rank = torch.rand((c.vocab, c.experts), generator=self.generator, device=self.device)
        return LayerWeights(
            wqkv_a=self.linear(c.q_lora + HEAD_DIM, D),
            wq_b=self.linear(c.heads * HEAD_DIM, c.q_lora),
            wo_a=self.linear(c.o_lora, c.heads // c.o_groups * HEAD_DIM, c.o_groups),
            wo_b=self.linear(D, c.o_groups * c.o_lora),
            attn_norm=self.ones(D).bfloat16(),
            ffn_norm=self.ones(D).bfloat16(),
            q_norm=self.ones(c.q_lora).bfloat16(),
            kv_norm=self.ones(HEAD_DIM).bfloat16(),
            sink=self.normal((c.heads,), 1.0),
            compressor=self.compressor(kind.ratio, HEAD_DIM) if kind.ratio else None,
            indexer=indexer,
            router=self.normal((c.experts, D), D**-0.5),
            router_bias=self.normal((c.experts,), 0.01),
            hash_table=rank.topk(c.experts_per_token, dim=1).indices.int(),
            shared_w13=self.linear(2 * c.moe_inter, D),
            shared_w2=self.linear(D, c.moe_inter),
            experts=experts,
        )
