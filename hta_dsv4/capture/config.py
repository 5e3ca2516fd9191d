"""What is decoded: the geometry of DeepSeek-V4 and the shape of one decode step. Torch-free.

The numbers are the published model configuration; ``tiny`` keeps every structural feature (all three layer
kinds, hash-routed layers, grouped output projection, both cache page sizes) at a size a CPU runs in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hta_dsv4.errors import HtaDsv4Error

HEAD_DIM = 512  # K = V = one 512-vector per token: 448 unrotated + 64 rotated channels
ROPE_DIM = 64
INDEX_DIM = 128
WINDOW = 128  # sliding window, tokens
KV_PAGE = 64  # tokens per page of the sliding-window and c4 pools (and of the index-key pool)
C128_PAGE = 2  # tokens per page of the c128 pool: 256 / 128
HC = 4  # residual streams of the hyper-connections


class LayerKind(str, Enum):
    """How a layer's attention sees the past beyond the sliding window."""

    SWA = "swa"
    C4 = "c4"
    C128 = "c128"

    @property
    def ratio(self) -> int:
        """Tokens per compressed entry; 0 for a sliding-window layer."""
        return {"swa": 0, "c4": 4, "c128": 128}[self.value]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Geometry of one model; sizes in elements.

    Attributes:
        name: ``flash``, ``pro`` or ``tiny``.
        hidden: width D of the residual stream.
        layers: the kind of each layer, in order.
        heads: query heads (one key/value head serves them all).
        q_lora, o_groups, o_lora: ranks and groups of the query and output projections.
        index_heads, index_topk: the c4 indexer.
        experts, experts_per_token, moe_inter: routed experts; one shared expert has the same width.
        hash_layers: how many leading layers route by token id instead of by score.
        routed_scaling: factor on the normalised routing weights.
        vocab: vocabulary size.
    """

    name: str
    hidden: int
    layers: tuple[LayerKind, ...]
    heads: int
    q_lora: int
    o_groups: int
    o_lora: int
    index_heads: int
    index_topk: int
    experts: int
    experts_per_token: int
    moe_inter: int
    hash_layers: int
    routed_scaling: float
    vocab: int
    rms_eps: float = 1e-6
    hc_eps: float = 1e-6
    sinkhorn_iters: int = 20
    swiglu_limit: float = 10.0

    def count(self, kind: LayerKind) -> int:
        """How many layers are of ``kind``."""
        return sum(k is kind for k in self.layers)


def layer_list(pairs: int) -> tuple[LayerKind, ...]:
    """``[swa, swa] + [c4, c128] * pairs + [c4]``, the order of both published models."""
    swa, c4, c128 = LayerKind.SWA, LayerKind.C4, LayerKind.C128
    return (swa, swa, *((c4, c128) * pairs), c4)


FLASH = ModelConfig(
    name="flash", hidden=4096, layers=layer_list(20), heads=64, q_lora=1024, o_groups=8, o_lora=1024,
    index_heads=64, index_topk=512, experts=256, experts_per_token=6, moe_inter=2048, hash_layers=3,
    routed_scaling=1.5, vocab=129280,
)  # fmt: skip
PRO = ModelConfig(
    name="pro", hidden=7168, layers=layer_list(29), heads=128, q_lora=1536, o_groups=16, o_lora=1024,
    index_heads=64, index_topk=1024, experts=384, experts_per_token=6, moe_inter=3072, hash_layers=3,
    routed_scaling=2.5, vocab=129280,
)  # fmt: skip
TINY = ModelConfig(
    name="tiny", hidden=256, layers=layer_list(1), heads=16, q_lora=128, o_groups=2, o_lora=128,
    index_heads=64, index_topk=64, experts=8, experts_per_token=6, moe_inter=256, hash_layers=1,
    routed_scaling=1.5, vocab=512,
)  # fmt: skip
CONFIGS = {c.name: c for c in (FLASH, PRO, TINY)}


def model_config(name: str) -> ModelConfig:
    """The configuration called ``name``.

    Raises:
        HtaDsv4Error: no such configuration.
    """
    try:
        return CONFIGS[name]
    except KeyError:
        raise HtaDsv4Error(f"--config {name}: no such model; choose one of {', '.join(CONFIGS)}") from None


@dataclass(frozen=True, slots=True)
class StepShape:
    """How large one decode step is.

    Attributes:
        batch: requests decoded together (concurrency C); each contributes one token.
        context: tokens each request has seen, at most; requests are spread over the last eighth below it.
        max_context: the static maximum the server was started for. Padded widths follow this one, and so does
            the cost of everything that works over padded widths.
        headroom: decode steps the caches have room for beyond ``context``.
    """

    batch: int
    context: int
    max_context: int
    headroom: int = 256

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            HtaDsv4Error: a size no server accepts, naming it.
        """
        if self.batch < 1:
            raise HtaDsv4Error(f"--concurrency {self.batch}: need at least one request")
        if self.context < 1:
            raise HtaDsv4Error(f"--context {self.context}: need at least one token")
        if self.max_context < self.context:
            raise HtaDsv4Error(
                f"--max-context {self.max_context} is below --context {self.context}: "
                "raise the first or lower the second"
            )

    @property
    def capacity(self) -> int:
        """Tokens a request's caches can hold: context + headroom, within ``max_context``."""
        return min(self.context + self.headroom, self.max_context)

    @property
    def index_pages(self) -> int:
        """Static width of the c4 page table, in pages of 64 compressed entries (``max_context`` / 4 / 64)."""
        return -(-max(self.max_context // 4, 1) // KV_PAGE)

    @property
    def c128_width(self) -> int:
        """Static width of the c128 index list: ``max_context`` / 128, padded to a multiple of 64."""
        return -(-max(self.max_context // 128, 1) // 64) * 64
