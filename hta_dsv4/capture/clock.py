"""How long a step takes: CUDA events while nothing else measures, the host's clock otherwise."""

from __future__ import annotations

import time

import torch


class StepClock:
    """Times one step at a time, waiting for the GPU after each so that none runs into the next.

    Args:
        cuda: whether there is a GPU to wait for.
    """

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda

    def wait(self) -> None:
        """Let the GPU end what it has been given."""
        if self.cuda:
            torch.cuda.synchronize()

    def start(self) -> None:
        """Begin a step; everything before it has ended."""
        if self.cuda:
            self._begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._begin.record()
        self._began = time.perf_counter()

    def stop(self, by_events: bool) -> float:
        """Wait for the step to end.

        Args:
            by_events: take the GPU's own time between two events (a profiler would see and slow them).

        Returns:
            Milliseconds since :meth:`start`.
        """
        if self.cuda and by_events:
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end.record()
            self.wait()
            return float(self._begin.elapsed_time(end))
        self.wait()
        return (time.perf_counter() - self._began) * 1e3
