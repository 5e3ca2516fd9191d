"""Which form, split count and combine "auto" takes on sm_90: looked up in measurements, never measured at run time.

``hopper_choices.json`` holds, for the shapes and batches that were timed on a card, the fastest choice. Other calls
take the choice of the nearest measured one, in blocks of work per row and in rows, both as logarithms; the split
count follows from the shapes alone. ``python kernels/benchmarks/tune_hopper.py`` writes the file anew.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dsv4_kernels.select import LARGEST_SPLITS, MAX_SPLITS, CombineConfig, count_blocks

HEADS = 64  # a program's; wgmma has no smaller tile


@dataclass(frozen=True)
class HopperConfig:
    """Shape of the Hopper kernel.

    Attributes:
        block_t: Tokens per block, 64 or 32. The first block of 64 is decoded by eight warps instead of four.
        buffers: Blocks in shared memory; 64 tokens allow 2, 32 tokens 4, and 3 leave L1 more than twice as much.
        score_registers: Registers of a scoring thread.
        follow_registers: Registers of a following thread. The gathering ones get what is left of 504.
    """

    block_t: int
    buffers: int
    score_registers: int
    follow_registers: int


# One block a program: the only thing that counts is how soon it is there. Otherwise short blocks, which divide more
# evenly over the programs, and three of them at a time, which leave L1 60 KB of the SM's memory instead of 28.
FORMS: dict[str, HopperConfig] = {
    "one_block": HopperConfig(64, 2, 208, 168),
    "loop": HopperConfig(32, 3, 200, 168),
}


@dataclass(frozen=True)
class Choice:
    """What runs.

    Attributes:
        form: A key of ``FORMS``, or ``split_k`` for the plain Triton form.
        combine: The combine's shape.
    """

    form: str
    combine: CombineConfig


@dataclass(frozen=True)
class Measured:
    """A choice, and the call it was the fastest for: list widths in tokens, rows of 64 heads, microseconds."""

    widths: tuple[int, ...]
    rows: int
    choice: Choice
    microseconds: float


def parse(text: str) -> tuple[Measured, ...]:
    """Choices from the text of ``hopper_choices.json``."""
    return tuple(_measured(entry) for entry in json.loads(text)["choices"])


def _measured(entry: dict[str, Any]) -> Measured:
    block_h, columns, warps = entry["combine"]
    combine = CombineConfig(block_h, columns, warps, eager=entry["eager"])
    return Measured(
        tuple(entry["tokens"]), entry["rows"], Choice(entry["form"], combine), entry["microseconds"]
    )


@functools.cache
def measurements() -> tuple[Measured, ...]:
    """The measured choices that ship with the package."""
    return parse(files("dsv4_kernels").joinpath("hopper_choices.json").read_text(encoding="utf-8"))


def choose(rows: int, heads: int, widths: tuple[int, ...]) -> Choice:
    """The choice measured nearest to a call.

    Args:
        rows: Query tokens.
        heads: Query heads.
        widths: Padded width of each scope, in tokens.

    Returns:
        The choice; of equally near ones that of fewer rows.
    """
    programs = rows * -(-heads // HEADS)
    blocks = count_blocks(widths, 64)

    def distance(one: Measured) -> tuple[float, int]:
        longer = math.log(blocks / count_blocks(one.widths, 64))
        return abs(longer) + abs(math.log(programs / one.rows)), one.rows

    return min(measurements(), key=distance).choice


def hopper_splits(
    rows: int, heads: int, widths: tuple[int, ...], num_sms: int, block_t: int, splits: int | None = None
) -> int:
    """Programs that share a row's list: as many as find an SM each, and never more than there are blocks.

    Args:
        rows: Query tokens.
        heads: Query heads.
        widths: Padded width of each scope, in tokens.
        num_sms: Streaming multiprocessors; a program fills one.
        block_t: Tokens per block.
        splits: The caller's count; None to choose.

    Returns:
        1 or more.
    """
    blocks = max(1, count_blocks(widths, block_t))
    if splits is not None:
        return min(splits, blocks, LARGEST_SPLITS)
    return max(1, min(blocks, num_sms // (rows * -(-heads // HEADS)), MAX_SPLITS))
