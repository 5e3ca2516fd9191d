"""A load under way: C places, each with a streaming completion after the other, timed chunk by chunk."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import msgspec

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.serving.client import (
    READ_S,
    ServerError,
    message_of,
    read_body,
    refuse_packed,
    refuse_redirect,
    shown,
    why,
)
from hta_dsv4.serving.sse import Stream
from hta_dsv4.serving.timing import CANCELLED, Load, LoadResult, RequestTiming

COMPLETIONS = "/v1/completions"
# In every vocabulary, and beyond the control tokens that stand first in most.
_LOWEST_ID, _HIGHEST_ID = 100, 999
_LOOK_S = 0.01  # how often progress is looked at
_ERROR_S = 10.0  # for the body of an error, which is only told
_TOO_MANY = 4  # times the tokens asked for: chunks are no more than tokens, but for a few without text


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked.

    Attributes:
        model: its name, as ``/v1/models`` gives it.
        token_ids: send prompts as token ids; as words where the server takes only text (the length is then about
            right, and ``usage`` says what it was).
        running_usage: ask for the tokens so far with every chunk (vLLM and SGLang can).
        read_timeout_s: longest silence of a stream, seconds.
    """

    model: str
    token_ids: bool = True
    running_usage: bool = True
    read_timeout_s: float = READ_S


@dataclass(slots=True)
class _Record:
    """A request under way."""

    index: int
    t_submit_ns: int
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)
    t_end_ns: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None

    def frozen(self) -> RequestTiming:
        return RequestTiming(
            self.index, self.t_submit_ns, tuple(self.chunk_ns), tuple(self.chunk_tokens),
            self.t_end_ns or time.monotonic_ns(), self.prompt_tokens, self.completion_tokens, self.finish_reason,
            self.error if self.t_end_ns else CANCELLED,
        )  # fmt: skip


