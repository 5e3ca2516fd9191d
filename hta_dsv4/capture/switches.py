"""The levers of the campaign: which form of each part of the step runs. Torch-free.

Every combination is legal, and two combinations compute the same numbers within the tolerance of their
number formats. The named variants are the campaign's own sequence of steps, each changing one thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, get_args, get_type_hints

from hta_dsv4.errors import HtaDsv4Error

Attention = Literal["simt", "mma", "split_k", "auto", "reference"]
Indexer = Literal["torch_fp32", "torch_bf16", "triton"]
Mhc = Literal["torch", "fused"]
Gemm = Literal["fp32", "bf16", "fp8", "fp8_split"]
Moe = Literal["triton", "torch"]
Glue = Literal["fused", "torch"]
Launch = Literal["eager", "cuda_graph", "compile"]


@dataclass(frozen=True, slots=True)
class Switches:
    """One choice per lever.

    Attributes:
        attention: sparse-MLA decode kernel: one head per program on CUDA cores (``simt``), head groups on tensor
            cores (``mma``), the same with the token list split over programs (``split_k``), the fastest
            measured for the card and the shape (``auto``: on sm_90 the Hopper form), or plain torch (``reference``).
        indexer: c4 logits by the torch fallback in FP32 or BF16 over the whole static width, or by the Triton
            kernel that stops at the real length. It decides the top-k form too.
        mhc: hyper-connections as an FP32 linear and torch Sinkhorn, or the fused kernels.
        gemm: dense projections: FP32 weights, BF16 weights, or 128x128-block FP8 with 1x128 activations, its inner
            loop undivided (``fp8``) or divided over programs where there are fewer tiles than SMs (``fp8_split``).
        moe: FP4 experts by the Triton grouped GEMM, or plain torch.
        glue: norms, rotations, quantisation and cache writes fused as servers fuse them, or one torch operation
            after another.
        launch: kernel by kernel, as one CUDA graph, or through ``torch.compile``.
    """

    attention: Attention = "split_k"
    indexer: Indexer = "torch_fp32"
    mhc: Mhc = "torch"
    gemm: Gemm = "fp8"
    moe: Moe = "triton"
    glue: Glue = "fused"
    launch: Launch = "eager"

    def __post_init__(self) -> None:
        """Check each choice.

        Raises:
            HtaDsv4Error: an unknown choice, naming the switch and what it can be.
        """
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise HtaDsv4Error(f"switch {name}={value}: choose one of {', '.join(choices)}")

    def as_dict(self) -> dict[str, str]:
        """Switch name -> choice."""
        return {k: str(v) for k, v in asdict(self).items()}


CHOICES: dict[str, tuple[str, ...]] = {k: get_args(v) for k, v in get_type_hints(Switches).items()}

# Cumulative, in the order the campaign took the steps, then in the order it should have gone on; "compiled" goes off
# at indexer_triton: what a compiler makes of the hyper-connections that "mhc_fused" rewrites by hand. Dense projections
# are FP8 throughout, as served; "bf16_gemm" is the advice a share table by kernel name gives (take the FP32 SIMT GEMM
# to bf16), applied where that time is: the indexer's product over the padded width.
_ORIGINAL = Switches(attention="simt")
_SPLIT_K = replace(_ORIGINAL, attention="split_k")
_TRITON = replace(_SPLIT_K, indexer="triton")
_FUSED = replace(_TRITON, mhc="fused")
_TUNED = replace(_FUSED, launch="cuda_graph", attention="auto")
VARIANTS: dict[str, Switches] = {
    "original": _ORIGINAL,
    "mma": replace(_ORIGINAL, attention="mma"),
    "split_k": _SPLIT_K,
    "bf16_gemm": replace(_SPLIT_K, indexer="torch_bf16"),
    "indexer_triton": _TRITON,
    "mhc_fused": _FUSED,
    "cuda_graph": replace(_FUSED, launch="cuda_graph"),
    "tuned": _TUNED,
    "fp8_split": replace(_TUNED, gemm="fp8_split"),
    "compiled": replace(_TRITON, launch="compile"),
}


def variant_switches(variant: str, overrides: Mapping[str, str] | None = None) -> Switches:
    """The switches of a named variant, with single levers changed on request.

    Args:
        variant: a key of :data:`VARIANTS`; any other label is allowed when ``overrides`` says what it means, and
            then starts from ``split_k``.
        overrides: switch name -> choice.

    Raises:
        HtaDsv4Error: an unknown variant without overrides, an unknown switch or an unknown choice.
    """
    overrides = dict(overrides or {})
    known = [f.name for f in fields(Switches)]
    for name in overrides:
        if name not in known:
            raise HtaDsv4Error(f"unknown switch {name!r}: choose one of {', '.join(known)}")
    if variant not in VARIANTS and not overrides:
        raise HtaDsv4Error(
            f"--variant {variant}: not one of {', '.join(VARIANTS)}; for a variant of your own say at least one switch"
        )
    return replace(VARIANTS.get(variant, _SPLIT_K), **overrides)  # type: ignore[arg-type]
