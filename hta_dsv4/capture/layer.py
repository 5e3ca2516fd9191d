"""What one layer of the decode step works with: its weights, its caches, and its name in a trace.

The step's functions take a :class:`Layer` rather than a number, so that ``torch.compile`` compiles them once per kind
of layer: it guards on every number and string they read, and 43 numbers would be 43 compilations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from dsv4_kernels.mhc import MhcWeights

from hta_dsv4.capture.config import LayerKind, ModelConfig
from hta_dsv4.capture.scopes import NOTHING, scope
from hta_dsv4.capture.state import LayerCache
from hta_dsv4.capture.straggler import Straggler
from hta_dsv4.capture.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        index: its place, for names only: code that ``torch.compile`` sees must not read it.
        kind: how its attention sees the past.
        weights, cache: its own, or those of a set it shares.
        mhc_attn, mhc_ffn: hyper-connections before attention and before the mixture of experts.
        hashed: its router looks the experts up by token.
        late: the delay planted after its attention on this rank.
    """

    index: int
    kind: LayerKind
    weights: LayerWeights
    cache: LayerCache
    mhc_attn: MhcWeights
    mhc_ffn: MhcWeights
    hashed: bool
    late: Straggler | None = None

    def scope(self, part: str) -> AbstractContextManager[object]:
        """:func:`~hta_dsv4.capture.scopes.scope` of a part of this layer, e.g. ``moe/router``."""
        if torch.compiler.is_compiling():  # before the index is read
            return NOTHING
        return scope(f"layer.{self.index}/{part}")


def make_layers(
    config: ModelConfig, weights: ModelWeights, caches: tuple[LayerCache, ...], late: Straggler | None = None
) -> tuple[Layer, ...]:
    """The layers of a step, first to last.

    Args:
        config: geometry.
        weights: of the whole model.
        caches: one per layer.
        late: extra work of this rank.
    """
    return tuple(
        Layer(
            index, kind, weights.layers[index], caches[index], weights.mhc_attn[index], weights.mhc_ffn[index],
            hashed=index < config.hash_layers,
            late=late if late is not None and late.layer == index else None,
        )
        for index, kind in enumerate(config.layers)
    )  # fmt: skip
