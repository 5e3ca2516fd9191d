"""What did the load take? The requests asked for, and the times of each, in nanoseconds of one clock."""

from __future__ import annotations

from dataclasses import dataclass

from hta_dsv4.errors import HtaDsv4Error

CANCELLED = "cancelled"
"""The error of a request that we ended ourselves."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much is asked.

    Attributes:
        concurrency: C, requests in flight; never more.
        prompt_tokens, output_tokens: of each request.
        requests: in all; one starts as another ends. ``concurrency`` of them is a single wave.
        seed: of the prompts.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    requests: int
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that make no load.

        Raises:
            HtaDsv4Error: a count below 1, or fewer requests than are to be decoded together.
        """
        for name in ("concurrency", "prompt_tokens", "output_tokens", "requests"):
            if getattr(self, name) < 1:
                raise HtaDsv4Error(f"{name.replace('_', ' ')} {getattr(self, name)}: must be at least 1")
        if self.requests < self.concurrency:
            raise HtaDsv4Error(f"{self.requests} requests can never be {self.concurrency} at once")


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One request; times are of ``time.monotonic_ns``, comparable within a process.

    Attributes:
        index: its place in the load, from 0; the prompt follows from it and the seed.
        t_submit_ns: before the first byte was sent.
        chunk_ns: when each chunk with output arrived; a chunk may hold several tokens.
        chunk_tokens: completion tokens up to and with each of them; ``None`` where the server does not say.
        t_end_ns: the stream's end, or when it failed.
        prompt_tokens, completion_tokens: by ``usage``; ``None`` where the server gave none.
        finish_reason: ``length`` as asked; anything else is an output shorter than asked.
        error: one line where the request failed; ``cancelled`` where we ended it.
    """

    index: int
    t_submit_ns: int
    chunk_ns: tuple[int, ...]
    chunk_tokens: tuple[int | None, ...]
    t_end_ns: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def t_first_ns(self) -> int | None:
        """When the first output arrived; ``None`` where none did."""
        return self.chunk_ns[0] if self.chunk_ns else None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load took.

    Attributes:
        load: what was asked.
        timings: requests that were sent, by index.
        t_start_ns, t_end_ns: around all of them.
    """

    load: Load
    timings: tuple[RequestTiming, ...]
    t_start_ns: int
    t_end_ns: int

    @property
    def completed(self) -> tuple[RequestTiming, ...]:
        """Requests that came to their end."""
        return tuple(t for t in self.timings if t.error is None)

    @property
    def failed(self) -> tuple[RequestTiming, ...]:
        """Requests that failed, those we cancelled ourselves left out."""
        return tuple(t for t in self.timings if t.error not in (None, CANCELLED))

    @property
    def unsent(self) -> int:
        """Requests that were never sent: the load stops after as many failures as there are places."""
        return self.load.requests - len(self.timings)

    def decoding_windows(self) -> tuple[tuple[int, int], ...]:
        """When all C requests were decoding at once: (start, end) ns, in order; prefill, ramp and drain lie outside.

        A request decodes from its first chunk to its last.
        """
        edges: list[tuple[int, int]] = []
        for timing in self.timings:
            if len(timing.chunk_ns) > 1:
                edges += [(timing.chunk_ns[0], 1), (timing.chunk_ns[-1], -1)]
        windows: list[tuple[int, int]] = []
        busy, since = 0, 0
        for at, change in sorted(edges):  # an end before a start at the same time
            full = busy == self.load.concurrency
            busy += change
            if busy == self.load.concurrency and not full:
                since = at
            elif full and busy < self.load.concurrency and at > since:
                windows.append((since, at))
        return tuple(windows)


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one request waited for a token.

    Attributes:
        ms: mean, milliseconds; a step's time where a step gives each request one token.
        tokens: how many it is the mean of.
    """

    ms: float
    tokens: int


def step_times(result: LoadResult, since_ns: int, until_ns: int) -> list[StepTime]:
    """Time per token of each request between two times.

    Args:
        result: of a load, also one under way.
        since_ns: from when on, by the clock of the timings.
        until_ns: until when.

    Returns:
        One value per request that had at least two chunks with counted tokens then; empty where the server does not
        say the tokens with each chunk.
    """
    values = []
    for timing in result.timings:
        told = [
            (at, tokens)
            for at, tokens in zip(timing.chunk_ns, timing.chunk_tokens, strict=True)
            if tokens is not None and since_ns <= at <= until_ns
        ]
        if len(told) > 1 and (tokens := told[-1][1] - told[0][1]) > 0:
            values.append(StepTime((told[-1][0] - told[0][0]) / 1e6 / tokens, tokens))
    return values
