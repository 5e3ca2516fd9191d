"""What dividing the inner loop of the FP8 projections over programs is worth, per projection of the decode step.

``PYTHONPATH=.:kernels python -m benchmarks.fp8_splits`` (a GPU, about 20 s) prints microseconds per call for one and
more programs a tile, the sum of parts included: medians over replays of a CUDA graph of calls, each on weights of its
own, together several times L2. It is the check that the finding on underfilled projections asks for.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch

from hta_dsv4.capture.clock import StepClock
from hta_dsv4.capture.config import ModelConfig, model_config
from hta_dsv4.capture.fp8_gemm import GROUP, choose_splits, multiply, quantize_activations

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
BYTES = 400_000_000  # of weights that one replay reads
REPLAYS = 10
Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def projections(c: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """The projections of a layer: name -> members of the batch, outputs and inputs of each."""
    heads, groups = c.heads * 512, c.o_groups
    return {
        "wqkv_a": (1, c.q_lora + 512, c.hidden),
        "wq_b": (1, heads, c.q_lora),
        "wo_a": (groups, c.o_lora, heads // groups),
        "wo_b": (1, c.hidden, groups * c.o_lora),
        "shared w13": (1, 2 * c.moe_inter, c.hidden),
        "shared w2": (1, c.hidden, c.moe_inter),
        "indexer wq_b": (1, c.index_heads * 128, c.q_lora),
    }


def generate_call(rows: int, shape: tuple[int, int, int]) -> Call:
    """Quantised activations with scales, and random finite weights with scales."""
    G, N, K = shape
    q, s = quantize_activations(torch.randn(rows * G, K, device="cuda").bfloat16())
    codes = torch.randint(0, 0x78, (G, N, K), dtype=torch.uint8, device="cuda")
    codes |= torch.randint(0, 2, (G, N, K), dtype=torch.uint8, device="cuda") << 7
    scales = torch.full((G, N // GROUP, K // GROUP), 2.0**-12, device="cuda")
    return q, s, codes.view(torch.float8_e4m3fn), scales


def microseconds(calls: Sequence[Callable[[], torch.Tensor]]) -> float:
    """Median over replays of a graph of the calls, per call."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    clock = StepClock(cuda=True)
    times: list[float] = []
    for _ in range(REPLAYS + 2):
        clock.start()
        graph.replay()
        times.append(clock.stop(by_events=True) * 1e3 / len(kept))
    return statistics.median(times[2:])


def main() -> None:
    """Check every split against the undivided product, then time it."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("fp8_splits: needs a CUDA GPU")
    torch.manual_seed(0)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    shapes = projections(model_config("flash"))
    print(
        f"us per call; rows, projection, {', '.join(f'{n} splits' for n in SPLITS)}; * what choose_splits takes"
    )
    for rows in (32, 1, 128):
        for name, shape in shapes.items():
            G, N, K = shape
            sets = [generate_call(rows, shape) for _ in range(max(2, BYTES // (G * N * K)))]
            chosen, cells = choose_splits(G * N, K, rows, sms), []
            want = multiply(*sets[0], rows, 1).double()
            for splits in SPLITS:
                if splits > K // GROUP:
                    continue
                error = float((multiply(*sets[0], rows, splits).double() - want).norm() / want.norm())
                assert error < 5e-3, f"{name}, {splits} splits: relative error {error:.1e}"
                us = microseconds([partial(multiply, *one, rows, splits) for one in sets])
                cells.append(f"{us:8.2f}{'*' if splits == chosen else ' '}")
            print(f"{rows:4d}  {name:<13}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
