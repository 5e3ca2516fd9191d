"""How well does a what-if on the first trace of the campaign predict the later ones?

``python -m benchmarks.whatif_campaign`` projects ``original`` under the changes each later variant made and holds the
result against that variant's own trace. What goes in are only measurements of the changed kernels by themselves, from
``kernels/README.md`` and ``kernels/DECODE_KERNELS.md`` (benchmarks on such a card, not these traces):

* attention, 128 + 512 tokens, B = 32: mma 53.4 us a call, split-K with its combine 25.1 us. The mma kernel's time is
  that of one program walking blocks of 64 tokens, ten of them here; layers with shorter lists (2 or 3 blocks) are taken
  in proportion. The split's is used for every layer, as no shorter list was measured.
* indexer, B = 32, length 2,048 (the nearest measured; the traces have about 960): logits 8.5 us, top-k 15.9 us in two
  launches; the torch form in bf16 takes 11,916 us for 14,095 in FP32.
* mHC, 32 tokens: pre 10.4 us in two launches, post 2.4 us, head 12.8 us.
* The gap between a graph's kernels is the one constant read off a later trace (``cuda_graph`` itself): 416 ns, 0.9 ms a
  step.

Wall times are the profiled ones, of a host that varies from run to run (``bf16_gemm`` launches as often as ``split_k``
and took a third less), except that of ``cuda_graph``, which no host delays: there it is without the profiler.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import hta_dsv4
from hta_dsv4.analysis.change import Change, parse_set, select
from hta_dsv4.analysis.own_time import own_ns
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.runs.run import Run

BASE = "original"
# 21 layers of 640 tokens (10 blocks), 20 of about 158 (3 blocks), 2 of 128 (2 blocks)
_MMA_US = 53.4 * (21 * 10 + 20 * 3 + 2 * 2) / 10 / 43
_SPLIT = "origin:attention=43x25.1us"
_INDEXER = ("scope:/indexer/logits=21x8.5us", "scope:/indexer/topk=42x7.95us")
_MHC = ("origin:mhc_pre=172x5.2us", "origin:mhc_post=86x2.4us", "origin:mhc_head=1x12.8us")


@dataclass(frozen=True)
class Case:
    """One prediction.

    Attributes:
        target: the variant predicted.
        changes: what it changed, each as for ``--set``.
        graph: whether it is launched as one graph.
    """

    target: str
    changes: tuple[str, ...]
    graph: bool = False


CASES = (
    Case("mma", (f"origin:attention=43x{_MMA_US:.3f}us",)),
    Case("split_k", (_SPLIT,)),
    Case("bf16_gemm", (_SPLIT, f"scope:/indexer/logits*{11_916 / 14_095:.4f}")),
    Case("indexer_triton", (_SPLIT, *_INDEXER)),
    Case("mhc_fused", (_SPLIT, *_INDEXER, *_MHC)),
    Case("cuda_graph", (_SPLIT, *_INDEXER, *_MHC), graph=True),
)


@dataclass(frozen=True)
class Outcome:
    """A prediction and what came; ns per step.

    Attributes:
        target: the variant.
        sum_ns, actual_sum_ns: GPU time: own times, so that what launches waited for those ahead of them counts once.
        part_ns, actual_part_ns: of the changed parts alone.
        wall_ns, actual_wall_ns: wall time under the profiler, except of a graph: there without it.
    """

    target: str
    sum_ns: int
    actual_sum_ns: int
    part_ns: int
    actual_part_ns: int
    wall_ns: int
    actual_wall_ns: int

    @property
    def error(self) -> float:
        """Of the step's GPU time, as a part of what came."""
        return self.sum_ns / self.actual_sum_ns - 1

    @property
    def part_error(self) -> float:
        """Of the changed parts alone."""
        return self.part_ns / self.actual_part_ns - 1

    @property
    def wall_error(self) -> float:
        """Of the wall time."""
        return self.wall_ns / self.actual_wall_ns - 1


def outcome(base: Run, case: Case) -> Outcome:
    """Predict one variant and read off what it took.

    Args:
        base: the trace predicted from.
        case: the variant and its changes.
    """
    changes = [parse_set(t) for t in case.changes]
    found = base.whatif(changes, graph=case.graph)
    files = hta_dsv4.traces()
    companion = files["cuda_graph_eager"] if case.graph else None
    target = hta_dsv4.load(files[case.target], companion=companion)
    part = target.counted
    own = own_ns(part.activities)
    measured = target.whatif([], graph=False)
    actual = sum(_time(target, c) for c in changes)
    walls = found.after.wall_ns, measured.before.wall_ns
    if case.graph:
        assert found.unprofiled is not None
        walls = found.unprofiled[1], round(float(target.manifest["timing"]["unprofiled_step_ms"]) * 1e6)
    assert measured.before.own_ns == round(int(own.sum()) / part.steps)
    part_ns = sum(e.time_ns_after for e in found.effects)
    return Outcome(case.target, found.after.own_ns, measured.before.own_ns, part_ns, actual, *walls)


def _time(run: Run, change: Change) -> int:
    """What the launches of a change take in a trace, per step."""
    part = run.counted
    try:
        rows = select(part.activities, change.selector).rows
    except HtaDsv4Error:
        return 0
    return round(int(own_ns(part.activities)[rows].sum()) / part.steps)


def outcomes() -> list[Outcome]:
    """Every case."""
    base = hta_dsv4.load(hta_dsv4.traces()[BASE])
    return [outcome(base, case) for case in CASES]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    print(f"from {BASE}; ms per step")
    head = (
        "variant",
        "predicted GPU",
        "came",
        "error",
        "changed parts",
        "came",
        "error",
        "wall",
        "came",
        "error",
    )
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for o in outcomes():
        print(
            f"| {o.target} | {o.sum_ns / 1e6:.2f} | {o.actual_sum_ns / 1e6:.2f} | {100 * o.error:+.1f} % "
            f"| {o.part_ns / 1e6:.2f} | {o.actual_part_ns / 1e6:.2f} | {100 * o.part_error:+.1f} % "
            f"| {o.wall_ns / 1e6:.1f} | {o.actual_wall_ns / 1e6:.1f} | {100 * o.wall_error:+.1f} % |"
        )


if __name__ == "__main__":
    main()
