"""Which part of a model each rank of a tensor-parallel group holds.

Attention by head, its output projection by group, routed and shared experts by width, embedding and head by
vocabulary. What every rank needs whole is on every rank: the first projection with the one key/value head, the
compressors, the indexer, routing, norms and hyper-connections. Weights are drawn whole and then cut, so that any
number of ranks computes what one computes, up to the rounding of partial sums to bfloat16.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from dsv4_kernels.moe_fp4 import Fp4Experts

from hta_dsv4.capture.config import ModelConfig
from hta_dsv4.capture.linear import Linear
from hta_dsv4.capture.parallel import Ranks
from hta_dsv4.capture.weights import LayerWeights, ModelWeights
from hta_dsv4.errors import HtaDsv4Error

_BLOCK = 128  # channels of a weight's scale block: experts are cut between blocks


def shard_config(config: ModelConfig, world_size: int) -> ModelConfig:
    """The geometry of one rank's share: heads, output groups and expert width divided.

    Args:
        config: the whole model.
        world_size: ranks.

    Raises:
        HtaDsv4Error: something cannot be divided evenly; the message says what, and which numbers of ranks can.
    """
    divided = {
        "attention heads": config.heads,
        "output groups": config.o_groups,
        f"blocks of {_BLOCK} channels in an expert": config.moe_inter // _BLOCK,
        "vocabulary entries": config.vocab,
    }
    uneven = [f"{count} {what}" for what, count in divided.items() if count % world_size]
    if uneven:
        possible = [n for n in range(1, config.heads + 1) if not any(count % n for count in divided.values())]
        raise HtaDsv4Error(
            f"{world_size} ranks cannot share {config.name} evenly ({', '.join(uneven)}); "
            f"start {', '.join(map(str, possible))} with --nproc-per-node"
        )
    return replace(
        config,
        heads=config.heads // world_size,
        o_groups=config.o_groups // world_size,
        moe_inter=config.moe_inter // world_size,
    )


def shard_weights(weights: ModelWeights, ranks: Ranks) -> ModelWeights:
    """One rank's share of a model drawn whole.

    Args:
        weights: the whole model, whose sizes :func:`shard_config` has found to divide.
        ranks: this process; a single one keeps everything.

    Returns:
        Weights in memory of their own, so that the whole model can be freed; what is not cut is shared with
        ``weights``. Layers that share a set go on sharing it.
    """
    if ranks.alone:
        return weights
    cut = _Cut(ranks)
    experts: dict[int, Fp4Experts] = {}
    sets: dict[int, LayerWeights] = {}
    for layer in weights.layers:
        if id(layer.experts) not in experts:
            experts[id(layer.experts)] = cut.experts(layer.experts)
        if id(layer) not in sets:
            sets[id(layer)] = cut.layer(layer, experts[id(layer.experts)])
    return replace(
        weights,
        embedding=cut.along(weights.embedding, 0),
        layers=tuple(sets[id(layer)] for layer in weights.layers),
        head=replace(weights.head, lm_head=cut.along(weights.head.lm_head, 0)),
    )


class _Cut:
    """Takes one rank's part of tensors."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def along(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's stretch of a dimension, as a tensor of its own."""
        size = x.shape[dim] // self.ranks.world_size
        return x.narrow(dim, self.ranks.rank * size, size).clone(memory_format=torch.contiguous_format)

    def halves(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's rows of [n, gate rows | up rows, K]: its stretch of both halves."""
        n, rows, width = x.shape
        return self.along(x.view(n, 2, rows // 2, width), 2).view(n, -1, width)

    def linear(self, w: Linear, dim: int) -> Linear:
        """Groups (0), outputs (1) or inputs (2) of a projection; its scale blocks lie along the same dimensions."""
        return Linear(self.along(w.weight, dim), None if w.scales is None else self.along(w.scales, dim))

    def gate_up(self, w: Linear) -> Linear:
        """Outputs of a projection that holds gate and up rows."""
        return Linear(self.halves(w.weight), None if w.scales is None else self.halves(w.scales))

    def experts(self, e: Fp4Experts) -> Fp4Experts:
        """Every expert, a part of its width."""
        return Fp4Experts(
            e.format, self.halves(e.w13), self.halves(e.s13), self.along(e.w2, 2), self.along(e.s2, 2), e.g13, e.g2
        )  # fmt: skip

    def layer(self, w: LayerWeights, experts: Fp4Experts) -> LayerWeights:
        """One weight set."""
        return replace(
            w,
            wq_b=self.linear(w.wq_b, 1),
            wo_a=self.linear(w.wo_a, 0),
            wo_b=self.linear(w.wo_b, 2),
            sink=self.along(w.sink, 0),
            shared_w13=self.gate_up(w.shared_w13),
            shared_w2=self.linear(w.shared_w2, 2),
            experts=experts,
        )
