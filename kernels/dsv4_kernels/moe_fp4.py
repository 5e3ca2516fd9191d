"""What does the routed MoE of a decode step compute? Routing, FP4 experts, and the weighted sum.

``route``: score = sqrt(softplus(logit)); the ``topk`` experts of the highest score + bias (or the ids a hash table
gives); weights are the unbiased scores, normalised over the chosen and scaled. ``moe_fp4``: per chosen expert
``w2 @ (silu(min(gate, limit)) * clamp(up, -limit, limit))`` with ``gate, up = w13 @ x``, summed with the weights.

The torch form of ``moe_fp4`` stands for an engine without an FP4 kernel that must still run under a CUDA graph: shapes
cannot follow the routing, so it dequantises the chosen experts' weights once **per token and expert** to bfloat16 and
runs a batched product over them. It is a reference and a naive "before"; the published campaign's own starting point
already had an FP4 kernel. The Triton form sorts token-expert pairs on the device and reads each expert once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)

from . import _expect, fp4
from ._device import launching
from .moe_grouped import moe_triton
from .moe_route import route_triton

VARIANTS = ("auto", "torch", "triton")


@dataclass(frozen=True)
class Fp4Experts:
    """One layer's routed experts (E experts, hidden size D, intermediate size I).

    Attributes:
        format: ``"mxfp4"`` (block 32, E8M0) or ``"nvfp4"`` (block 16, e4m3 and a global float32).
        w13: uint8 [E, 2 * I, D // 2]; rows 0 .. I-1 are the gate, I .. 2I-1 the up projection.
        s13: uint8 or e4m3 [E, 2 * I, D // block].
        w2: uint8 [E, D, I // 2].
        s2: uint8 or e4m3 [E, D, I // block].
        g13: float32 [E], nvfp4 only.
        g2: float32 [E], nvfp4 only.
        values: bfloat16 [256, 2], what each byte means; made here so that no graph capture has to.
        shift13: The power of two by which s13 exceeds 2, 0 if it does not (read from the device once, here): the
            Triton kernels work with scales of at most 2 and undo the difference in float32. A block 2^120 times
            smaller than the layer's largest would underflow.
        shift2: The same of s2.
    """

    format: str
    w13: torch.Tensor
    s13: torch.Tensor
    w2: torch.Tensor
    s2: torch.Tensor
    g13: torch.Tensor | None = None
    g2: torch.Tensor | None = None
    values: torch.Tensor = field(init=False, repr=False)
    shift13: int = field(init=False, repr=False, default=0)
    shift2: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        _expect.choice("format", self.format, fp4.FORMATS)
        block, scale_dtype = fp4.BLOCK[self.format], fp4.SCALE_DTYPE[self.format]
        experts, hidden, half = _expect.tensor("w2", self.w2, torch.uint8, ("E", "D", "I//2"))
        inter = 2 * half
        if experts == 0 or hidden == 0 or hidden % 128 or inter == 0 or inter % 128:
            raise ValueError(
                f"w2: expected E > 0, D and I positive multiples of 128, got D {hidden}, I {inter}"
            )
        device = self.w2.device
        _expect.tensor("w13", self.w13, torch.uint8, (experts, 2 * inter, hidden // 2), device=device)
        _expect.tensor("s13", self.s13, scale_dtype, (experts, 2 * inter, hidden // block), device=device)
        _expect.tensor("s2", self.s2, scale_dtype, (experts, hidden, inter // block), device=device)
        for name, value in (("g13", self.g13), ("g2", self.g2)):
            if self.format == "nvfp4":
                _expect.tensor(name, value, torch.float32, (experts,), device=device)
            elif value is not None:
                raise ValueError(f"{name}: expected None, mxfp4 has no global scale")
        object.__setattr__(self, "values", fp4.byte_values(torch.bfloat16, device))
        if self.format == "mxfp4":
            object.__setattr__(self, "shift13", max(0, int(self.s13.amax()) - 128))
            object.__setattr__(self, "shift2", max(0, int(self.s2.amax()) - 128))

    @property
    def count(self) -> int:
        """E, the number of experts."""
        return int(self.w2.shape[0])

    @property
    def hidden(self) -> int:
        """D, the hidden size."""
        return int(self.w2.shape[1])

    @property
    def inter(self) -> int:
        """I, the intermediate size."""
        return 2 * int(self.w2.shape[2])

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's weights and block scales: what a step reads per distinct expert."""
        parts = (self.w13, self.s13, self.w2, self.s2)
        return sum(part[0].numel() * part.element_size() for part in parts)


def quantize_experts(w13: torch.Tensor, w2: torch.Tensor, format: str = "mxfp4") -> Fp4Experts:
    """Quantise float experts.

    Args:
        w13: Floating point [E, 2 * I, D], finite, gate rows first.
        w2: Floating point [E, D, I], finite.
        format: ``"mxfp4"`` or ``"nvfp4"``.

    Returns:
        The experts, on the same device.

    Raises:
        ValueError: The format is unknown, a value is not finite or the shapes do not fit each other.
    """
    packed13, s13, g13 = fp4.quantize(w13, format, "w13")
    packed2, s2, g2 = fp4.quantize(w2, format, "w2")
    return Fp4Experts(format, packed13, s13, packed2, s2, g13, g2)


def random_experts(
    count: int,
    hidden: int,
    inter: int,
    format: str = "mxfp4",
    *,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Fp4Experts:
    """Random experts made as bytes, without the float weights (25 GB for 256 experts of V4-Flash).

    Codes are uniform; scales are such that both projections keep a unit-variance input near unit variance.

    Args:
        count: E.
        hidden: D, a multiple of 128.
        inter: I, a multiple of 128.
        format: ``"mxfp4"`` or ``"nvfp4"``.
        device: Where they live.
        generator: Source of randomness on that device; None takes torch's default.

    Returns:
        The experts.

    Raises:
        ValueError: The format is unknown or a size is not what is described here.
    """
    for name, size in (("count", count), ("hidden", hidden), ("inter", inter)):
        _expect.count(name, size)
    block = fp4.BLOCK[_expect.choice("format", format, fp4.FORMATS)]

    def codes(rows: int, width: int) -> torch.Tensor:
        shape = (count, rows, width // 2)
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)

    def scales(rows: int, width: int) -> torch.Tensor:
        # Uniform codes have variance 8.56; 2^-1.5 K^-1/2 brings a K-long product back to about one.
        exponent = -round(1.5 + 0.5 * torch.log2(torch.tensor(float(width))).item())
        shape = (count, rows, width // block)
        spread = torch.randint(-1, 2, shape, dtype=torch.int32, device=device, generator=generator)
        if format == "mxfp4":
            return (spread + (exponent + 127)).to(torch.uint8)
        return torch.exp2(spread.float()).to(torch.float8_e4m3fn)

    def overall(width: int) -> torch.Tensor | None:
        if format == "mxfp4":
            return None
        return torch.full((count,), (8.0 * width) ** -0.5, dtype=torch.float32, device=device)

    return Fp4Experts(
        format,
        codes(2 * inter, hidden),
        scales(2 * inter, hidden),
        codes(hidden, inter),
        scales(hidden, inter),
        overall(hidden),
        overall(inter),
    )


def route(
    logits: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    topk: int = 6,
    scaling: float = 1.5,
    hash_ids: torch.Tensor | None = None,
    variant: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose each token's experts and their weights.

    Args:
        logits: float32 [T, E], the router's output.
        bias: float32 [E], added to the scores for the choice only; None for none.
        topk: Experts per token.
        scaling: The routed scaling factor the normalised weights are multiplied by.
        hash_ids: int32 [T, topk] of ids already chosen (hash-routed layers), each in 0 .. E-1 (checked on the CPU
            only); excludes ``bias``.
        variant: ``"torch"``, ``"triton"`` (one launch) or ``"auto"`` (triton on CUDA).

    Returns:
        ids int32 [T, topk] and weights float32 [T, topk]; per token by falling biased score, or as in ``hash_ids``.

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, VARIANTS)
    tokens, experts = _expect.tensor("logits", logits, torch.float32, ("T", "E"))
    _expect.count("topk", topk)
    scaling = _expect.number("scaling", scaling)
    if tokens == 0 or topk > experts:
        raise ValueError(f"topk: expected T > 0 and 1 <= topk <= E, got T {tokens}, topk {topk}, E {experts}")
    if bias is not None:
        _expect.tensor("bias", bias, torch.float32, (experts,), device=logits.device)
    if hash_ids is not None:
        _expect.tensor("hash_ids", hash_ids, torch.int32, (tokens, topk), device=logits.device)
        if bias is not None:
            raise ValueError("bias: expected None together with hash_ids, whose layers have no bias")
        _expect.ids("hash_ids", hash_ids, experts)
    if _expect.fast_form(variant, "triton", "torch", logits.device) == "triton":
        with launching(logits):
            return route_triton(logits, bias, topk, scaling, hash_ids)
    scores = F.softplus(logits).sqrt()
    if hash_ids is not None:
        chosen = hash_ids.long()
    else:
        biased = scores if bias is None else scores + bias
        chosen = torch.topk(biased, topk, dim=1).indices
    picked = scores.gather(1, chosen)
    return chosen.to(torch.int32), picked / picked.sum(dim=1, keepdim=True) * scaling


def moe_fp4(
    x: torch.Tensor,
    experts: Fp4Experts,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    limit: float = 10.0,
    variant: str = "auto",
    chunk: int | None = 16,
) -> torch.Tensor:
    """Run the chosen experts.

    Args:
        x: bfloat16 [T, D].
        experts: The layer's experts.
        ids: int32 [T, topk], each in 0 .. E-1 (checked on the CPU only); an expert may stand in a row more than once.
        weights: float32 [T, topk].
        limit: The swiglu clamp, at least 0; infinity for none.
        variant: ``"torch"``, ``"triton"`` or ``"auto"`` (triton on CUDA).
        chunk: The torch form dequantises this many token-expert pairs at a time (about 250 MB each in V4-Flash, most
            of it table indices); None is all at once.

    Returns:
        bfloat16 [T, D].

    Raises:
        ValueError: An argument is not what is described here.
    """
    _expect.choice("variant", variant, VARIANTS)
    _expect.instance("experts", experts, Fp4Experts)
    tokens, _ = _expect.tensor("x", x, torch.bfloat16, ("T", experts.hidden), device=experts.w2.device)
    _, topk = _expect.tensor("ids", ids, torch.int32, (tokens, "topk"), device=x.device)
    _expect.tensor("weights", weights, torch.float32, (tokens, topk), device=x.device)
    if tokens == 0 or topk == 0:
        raise ValueError(f"ids: expected at least one token and one expert each, got {list(ids.shape)}")
    if chunk is not None:
        _expect.count("chunk", chunk)
    limit = _expect.number("limit", limit, infinite=True)
    _expect.ids("ids", ids, experts.count)
    if _expect.fast_form(variant, "triton", "torch", x.device) == "triton":
        with launching(x):
            return moe_triton(x, experts, ids, weights, limit)
    pair_x = x[:, None, :].expand(tokens, topk, x.shape[1]).reshape(tokens * topk, x.shape[1])
    pair_ids = ids.flatten()
    step = tokens * topk if chunk is None else chunk
    parts = [
        _pairs_torch(pair_x[i : i + step], experts, pair_ids[i : i + step], limit)
        for i in range(0, tokens * topk, step)
    ]
    pairs = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (pairs.view(tokens, topk, -1) * weights[:, :, None]).sum(dim=1).to(x.dtype)


def _pairs_torch(x: torch.Tensor, experts: Fp4Experts, ids: torch.Tensor, limit: float) -> torch.Tensor:
    """Each pair's expert output, float32 [P, D], by a batched product over dequantised weights."""

    def product(
        inputs: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, overall: torch.Tensor | None
    ) -> torch.Tensor:
        weight = fp4.dequantize(packed[ids], scales[ids], experts.format, experts.values)
        out = torch.bmm(weight, inputs[:, :, None]).squeeze(2).float()
        return out if overall is None else out * overall[ids][:, None]

    both = product(x, experts.w13, experts.s13, experts.g13)
    gate, up = both.chunk(2, dim=1)
    hidden = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return product(hidden.to(x.dtype), experts.w2, experts.s2, experts.g2)
