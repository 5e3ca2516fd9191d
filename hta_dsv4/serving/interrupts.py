"""What does Ctrl-C do while a server works for us? It cancels the work once, so that it can put things in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Interrupts:
    """How often we were interrupted."""

    count: int = 0


def run_interruptibly(
    work: Coroutine[Any, Any, None], interrupts: Interrupts, say: Callable[[str], None]
) -> None:
    """Run in an event loop; Ctrl-C (and a polite kill) cancels the work once, so that it can put things in order.

    A second one cancels what is being waited for then. Returns also when interrupted: ask ``interrupts``.

    Args:
        work: what to run; cleans up when it is cancelled.
        interrupts: counts them.
        say: told what the first one sets in motion.
    """

    async def body() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            interrupts.count += 1
            if interrupts.count == 1:
                say("interrupted: ending the requests and the profiler; once more to leave at once")
            task.cancel()

        handled = []
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, interrupt)
                handled.append(number)
        try:
            await work
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    asyncio.run(body())
