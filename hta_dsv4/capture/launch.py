"""How the step reaches the GPU: kernel by kernel, as one CUDA graph, or through ``torch.compile``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed

from hta_dsv4.errors import HtaDsv4Error

Step = Callable[[], object]
# Layers of one kind share compiled code; there are three kinds, with and without hashed routing, where torch allows 8.
_RECOMPILES = 32
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class CompileReport:
    """What ``torch.compile`` made of a step.

    Attributes:
        graphs: graphs compiled; 1 means the whole step traced.
        operators: operators captured in them.
        breaks: reason and count for each kind of graph break, most frequent first, as torch counts them: once per
            attempt, so a break met again on a second attempt counts twice.
        seconds: time of the first call, compilation included.
    """

    graphs: int
    operators: int
    breaks: tuple[tuple[str, int], ...]
    seconds: float

    @property
    def lines(self) -> tuple[str, ...]:
        """The report in sentences."""
        total = sum(n for _, n in self.breaks)
        first = (
            f"torch.compile: {self.graphs} graph{'s' if self.graphs != 1 else ''} of {self.operators} operators, "
            f"{total} graph breaks, first call {self.seconds:.1f} s."
        )
        return (first, *(f"Graph break, {n}x: {_short(reason)}" for reason, n in self.breaks))


def _short(reason: str) -> str:
    """What broke and where, without the compiler's advice and without addresses, which differ from run to run."""
    lines = [line.strip() for line in reason.splitlines()]
    where = [
        line.removeprefix("Developer debug context: ") for line in lines if line.startswith("Developer debug")
    ]
    return _ADDRESS.sub("", "; ".join([lines[0], *where]))


def as_cuda_graph(step: Step, warmup: int = 3) -> Step:
    """Capture one step as a CUDA graph.

    Args:
        step: a step that never waits for the GPU and allocates the same every time.
        warmup: eager steps before the capture, on the capturing stream (kernels compile, workspaces are made).

    Returns:
        A function that replays it; each call decodes one more token.

    Raises:
        HtaDsv4Error: no GPU, or the step does something a graph cannot hold; the message says what.
    """
    if not torch.cuda.is_available():
        raise HtaDsv4Error("launch=cuda_graph needs a CUDA device; use launch=eager here")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        # A process group's watchdog asks about its own events from another thread meanwhile, which is no error.
        mode = "thread_local" if torch.distributed.is_initialized() else "global"
        with torch.cuda.graph(graph, capture_error_mode=mode):
            step()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise HtaDsv4Error(f"launch=cuda_graph: the step cannot be captured: {reason}") from error

    def replay() -> None:
        graph.replay()

    return replay


def as_compiled(step: Step, backend: str = "inductor") -> tuple[Step, CompileReport]:
    """Compile one step, call it once and report what happened.

    Args:
        step: the eager step.
        backend: of ``torch.compile``; ``"eager"`` traces without generating code.

    Returns:
        The compiled step and its report. Where the graph breaks, the parts between run eagerly.

    Raises:
        HtaDsv4Error: compilation failed outright; the message carries the compiler's first line.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    dynamo.reset()
    counters.clear()

    def whole_step() -> object:
        return step()

    begin = time.perf_counter()
    with dynamo.config.patch(recompile_limit=_RECOMPILES, accumulated_recompile_limit=8 * _RECOMPILES):
        compiled = torch.compile(whole_step, backend=backend, dynamic=False)
        try:
            compiled()
        except dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            remedy = "use launch=eager or cuda_graph"
            raise HtaDsv4Error(f"launch=compile: torch.compile failed: {reason}; {remedy}") from error
    report = CompileReport(
        graphs=int(counters["stats"]["unique_graphs"]),
        operators=int(counters["stats"]["calls_captured"]),
        breaks=tuple((str(k), int(v)) for k, v in counters["graph_break"].most_common()),
        seconds=time.perf_counter() - begin,
    )
    return compiled, report
