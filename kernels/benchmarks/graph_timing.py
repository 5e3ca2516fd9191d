"""How long does a call take on this GPU, launch gaps aside? CUDA graphs, medians, and the copy ceiling."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


def need_gpu(script: str) -> None:
    """Leave with one line where there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit(f"{script}: no CUDA device; this benchmark times kernels and needs one")


def median_us(calls: Sequence[Callable[[], Any]], replays: int = 20) -> float:
    """Capture the calls into one graph, replay it, and take the median per call.

    Args:
        calls: Each with inputs of its own, so that the next does not find them in L2.
        replays: How often.

    Returns:
        Microseconds per call.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) * 1000 / len(calls)


def copy_bytes_per_us() -> float:
    """The bandwidth ceiling: 2 GB through an elementwise kernel, bytes read plus bytes written per microsecond.

    Not ``copy_``: captured in a graph that is a copy-engine node, which reached 2.75 TB/s where kernels reach 4.3.
    """
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    return 8 * source.numel() / median_us([lambda: torch.neg(source, out=target)], 10)


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, every ``torch.empty`` comes filled with NaN (floats) or a huge number (integers)."""
    empty, empty_like = torch.empty, torch.empty_like

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 0x7F7F7F7F)

    torch.empty = lambda *a, **k: fill(empty(*a, **k))
    torch.empty_like = lambda *a, **k: fill(empty_like(*a, **k))
    try:
        yield
    finally:
        torch.empty, torch.empty_like = empty, empty_like


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want|| in float64; NaN if anything is."""
    return float((got.double() - want.double()).norm() / want.double().norm())
