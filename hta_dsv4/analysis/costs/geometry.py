"""The geometry of DeepSeek-V4 as far as costs need it: sizes of the published models, in elements."""

from __future__ import annotations

from dataclasses import dataclass, replace

HEAD_DIM, WINDOW, STREAMS, INDEX_DIM = 512, 128, 4, 128
KV_BYTES = 584  # one cached token: 448 e4m3, 64 bf16, 7 scales and a byte of padding
INDEX_KEY_BYTES = 132  # one index key: 128 e4m3 and a float32 scale
SWA, C4, C128 = "swa", "c4", "c128"


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of one published model, in elements.

    Attributes:
        name: as the architecture table spells it.
        hidden, heads, q_lora, o_groups, o_lora: residual width, query heads, ranks and groups of the projections.
        index_heads, index_topk: the c4 indexer.
        experts, chosen, inter: routed experts, chosen per token, their width.
        pairs: c4 and c128 layers take turns this many times after two sliding-window layers, then one more c4.
        vocab: vocabulary.
    """

    name: str
    hidden: int
    heads: int
    q_lora: int
    o_groups: int
    o_lora: int
    index_heads: int
    index_topk: int
    experts: int
    chosen: int
    inter: int
    pairs: int
    vocab: int

    @property
    def layers(self) -> tuple[str, ...]:
        """The kind of each layer, in order."""
        return (SWA, SWA, *((C4, C128) * self.pairs), C4)

    def share(self, ranks: int) -> Geometry:
        """What one of ``ranks`` tensor-parallel ranks holds: heads, output groups, expert width and vocabulary divided.

        The key/value head, compressors, indexer, router, norms and hyper-connections are on every rank whole.
        """
        return replace(
            self, heads=self.heads // ranks, o_groups=self.o_groups // ranks, inter=self.inter // ranks,
            vocab=self.vocab // ranks,
        )  # fmt: skip


FLASH = Geometry("DeepSeek-V4-Flash", 4096, 64, 1024, 8, 1024, 64, 512, 256, 6, 2048, 20, 129280)
PRO = Geometry("DeepSeek-V4-Pro", 7168, 128, 1536, 16, 1024, 64, 1024, 384, 6, 3072, 29, 129280)
MODELS = {"flash": FLASH, "pro": PRO}
