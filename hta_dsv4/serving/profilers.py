"""How is a server's own profiler started and stopped? vLLM's and SGLang's endpoints, each with its habits.

Whatever happens in between, :func:`profiling` stops a session that it started, and never one that it did not.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from hta_dsv4.serving.client import Answer, ServerError, ask, shown
from hta_dsv4.serving.engines import SGLANG, VLLM, alive, refuse_without_key

START, STOP = "/start_profile", "/stop_profile"
START_S = 120.0  # under load a start waits for the step under way; 8 s were seen
STOP_S = 900.0  # a stop answers when the ranks have written; 104 s were seen with stacks


class NotStartedError(ServerError):
    """The server refused to start its profiler: no session of ours is open."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is to be recorded.

    Attributes:
        prefix: begins the files' names; unique to this capture.
        steps: how many steps of the engine.
        folder: where the files are to go (SGLang is told; vLLM was told when it started).
        with_stack: record Python stacks (SGLang; vLLM was told when it started).
    """

    prefix: str
    steps: int
    folder: Path
    with_stack: bool = False


class Profiler(ABC):
    """A server's profiler.

    Attributes:
        client: of the server.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    @abstractmethod
    async def check(self) -> None:
        """Is it there? Changes nothing on the server.

        Raises:
            NotStartedError: it is not enabled.
        """

    @abstractmethod
    async def start(self, window: Window) -> None:
        """Begin to record; returns when the server has answered.

        Raises:
            NotStartedError: refused; nothing is open.
            ServerError: no answer, so that a session may be open.
        """

    @abstractmethod
    async def stop(self, timeout_s: float) -> None:
        """End the session and wait for the server's answer, which comes when the files are written.

        Raises:
            ServerError: no answer in time, an error, or the server died.
        """

    async def _post(self, path: str, body: object, timeout_s: float) -> Answer:
        answer = await ask(self.client, "POST", path, body, timeout_s)
        if answer.status in (401, 403):
            try:
                refuse_without_key(shown(self.client, path), answer)
            except ServerError as error:
                raise NotStartedError(f"{error}; a profiler may want the admin key") from error
        return answer

    async def _stop(self, timeout_s: float) -> Answer:
        try:
            return await self._post(STOP, None, timeout_s)
        except ServerError as error:
            if await alive(self.client):
                raise ServerError(f"{error}; the profiler may still be writing") from error
            raise ServerError(
                f"{shown(self.client, STOP)}: the server died as it stopped its profiler; look at its log: an output "
                "folder that it cannot write does this to SGLang, a full disk or memory to others"
            ) from error


class VllmProfiler(Profiler):
    """vLLM: enabled when the server starts, one session at a time, files where the server was told."""

    FLAG = '--profiler-config \'{"profiler":"torch","torch_profiler_dir":"/DIR"}\''

    async def check(self) -> None:
        """A GET finds the route without using it: 405 where it is mounted, 404 where it is not."""
        answer = await ask(self.client, "GET", START)
        refuse_without_key(shown(self.client, START), answer)
        if answer.status == 404:
            raise self._disabled()

    async def start(self, window: Window) -> None:
        """See :meth:`Profiler.start`; the server stops recording by itself after the steps, but stays in session."""
        body = {"profile_prefix": window.prefix, "max_iterations": window.steps}
        answer = await self._post(START, body, START_S)
        at = shown(self.client, START)
        if answer.status == 404:
            raise self._disabled()
        if answer.status == 409:
            raise NotStartedError(
                f"{at}: a profiling session is open already, perhaps somebody else's, and is left as it is; when it is "
                f"nobody's, end it: curl -X POST {shown(self.client, STOP)}"
            )
        if 400 <= answer.status < 500:
            raise NotStartedError(f"{at}: refused ({answer.status}): {answer.message or 'no reason given'}")
        if answer.status != 200:
            raise ServerError(f"{at}: answered {answer.status}: {answer.message or 'no reason given'}")

    async def stop(self, timeout_s: float) -> None:
        """See :meth:`Profiler.stop`; queues behind an export under way, so its answer means the files are written."""
        answer = await self._stop(timeout_s)
        if answer.status != 200:
            raise ServerError(
                f"{shown(self.client, STOP)}: answered {answer.status}: {answer.message or 'no reason given'}"
            )

    def _disabled(self) -> NotStartedError:
        return NotStartedError(
            f"{shown(self.client, START)}: the server's profiler is not enabled; start vLLM with {self.FLAG} and give "
            "that folder as --trace-dir (the variable VLLM_TORCH_PROFILER_DIR enables nothing in current releases)"
        )


