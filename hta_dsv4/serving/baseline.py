"""What is known before the profiler starts? Whether the scheduler runs our requests alone; how long a step takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import httpx

from hta_dsv4.serving.client import ServerError
from hta_dsv4.serving.engines import VLLM, running_requests
from hta_dsv4.serving.running import RunningLoad
from hta_dsv4.serving.timing import StepTime, step_times

_METRICS_S = 2.0
_BUSY = 0.7  # of a core: beyond, a client that reads one chunk after the other may be what is waited for


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured around the recording.

    Attributes:
        step_ms: without the profiler, of each request: milliseconds per token.
        steps: tokens behind each of them, at least.
        warmup: tokens of the slowest request before the timed ones.
        decoded: tokens that the requests had had, on average, when the recording began.
    """

    step_ms: tuple[float, ...]
    steps: int
    warmup: int
    decoded: float = 0.0

    @property
    def plain_ms(self) -> float:
        """Time of a step without the profiler: median over the requests."""
        return median(self.step_ms)

    @property
    def said(self) -> str:
        """The same in a sentence, with what it makes in tokens per second."""
        rate = len(self.step_ms) * 1000 / self.plain_ms
        return (
            f"a step takes {self.plain_ms:,.3f} ms without the profiler ({self.steps} timed): {rate:,.0f} tokens/s of "
            f"{len(self.step_ms)} requests"
        )


async def scheduler_agrees(
    client: httpx.AsyncClient, engine: str, under_way: RunningLoad, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Ask the scheduler how many requests it runs: others' would be in the captured batch.

    Args:
        client: of the server.
        engine: which.
        under_way: the load, all of it decoding.
        say: told when SGLang says another number.

    Returns:
        What a reader of the capture should know; nothing where the scheduler agrees.

    Raises:
        ServerError: vLLM says that it runs another number. SGLang's figure is renewed every few dozen steps only, so a
            different one is told and the trace decides.
    """
    wanted, give_up = under_way.load.concurrency, time.monotonic() + _METRICS_S
    while True:
        try:
            now = await asyncio.wait_for(running_requests(client, engine), _METRICS_S)
        except asyncio.TimeoutError:  # a busy server may take seconds, while the outputs run out
            return ("/metrics did not answer in time, so only the trace tells the batch",)
        if not under_way.full:
            return ()  # whatever it says is of another time; what ended the load is told by who waits for it next
        if now is None:
            return ("the server has no metric of running requests",)
        if now == wanted:
            return ()
        if time.monotonic() > give_up:
            said = f"/metrics says that the scheduler runs {now} requests, not {wanted}"
            if engine == VLLM:
                raise ServerError(f"{said}: do others use the server? Nothing was recorded")
            say(f"{said}; the trace will tell")
            return (f"{said} when the recording began",)
        await asyncio.sleep(0.1)


async def baseline(
    under_way: RunningLoad, warmup: int, steps: int, timeout_s: float
) -> tuple[Measured, tuple[str, ...]]:
    """Time steps without the profiler.

    Args:
        under_way: the load, all of it decoding.
        warmup: steps before the timed ones.
        steps: timed ones.
        timeout_s: longest wait for either, seconds.

    Returns:
        The times, and what a reader of them should know.

    Raises:
        ServerError: the outputs are too short, a request failed, or the server does not count tokens with each chunk.
    """
    if not await under_way.decoded(under_way.tokens(), warmup, timeout_s):
        raise ServerError(too_short(under_way))
    since, worked = time.monotonic_ns(), time.process_time_ns()
    timed: list[StepTime] = []
    wanted = steps + 1  # a step lies between two tokens
    while len(timed) < under_way.load.concurrency:
        if not await under_way.decoded(under_way.tokens(), wanted, timeout_s):
            raise ServerError(too_short(under_way))
        until, result = time.monotonic_ns(), under_way.result()
        timed = step_times(result, since, until)
        if any(None in t.chunk_tokens for t in result.timings):
            raise ServerError(
                "the server does not say with each chunk how many tokens there are "
                "(stream_options.continuous_usage_stats), so its steps cannot be timed without the profiler; use a "
                "release of vLLM or SGLang that does"
            )
        wanted = 1  # some request has had a single chunk of many tokens: until its next
    busy = (time.process_time_ns() - worked) / (until - since)
    notes: tuple[str, ...] = ()
    if busy > _BUSY:
        notes = (
            f"reading the streams took {100 * busy:.0f} % of a core, so the step time without the profiler may be this "
            "client's and not the server's",
        )
    return Measured(tuple(t.ms for t in timed), min(t.tokens for t in timed), warmup), notes


def too_short(under_way: RunningLoad) -> str:
    """Say that a request came to its end before the steps did."""
    load = under_way.load
    return (
        f"the outputs of {load.output_tokens} tokens ended before all steps of all {load.concurrency} requests were "
        f"timed and recorded ({under_way.finished} had ended); give a larger --output-tokens"
    )
