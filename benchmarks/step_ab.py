"""Forms of the decode step timed against each other in one process, in turns: is a difference of 1 % real?

``PYTHONPATH=.:kernels python -m benchmarks.step_ab`` (a GPU, about a minute) captures each form as a CUDA graph over
the same weights and caches, then replays them in turns, forwards and backwards, always from the same tokens and
positions. Captures of one variant each cannot say this: between two of them the GPU's temperature and the experts that
the tokens meet have changed. Prints per form the median step with a wait after each, and enqueued on end; the medians
of each round tell how far they repeat; then the step time by position: steps in which a request closes a group of 128
are longer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from benchmarks.words import whole
from hta_dsv4.capture.clock import StepClock
from hta_dsv4.capture.config import StepShape
from hta_dsv4.capture.launch import as_cuda_graph
from hta_dsv4.capture.parts import parts_for
from hta_dsv4.capture.switches import VARIANTS
from hta_dsv4.capture.workload import DecodeStep

STEPS, ROUNDS = 12, 6


def graphs(step: DecodeStep, variants: list[str]) -> dict[str, Callable[[], object]]:
    """One CUDA graph per variant, all over the weights and caches of ``step``."""
    found: dict[str, Callable[[], object]] = {}
    for name in variants:
        step.switches, step.parts = VARIANTS[name], parts_for(VARIANTS[name])
        found[name] = as_cuda_graph(step)
    return found


def each(replay: Callable[[], object]) -> list[float]:
    """Milliseconds of single steps, waiting after each."""
    clock = StepClock(cuda=True)
    times: list[float] = []
    for _ in range(STEPS):
        clock.start()
        replay()
        times.append(clock.stop(by_events=True))
    return times


def on_end(replay: Callable[[], object]) -> float:
    """Milliseconds per step, all enqueued before the first ends."""
    clock = StepClock(cuda=True)
    clock.start()
    for _ in range(STEPS):
        replay()
    return clock.stop(by_events=True) / STEPS


def main() -> None:
    """Capture, take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=["cuda_graph", "tuned", "fp8_split"]
    )
    parser.add_argument("--concurrency", type=whole(1), default=32)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("step_ab: needs a CUDA GPU")
    step = DecodeStep("flash", StepShape(args.concurrency, 4096, 1 << 20), VARIANTS[args.variants[0]])
    position, tokens = step.position.clone(), step.tokens.clone()
    forms = graphs(step, args.variants)
    waiting: dict[str, list[list[float]]] = {name: [] for name in forms}
    enqueued: dict[str, list[float]] = {name: [] for name in forms}

    def begin() -> None:
        step.position.copy_(position)
        step.tokens.copy_(tokens)
        torch.cuda.synchronize()

    for turn in range(ROUNDS):
        for name in list(forms)[:: 1 if turn % 2 == 0 else -1]:
            begin()
            waiting[name].append(each(forms[name]))
            begin()
            enqueued[name].append(on_end(forms[name]))
    print(f"ms a step, {args.concurrency} requests, medians of {STEPS} steps, {ROUNDS} rounds in turns")
    for name in forms:
        rounds = [statistics.median(t) for t in waiting[name]]
        print(
            f"{name:<16} waiting {statistics.median(rounds):7.2f} ({min(rounds):.2f} to {max(rounds):.2f})   "
            f"on end {statistics.median(enqueued[name]):7.2f} ({min(enqueued[name]):.2f} to {max(enqueued[name]):.2f})"
        )
    for name in forms:
        print(
            f"{name:<16} by position {[round(statistics.median(t), 2) for t in zip(*waiting[name], strict=True)]}"
        )


if __name__ == "__main__":
    main()
