from __future__ import annotations

import torch


def logits_triton(q: torch.Tensor, data: torch.Tensor, weights: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError
