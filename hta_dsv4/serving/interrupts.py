"""What does Ctrl-C do while a server works for us? It cancels the work once, so that it can put things in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Interrupts:
    """How often we were interrupted, and what that does.

    Attributes:
        count: how often.
        cancel: set while work is under way.
    """

    count: int = 0
    cancel: Callable[[], object] | None = field(default=None, repr=False)


def run_interruptibly(
    work: Coroutine[Any, Any, None], interrupts: Interrupts, say: Callable[[str], None], ending: str
) -> None:
    """Run in an event loop; Ctrl-C (and a polite kill) cancels the work once, so that it can put things in order.

    A second one cancels what is being waited for then. Returns also when interrupted: ask ``interrupts``. In a
    notebook, whose own loop runs in this thread, the work gets a thread of its own.

    Args:
        work: what to run; cleans up when it is cancelled.
        interrupts: counts them.
        say: told what the first one sets in motion.
        ending: what that is.
    """

    def interrupt() -> None:
        interrupts.count += 1
        if interrupts.count == 1:
            with suppress(OSError):  # where it was the terminal that went
                say(f"interrupted: ending {ending}; once more to leave at once")
        if interrupts.cancel is not None:
            interrupts.cancel()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(_cancellable(work, interrupts, interrupt))
        return
    before = None
    with suppress(ValueError):  # not in the main thread: whoever runs there is interrupted
        before = signal.signal(signal.SIGINT, lambda *_: interrupt())
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _cancellable(work, interrupts, interrupt)).result()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


async def _cancellable(
    work: Coroutine[Any, Any, None], interrupts: Interrupts, interrupt: Callable[[], None]
) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    interrupts.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
    handled = {}
    for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):
        if number is None:  # not POSIX
            continue
        before = signal.getsignal(number)
        if before is signal.SIG_IGN:  # as in the background
            continue
        with suppress(NotImplementedError, ValueError, RuntimeError):  # not in the main thread, or not POSIX
            loop.add_signal_handler(number, interrupt)
            handled[number] = before
    try:
        await work
    except asyncio.CancelledError:
        if not interrupts.count:
            raise
    finally:
        interrupts.cancel = None
        for number, before in handled.items():
            loop.remove_signal_handler(number)
            signal.signal(number, before)  # which the loop does not remember