class SglangProfiler(Profiler):
    """SGLang: always there, told with each session where to write."""

    async def check(self) -> None:
        """Nothing to ask: a GET would start it."""

    async def start(self, window: Window) -> None:
        """See :meth:`Profiler.start`; the answer comes at once, the files after the steps."""
        body = {
            "output_dir": str(window.folder),
            "num_steps": window.steps,
            "activities": ["CPU", "GPU"],
            "with_stack": window.with_stack,
            "record_shapes": True,
            "profile_id": window.prefix,
        }
        answer = await self._post(START, body, START_S)
        at = shown(self.client, START)
        if 400 <= answer.status < 500:
            raise NotStartedError(f"{at}: refused ({answer.status}): {answer.message or 'no reason given'}")
        if answer.status != 200:
            raise ServerError(f"{at}: answered {answer.status}: {answer.message or 'no reason given'}")

    async def stop(self, timeout_s: float) -> None:
        """See :meth:`Profiler.stop`; 500 says that the session had ended by itself after its steps, as it should."""
        answer = await self._stop(timeout_s)
        if answer.status not in (200, 500):
            raise ServerError(
                f"{shown(self.client, STOP)}: answered {answer.status}: {answer.message or 'no reason given'}"
            )


PROFILERS: dict[str, type[Profiler]] = {VLLM: VllmProfiler, SGLANG: SglangProfiler}


@asynccontextmanager
async def profiling(
    profiler: Profiler, window: Window, say: Callable[[str], None], stop_timeout_s: float = STOP_S
) -> AsyncIterator[None]:
    """Record around the body; the session is stopped at the close, however it comes.

    Cancelled while the start is unanswered, it waits for that answer: only then is it known whether a session is ours.

    Args:
        profiler: of the server.
        window: what to record.
        say: told when a stop is made out of turn.
        stop_timeout_s: longest wait for the stop's answer, seconds.

    Raises:
        ServerError: it did not start, or did not stop in order.
    """
    start = asyncio.ensure_future(profiler.start(window))
    try:
        await asyncio.shield(start)
    except NotStartedError:
        raise
    except asyncio.CancelledError:
        if await _may_be_ours(start, profiler, say):
            await _stop_out_of_turn(profiler, say, stop_timeout_s)
        raise
    except ServerError:
        await _stop_out_of_turn(profiler, say, stop_timeout_s)
        raise
    try:
        yield
    except BaseException:
        await _stop_out_of_turn(profiler, say, stop_timeout_s)
        raise
    stop = asyncio.ensure_future(profiler.stop(stop_timeout_s))
    try:
        await asyncio.shield(stop)
    except asyncio.CancelledError:
        say("waiting for the server to write its trace; this can take minutes")
        await _or_say(stop, profiler, say)
        raise


async def _may_be_ours(start: asyncio.Future[None], profiler: Profiler, say: Callable[[str], None]) -> bool:
    """Whether an interrupted start may have opened a session: all but a refusal may."""
    try:
        await _or_say(start, profiler, say)
    except NotStartedError:
        return False
    except ServerError:
        return True
    return True


async def _or_say(call: asyncio.Future[None], profiler: Profiler, say: Callable[[str], None]) -> None:
    """Wait for a call to the profiler; given up a second time, say what may be left running."""
    try:
        await call
    except asyncio.CancelledError:
        say(f"not waited for; if the profiler still runs: curl -X POST {shown(profiler.client, STOP)}")
        raise


async def _stop_out_of_turn(profiler: Profiler, say: Callable[[str], None], timeout_s: float) -> None:
    """Stop because something else went wrong: that is what is to be reported, not a failure of this."""
    say("stopping the server's profiler; this can take minutes")
    try:
        await _or_say(asyncio.ensure_future(profiler.stop(timeout_s)), profiler, say)
    except ServerError as error:
        say(f"the profiler could not be stopped: {error}")
