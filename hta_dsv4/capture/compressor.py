"""The compressors: every ratio tokens, a learned weighted mean of them becomes one cache entry.

Each decode step adds the token's key/value and gate score to an FP32 partial state; the step whose position
closes a group emits the entry. Which requests emit is known only on the device, so every request computes an
entry and those that do not emit store it in the pool's spare page. Ratio-4 groups overlap: an entry also sees
the previous group through the other half of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """Weights of one compressor of ``dim`` channels.

    Attributes:
        kv_gate: [2 * coff * dim, D] bf16 or f32: key/value rows, then gate rows; coff is 2 with overlap, else 1.
        ape: [ratio, coff * dim] f32, position bias on the gate.
        norm: [dim] bf16.
    """

    kv_gate: torch.Tensor
    ape: torch.Tensor
    norm: torch.Tensor

    @property
    def ratio(self) -> int:
        """Tokens per entry."""
        return int(self.ape.shape[0])

    @property
    def dim(self) -> int:
        """Channels of an entry."""
        return int(self.norm.shape[0])

    @property
    def overlap(self) -> bool:
        """Whether an entry also sees the previous group."""
        return self.ape.shape[1] == 2 * self.dim


@dataclass(frozen=True, slots=True)
class CompressorState:
    """Partial groups: ``kv`` and ``score``, [B, coff * ratio, coff * dim] f32, previous group first."""

    kv: torch.Tensor
    score: torch.Tensor


def random_state(w: CompressorWeights, batch: int, generator: torch.Generator) -> CompressorState:
    """A state as if earlier tokens had filled it."""
    coff = 2 if w.overlap else 1
    size = (batch, coff * w.ratio, coff * w.dim)
    kv, score = (torch.randn(size, generator=generator, device=generator.device) for _ in range(2))
    return CompressorState(kv, score)


def compress(
    kv_gate: torch.Tensor, position: torch.Tensor, w: CompressorWeights, state: CompressorState, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold one token per request into the state and form the entry of the current group.

    Args:
        kv_gate: [B, 2 * coff * dim] f32, the projection by ``w.kv_gate``.
        position: [B] int64, position of the token.
        w: weights.
        state: updated in place; after an emission the current group becomes the previous one.
        eps: of the RMS norm.

    Returns:
        Entry [B, dim] bf16, normalised and not yet rotated, and emit [B] bool.
    """
    ratio, dim = w.ratio, w.dim
    kv, score = kv_gate.chunk(2, dim=-1)
    phase = position % ratio
    rows = torch.arange(kv.shape[0], device=kv.device)
    slot = phase + ratio if w.overlap else phase
    state.kv[rows, slot] = kv
    state.score[rows, slot] = score + w.ape[phase]
    emit = phase == ratio - 1
    if w.overlap:
        group_kv = torch.cat([state.kv[:, :ratio, :dim], state.kv[:, ratio:, dim:]], 1)
        group_score = torch.cat([state.score[:, :ratio, :dim], state.score[:, ratio:, dim:]], 1)
    else:
        group_kv, group_score = state.kv, state.score
    entry = (group_kv * torch.softmax(group_score, dim=1)).sum(1)
    if w.overlap:
        closes = emit[:, None, None]
        for half in (state.kv, state.score):
            half[:, :ratio] = torch.where(closes, half[:, ratio:], half[:, :ratio])
    return F.rms_norm(entry.bfloat16(), (dim,), w.norm, eps), emit