class RunningLoad:
    """A load under way; made by :func:`running`."""

    def __init__(self, client: httpx.AsyncClient, target: Target, load: Load) -> None:
        self.load = load
        self._client, self._target = client, target
        self._records: list[_Record] = []
        self._decoding = self._most = 0  # requests that have had output and have not ended: now, at the most
        self._changed = asyncio.Event()
        self._start_ns = time.monotonic_ns()
        self._end_ns: int | None = None
        self._open = load.concurrency  # places that still have requests
        self._next: Iterator[int] = iter(range(load.requests))
        self._tasks = [asyncio.create_task(self._place()) for _ in range(load.concurrency)]

    @property
    def ended(self) -> bool:
        """Nothing is left to wait for."""
        return self._open == 0

    @property
    def full(self) -> bool:
        """All C requests are decoding, now."""
        return self._decoding == self.load.concurrency

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong so far, one line per failed request."""
        return tuple(r.error for r in self._records if r.error not in (None, CANCELLED))

    @property
    def finished(self) -> int:
        """Requests that came to their end."""
        return sum(r.t_end_ns is not None and r.error is None for r in self._records)

    async def all_decoding(self, timeout_s: float) -> None:
        """Wait until all C requests decode at once.

        Args:
            timeout_s: longest wait, seconds.

        Raises:
            ServerError: a request failed, the load ended before, or time ran out.
        """
        wanted = self.load.concurrency
        try:
            await asyncio.wait_for(self._until_full(), timeout_s)
        except asyncio.TimeoutError:
            raise ServerError(
                f"after {timeout_s:.0f} s {self._decoding} of {wanted} requests decode; the server may run fewer at "
                "once (vLLM --max-num-seqs, SGLang --max-running-requests) or need longer for the prompts"
            ) from None
        if self.failures:
            raise ServerError(f"a request failed: {self.failures[0]}")
        if self._decoding != wanted and self._most == wanted:
            raise ServerError(
                f"all {wanted} decoded at once, but some had ended before that was seen; give a larger --output-tokens "
                f"(now {self.load.output_tokens})"
            )
        if self._decoding != wanted:
            raise ServerError(
                f"requests ended before all {wanted} were decoding at once ({self._most} were, at the most); give a "
                f"larger --output-tokens (now {self.load.output_tokens}), or let the server run more at once "
                "(vLLM --max-num-seqs, SGLang --max-running-requests)"
            )

    async def _until_full(self) -> None:
        """Until all decode, or cannot any more."""
        while not self.full and not self.failures and self._open == self.load.concurrency:
            self._changed.clear()
            await self._changed.wait()

    def tokens(self) -> dict[int, int]:
        """Tokens of each request that is decoding, by its index: by ``usage``, else at least one per chunk."""
        return {
            r.index: r.completion_tokens if r.completion_tokens is not None else len(r.chunk_ns)
            for r in self._records
            if r.chunk_ns and r.t_end_ns is None
        }

    async def decoded(self, since: Mapping[int, int], steps: int, timeout_s: float) -> bool:
        """Wait until each request has had so many more tokens, all of them decoding together.

        Args:
            since: :meth:`tokens` at the beginning.
            steps: how many more.
            timeout_s: longest wait, seconds.

        Returns:
            False where a request came to its end before.

        Raises:
            ServerError: a request failed, or time ran out.
        """
        give_up = time.monotonic() + timeout_s
        while True:
            now = self.tokens()
            if self.failures:
                raise ServerError(f"a request failed: {self.failures[0]}")
            if len(now) < self.load.concurrency or now.keys() != since.keys():
                return False
            had = min(now[i] - since[i] for i in since)
            if had >= steps:
                return True
            if time.monotonic() > give_up:
                raise ServerError(
                    f"{steps} steps have not come to an end within {timeout_s:.0f} s (the slowest request had {had} "
                    "tokens); look at the server's log"
                )
            await asyncio.sleep(_LOOK_S)

    async def finish(self) -> LoadResult:
        """Wait for every request to end."""
        await asyncio.gather(*self._tasks)
        self._end_ns = time.monotonic_ns()
        return self.result()

    async def cancel(self) -> None:
        """End all requests now; the server sees their connections close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_ns = self._end_ns or time.monotonic_ns()

    def result(self) -> LoadResult:
        """What was measured up to now."""
        timings = tuple(r.frozen() for r in sorted(self._records, key=lambda r: r.index))
        return LoadResult(self.load, timings, self._start_ns, self._end_ns or time.monotonic_ns())

    async def _place(self) -> None:
        """One of the C places."""
        try:
            await self._requests()
        finally:
            self._open -= 1
            self._changed.set()

    async def _requests(self) -> None:
        """A request after the other."""
        for index in self._next:
            if len(self.failures) >= self.load.concurrency:
                return  # a server on which everything fails is not asked on and on
            record = _Record(index, time.monotonic_ns())
            self._records.append(record)
            try:
                await self._request(record)
            except httpx.HTTPError as error:
                record.error = why(self._client, COMPLETIONS, error)
            except HtaDsv4Error as error:
                record.error = str(error)
            except asyncio.CancelledError:
                record.error = CANCELLED
                raise
            finally:
                record.t_end_ns = time.monotonic_ns()
                if record.chunk_ns:
                    self._decoding -= 1
                self._changed.set()

    async def _request(self, record: _Record) -> None:
        body = self._body(record.index)
        timeout = httpx.Timeout(self._target.read_timeout_s, connect=10.0, pool=None)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        async with self._client.stream(
            "POST", COMPLETIONS, content=body, headers=headers, timeout=timeout
        ) as response:
            at = shown(self._client, COMPLETIONS)
            refuse_redirect(self._client, COMPLETIONS, response)
            if response.status_code != 200:
                said = message_of(await self._error_body(response))
                raise ServerError(f"{at}: answered {response.status_code}" + (f": {said}" if said else ""))
            refuse_packed(self._client, COMPLETIONS, response)
            stream, heard_ns = Stream(), time.monotonic_ns()
            async for data in response.aiter_raw():
                now = time.monotonic_ns()
                if now - heard_ns > self._target.read_timeout_s * 1e9:
                    raise ServerError(
                        f"{at}: sent no output for {self._target.read_timeout_s:.0f} s, though the stream goes on; "
                        "look at the server's log"
                    )
                for chunk, raw in stream.feed(data):
                    if bytes(chunk.error) not in (b"", b"null"):
                        raise ServerError(f"{at}: failed midway: {message_of(raw)}")
                    tokens = chunk.usage.completion_tokens if chunk.usage else None
                    if chunk.choices:
                        heard_ns = now
                        if max(len(record.chunk_ns), tokens or 0) > _TOO_MANY * self.load.output_tokens + 100:
                            raise ServerError(
                                f"{at}: sends more than {_TOO_MANY} times the {self.load.output_tokens} tokens asked "
                                "for (max_tokens unheeded?)"
                            )
                        record.chunk_ns.append(now)
                        record.chunk_tokens.append(tokens)
                        record.finish_reason = chunk.choices[0].finish_reason or record.finish_reason
                        if len(record.chunk_ns) == 1:
                            self._decoding += 1
                            self._most = max(self._most, self._decoding)
                            self._changed.set()
                    if chunk.usage:
                        record.completion_tokens = tokens
                        record.prompt_tokens = chunk.usage.prompt_tokens
            if not stream.done and record.finish_reason is None:
                raise ServerError(f"{at}: the stream ended midway, after {len(record.chunk_ns)} chunks")

    async def _error_body(self, response: httpx.Response) -> bytes:
        """What an error says, or nothing where it does not come to its end."""
        try:
            body = read_body(self._client, COMPLETIONS, response)
            return await asyncio.wait_for(body, _ERROR_S)
        except (ServerError, asyncio.TimeoutError):
            return b""

    def _body(self, index: int) -> bytes:
        ids = prompt_ids(self.load, index)
        options = {"include_usage": True}
        if self._target.running_usage:
            options["continuous_usage_stats"] = True
        return msgspec.json.encode(
            {
                "model": self._target.model,
                "prompt": ids if self._target.token_ids else " ".join(map(str, ids)),
                "max_tokens": self.load.output_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": options,
            }
        )


def prompt_ids(load: Load, index: int) -> list[int]:
    """The prompt of one request: random token ids, the same for the same seed and index.

    Args:
        load: its ``seed`` and ``prompt_tokens``.
        index: the request.
    """
    draw = random.Random(f"{load.seed}/{index}")
    return [draw.randint(_LOWEST_ID, _HIGHEST_ID) for _ in range(load.prompt_tokens)]
