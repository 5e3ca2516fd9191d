"""The tensor-parallel captures in one command: kernel by kernel and as a CUDA graph, with and without a straggler.

``torchrun --nproc-per-node 2 -m hta_dsv4.capture.parallel_campaign --out traces/tp2`` writes a folder per row of
:func:`plan`, one trace per rank and one manifest in each. It needs torch and triton only. Rank 0 prints a line per
row: step times, collectives a step, and how long the planted work took. What failed is named at the end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hta_dsv4.capture.campaign import CONTEXT, MILLION, top_scopes
from hta_dsv4.capture.command import CaptureOptions, build_step, capture_step, check_options
from hta_dsv4.capture.config import ModelConfig, model_config
from hta_dsv4.capture.parallel import Ranks, of_all_ranks, process_group, ranks_from_environment
from hta_dsv4.capture.profiler import CaptureResult
from hta_dsv4.capture.straggler import Straggler
from hta_dsv4.capture.tracefile import Slim
from hta_dsv4.capture.weights import ModelWeights
from hta_dsv4.errors import HtaDsv4Error

# Names of the collectives: as NCCL calls its kernels, and as torch calls its operators where no GPU shows any.
ALL_REDUCE = ("ncclDevKernel_AllReduce", "c10d::allreduce_")
ALL_GATHER = ("ncclDevKernel_AllGather", "c10d::_allgather_base_")


@dataclass(frozen=True, slots=True)
class Row:
    """One capture: ``straggler`` is planted in it; ``steps`` are recorded; ``slim`` is what is left out."""

    variant: str
    steps: int
    slim: Slim
    straggler: Straggler | None = None


def plan(config: ModelConfig, ranks: Ranks) -> tuple[Row, ...]:
    """What is captured, most important first.

    The straggler is the last rank, in a c4 layer in the middle: the GPUs of a step launched kernel by kernel are
    behind their hosts there, so that the planted work and not a host decides who is late. It is longer where hosts
    disturb more.
    """
    last, middle = ranks.world_size - 1, len(config.layers) // 4 * 2
    return (
        Row("split_k", 2, "flows"),
        Row("split_k", 2, "flows", Straggler(last, middle, 2000.0)),
        Row("cuda_graph", 5, "all"),
        Row("cuda_graph", 5, "all", Straggler(last, middle, 500.0)),
    )


def options_for(
    row: Row, ranks: Ranks, out: Path, *, config: str, device: str, baseline: int, small: bool
) -> CaptureOptions:
    """Capture options of one row, writing into ``out``; ``small`` takes sizes that a CPU can hold."""
    return CaptureOptions(
        variant=row.variant, concurrency=2 if small else 32, config=config,
        context=300 if small else CONTEXT, max_context=512 if small else MILLION, steps=row.steps, warmup=2,
        baseline=baseline, out=out, device=device, ranks=ranks, straggler=row.straggler,
        slim=row.slim if device == "cuda" else "",  # slimming leaves only what launched something on a GPU
    )  # fmt: skip


def expected_all_reduces(config: ModelConfig) -> int:
    """All-reduces of a step: two a layer and one for the embedding."""
    return 2 * len(config.layers) + 1


def collectives(trace: Path, steps: int) -> dict[str, float]:
    """Collectives per step and the median duration of an all-reduce, from a kept trace.

    Args:
        trace: file.
        steps: recorded steps.

    Returns:
        ``all_reduces`` and ``all_gathers`` per step, ``median_us`` of an all-reduce.
    """
    data = trace.read_bytes()
    events = json.loads(gzip.decompress(data) if trace.suffix == ".gz" else data)["traceEvents"]
    found: Counter[str] = Counter()
    took: list[float] = []
    # Operators stand for kernels only where there are none: a kernel's operator is in the trace too.
    gpu = any(e.get("cat") == "kernel" for e in events)
    for event in events:
        if event.get("cat") != ("kernel" if gpu else "cpu_op"):
            continue
        name = str(event.get("name"))
        if name.startswith(ALL_REDUCE):
            found["all_reduces"] += 1
            took.append(float(event["dur"]))
        elif name.startswith(ALL_GATHER):
            found["all_gathers"] += 1
    return {
        "all_reduces": found["all_reduces"] / steps,
        "all_gathers": found["all_gathers"] / steps,
        "median_us": statistics.median(took) if took else 0.0,
    }


def run(out: Path, ranks: Ranks, *, config: str, device: str, baseline: int, budget_s: float) -> list[str]:
    """Capture every row until the budget is spent; the ranks are connected already.

    Args:
        out: folder of the folders.
        ranks: this process.
        config: model.
        device: cuda or cpu.
        baseline: unprofiled steps to time per row.
        budget_s: seconds; a row is not begun when the slowest so far would not fit the rest.

    Returns:
        One sentence per row that is missing or not as it should be.
    """
    begin, slowest = time.perf_counter(), 0.0
    geometry = model_config(config)
    wrong: list[str] = []
    weights: ModelWeights | None = None
    if ranks.first:
        print(header(), flush=True)
    for row in plan(geometry, ranks):
        options = options_for(
            row, ranks, out, config=config, device=device, baseline=baseline, small=config == "tiny"
        )
        if device == "cpu" and row.variant == "cuda_graph":
            wrong.append(f"{row.variant}: not captured: a CUDA graph needs GPUs.")
            continue
        name, started = options.trace_path.parent.name, time.perf_counter()
        # every rank must decide alike, and their clocks differ
        if any(of_all_ranks(slowest > budget_s - (started - begin), ranks)):
            wrong.append(f"{name}: not captured, {budget_s:.0f} s were spent.")
            continue
        failed, result = "", None
        try:
            step = build_step(options, weights=weights)
            weights = step.weights
            result = capture_step(step, options)
        except Exception as error:  # what fails on all ranks alike must not cost the other rows
            print(f"rank {ranks.rank}, {name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            failed = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        finally:
            step = None  # type: ignore[assignment]  # free its caches before the next row takes memory
            if device == "cuda":
                torch.cuda.empty_cache()
        failures = of_all_ranks(failed, ranks)
        if result is None or any(failures):
            wrong += [f"{name}: rank {rank} failed: {why}" for rank, why in enumerate(failures) if why]
            continue
        parts = [part for part in (result, result.companion) if part is not None]
        for part in parts:
            counts = of_all_ranks(collectives(part.trace, row.steps), ranks)
            wrong += [
                f"{part.trace.parent.name}: rank {rank} has {count['all_reduces']:g} all-reduces a step, "
                f"not {expected_all_reduces(geometry)}."
                for rank, count in enumerate(counts)
                if count["all_reduces"] != expected_all_reduces(geometry)
            ]
            sizes = of_all_ranks(part.trace.stat().st_size, ranks)
            if ranks.first:
                print(line(part, counts, sizes), flush=True)
        slowest = max(slowest, time.perf_counter() - started)
    return wrong


def header() -> str:
    """Column heads of :func:`line`."""
    return (
        f"{'folder':<34}{'step ms':>9}{'profiled':>10}{'launches':>9}{'busy ms':>9}  "
        "all-reduces a step / all-gathers / median us per rank; MB per rank; planted; by scope"
    )


def line(result: CaptureResult, counts: Sequence[dict[str, float]], sizes: Sequence[int]) -> str:
    """One capture as a line, as rank 0 sees it."""
    t = result.manifest.timing
    per_rank = ", ".join(f"{c['all_reduces']:g}/{c['all_gathers']:g}/{c['median_us']:.1f}" for c in counts)
    planted = result.manifest.parallel.get("straggler")
    return (
        f"{result.trace.parent.name:<34}{t.unprofiled_step_ms:>9.2f}{t.profiled_step_ms:>10.2f}"
        f"{t.launches:>9.0f}{t.activity_ms:>9.2f}  {per_rank}; {', '.join(f'{s / 1e6:.2f}' for s in sizes)}; "
        f"{planted or 'nothing'}; {top_scopes(result.summary)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="torchrun -m hta_dsv4.capture.parallel_campaign", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the captures' folders")
    parser.add_argument("--config", default="flash", help="flash | pro | tiny")
    parser.add_argument("--device", default="cuda", help="cuda | cpu")
    parser.add_argument("--baseline", type=int, default=5, help="unprofiled steps to time per row")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for everything")
    args = parser.parse_args(arguments)
    try:
        if not 0 < args.budget < math.inf:
            raise HtaDsv4Error(f"--budget {args.budget}: give seconds above 0")
        ranks = ranks_from_environment()
        if ranks.alone:
            raise HtaDsv4Error(
                "a single process has no tensor parallelism; start with torchrun --nproc-per-node 2"
            )
        first = plan(model_config(args.config), ranks)[0]
        check_options(
            options_for(
                first, ranks, args.out, config=args.config, device=args.device, baseline=args.baseline,
                small=args.config == "tiny",
            )
        )  # fmt: skip
        with process_group(ranks, ranks.device(args.device)):
            wrong = run(
                args.out, ranks, config=args.config, device=args.device, baseline=args.baseline,
                budget_s=args.budget,
            )  # fmt: skip
    except HtaDsv4Error as error:
        print(error, file=sys.stderr)
        return 2
    if ranks.first:
        for sentence in wrong:
            print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:  # said here, because the process does not end the usual way
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # torch's profiler may abort an interpreter that ends after a process group
