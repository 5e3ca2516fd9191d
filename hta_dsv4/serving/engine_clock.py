"""Do tokens reach us as they are made? The engine's own decode times, beside those of the streams.

A server's front end that lacks a CPU hands out finished tokens late and in a rush: seen from here, hundreds of tokens
decode in a few milliseconds. No client can tell that from a fast GPU. vLLM's ``/metrics`` can: it sums, over requests
that ended, the time from first to last token by the clock of the process that decodes.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import httpx

from hta_dsv4.serving.client import ask
from hta_dsv4.serving.engines import VLLM
from hta_dsv4.serving.timing import LoadResult, RequestTiming

AGREE = 0.1
"""Part by which the two clocks may differ: a step of some ten milliseconds among hundreds moves either by less."""
RUSH, RUSH_PROMPT = 10, 100_000
"""Without the engine's clock: outputs that take less than a tenth of the wait for their first token were not made in
that time, unless a long prompt (so many tokens of all requests together) is what the wait was for."""
_SUM, _COUNT = (rb"vllm:request_decode_time_seconds_" + part for part in (b"sum", b"count"))
_POLLS, _POLL_S = 20, 0.05


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """What an engine says of the requests that have ended, since it started.

    Attributes:
        seconds: from first to last token, summed.
        requests: how many.
    """

    seconds: float
    requests: int


async def decode_time(client: httpx.AsyncClient, engine: str, at_least: int = 0) -> DecodeTime | None:
    """Ask the engine.

    Args:
        client: of the server.
        engine: vLLM has the figure, others are not asked.
        at_least: wait up to a second for so many requests to be in it; it is written a moment after a stream ends.

    Returns:
        ``None`` where there is no such figure.

    Raises:
        ServerError: the server is gone.
    """
    if engine != VLLM:
        return None
    found = None
    for _ in range(_POLLS):
        answer = await ask(client, "GET", "/metrics")
        found = parse(answer.body) if answer.status == 200 else None
        if found is None or found.requests >= at_least:
            break
        await asyncio.sleep(_POLL_S)
    return found


def parse(metrics: bytes) -> DecodeTime | None:
    """Read a page of Prometheus metrics; ranks and engines are added up.

    Args:
        metrics: the page.
    """
    seconds, requests = (
        re.findall(rb"^" + name + rb"(?:\{[^\n]*\})? +([0-9.eE+-]+)", metrics, re.MULTILINE)
        for name in (_SUM, _COUNT)
    )
    try:
        return DecodeTime(sum(map(float, seconds)), round(sum(map(float, requests)))) if requests else None
    except (ValueError, OverflowError):
        return None


def late(result: LoadResult, before: DecodeTime | None, after: DecodeTime | None) -> str:
    """Whether the streams show when tokens were made.

    Args:
        result: a load run to its end.
        before: the engine's figure before it, or ``None``.
        after: and after it.

    Returns:
        Why the times of this load are not the engine's; empty where they are, or where nothing speaks against it.
    """
    done = [t for t in result.completed if len(t.chunk_ns) > 1]
    if not done:
        return ""
    here = sum(_decode_ns(t) for t in done) / 1e9
    if before is not None and after is not None and after.requests - before.requests == len(done):
        there = after.seconds - before.seconds
        if abs(here - there) > AGREE * there:
            return (
                f"the engine decoded for {1e3 * there / len(done):,.1f} ms a request, by its streams it was "
                f"{1e3 * here / len(done):,.1f}: tokens reach this client late; give server and client more CPU, or "
                "longer outputs (--output-tokens)"
            )
        return ""
    waited = sum(t.chunk_ns[0] - t.t_submit_ns for t in done) / 1e9
    if waited > RUSH * here and result.load.prompt_tokens * result.load.concurrency < RUSH_PROMPT:
        return (
            f"outputs came within {1e3 * here / len(done):,.1f} ms after {1e3 * waited / len(done):,.1f} ms of "
            "silence: tokens reach this client late; give server and client more CPU, or longer outputs "
            "(--output-tokens)"
        )
    return ""


def _decode_ns(t: RequestTiming) -> int:
    return t.chunk_ns[-1] - t.chunk_ns[0]
