"""Run by test_tensor_parallel under torchrun: the tiny step by several ranks against the same step by one.

Rank 0 prints one JSON line: number format -> what was found, see :func:`compare`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import torch

from hta_dsv4.capture.config import TINY, StepShape
from hta_dsv4.capture.parallel import (
    ALONE,
    Ranks,
    all_reduce,
    of_all_ranks,
    process_group,
    ranks_from_environment,
)
from hta_dsv4.capture.switches import Gemm, Switches
from hta_dsv4.capture.workload import DecodeStep

# Every expert is taken and every compressed entry is within the top-k, so that no choice can flip by rounding.
CONFIG = replace(TINY, experts=6, experts_per_token=6, index_topk=192)
SHAPE = StepShape(batch=3, context=600, max_context=1024)
STEPS = 3


def sums_of(step: DecodeStep) -> list[torch.Tensor]:
    """Have a step keep what it sums over ranks (embedding, attention, MoE, attention, ...), from its next call on."""
    kept: list[torch.Tensor] = []
    whole = step._summed

    def keep(x: torch.Tensor, name: str) -> torch.Tensor:
        out = whole(x, name)
        kept.append(out.clone())
        return out

    step._summed = keep  # type: ignore[method-assign]
    step._embed = lambda inner=step._embed: keep_embedding(step, kept, inner)  # type: ignore[misc]
    return kept


def keep_embedding(step: DecodeStep, kept: list[torch.Tensor], embed: Any) -> torch.Tensor:
    """One rank alone looks its embedding up without summing: keep it all the same."""
    out: torch.Tensor = embed()
    if step.ranks.alone:
        kept.append(out.clone())
    return out


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest ||a - b|| / ||b|| over requests."""
    a, b = a.float(), b.float()
    return float(((a - b).norm(dim=1) / b.norm(dim=1)).max())


def compare(gemm: Gemm, ranks: Ranks) -> dict[str, Any]:
    """Decode some tokens both ways, each step from the same tokens.

    Returns:
        ``embedding_equal``; ``first_attention``, the error of the first layer's attention; ``logits``, the largest
        error of any step's logits; ``tokens`` that agree and ``of`` how many; ``ranks_agree``: logits bit for bit.
    """
    switches = Switches(attention="reference", moe="torch", gemm=gemm, glue="torch")
    many = DecodeStep(CONFIG, SHAPE, switches, "cpu", ranks=ranks)
    one = DecodeStep(CONFIG, SHAPE, switches, "cpu", ranks=ALONE)
    mine, whole = sums_of(many), sums_of(one)
    worst, agree, same = 0.0, 0, True
    for _ in range(STEPS):
        found, wanted = many().clone(), one().clone()
        assert many.logits is not None
        assert one.logits is not None
        worst = max(worst, relative(many.logits, one.logits))
        agree += int((found == wanted).sum())
        same &= all(torch.equal(many.logits, other) for other in of_all_ranks(many.logits, ranks))
        one.tokens.copy_(found)
    return {
        "sums": len(mine) // STEPS,
        "embedding_equal": torch.equal(mine[0], whole[0]),
        "first_attention": relative(mine[1], whole[1]),
        "first_moe": relative(mine[2], whole[2]),
        "logits": worst,
        "tokens": agree,
        "of": STEPS * SHAPE.batch,
        "ranks_agree": same,
    }


def main() -> None:
    """Compare in each number format."""
    torch.set_num_threads(1)
    ranks = ranks_from_environment()
    with process_group(ranks, "cpu"):
        found = {gemm: compare(gemm, ranks) for gemm in ("fp32", "fp8")}
        summed = all_reduce(torch.full((2, 3), ranks.rank + 1.0, dtype=torch.bfloat16), ranks)
        found["sum"] = {"value": float(summed[0, 0])}
    if ranks.first:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
