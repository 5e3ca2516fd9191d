from __future__ import annotations

import torch


def topk_triton(logits: torch.Tensor, lengths: torch.Tensor, page_table: torch.Tensor, topk: int) -> torch.Tensor:
    raise NotImplementedError
