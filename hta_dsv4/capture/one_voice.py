"""Several ranks, one line: who says what ended a capture, and how the others end.

A mistake that all ranks meet is said once, by the first to meet it. A rank's own fault names its rank. Where a rank
dies without a word, or is stuck, the others notice, also in a collective (:mod:`~hta_dsv4.capture.lookout`), and one of
them says which it is. Ranks tell each other over the store by which they met; one that has nothing to say waits until
the line is out, as ``torchrun`` ends all others as soon as one ends.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from hta_dsv4.capture.lookout import (
    Lookout,
    SilentError,
    TerminatedError,
    store_of_the_group,
    store_of_torchrun,
)
from hta_dsv4.capture.parallel import Ranks
from hta_dsv4.errors import HtaDsv4Error

CHECK_S, RUN_S, SPOKEN_S = 60.0, 2.0, 10.0
"""How long is waited for the others: to look at their options, to fail too, and for the line to be out."""
_GONE = re.compile(
    r"connection (closed|reset|refused)|by peer|remote process|broken pipe|socket|timed out", re.I
)
_STORE_S = 8.0  # that a store may take; torchrun kills those that have not ended after 30 s


class Voice:
    """What one rank tells the others of its end.

    Args:
        ranks: this process among them.

    Attributes:
        litter: folders to take away where the job ends before its end.
        store: by which this rank hears the others, where it has one.
        has_checked: whether this rank has found nothing wrong before they met.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.litter: list[Path] = []
        self.has_checked = False
        self.store: Any = None
        if not ranks.alone:  # torchrun's own store is there before the ranks meet
            self.store = store_of_torchrun()

    def checked(self) -> None:
        """Tell the others that this rank found nothing wrong before they meet."""
        self.has_checked = True
        self._tell("checked", "1")

    def last_words(self, error: BaseException) -> str | None:
        """What this rank has to say of an error that ends the job; ``None`` where another says it.

        Args:
            error: a fault of this rank (:class:`HtaDsv4Error`), or what a rank notices of another's end.
        """
        own = str(error) if isinstance(error, HtaDsv4Error) else None
        store = self.store or store_of_the_group()
        if store is None:
            if own and self.ranks.first and not self.has_checked:
                return own  # what is wrong before the ranks meet is mostly wrong for all
            return f"rank {self.ranks.rank}: {own or _noticed(error, [])}"
        self.store = store
        try:
            self._tell("lost" if own is None else "fault", own or "1")
            faults, silent = self._others(store)
            if (own is None and faults) or store.add("speakers", 1) > 1:
                self._wait_for_the_line(store)
                return None
        except RuntimeError:  # the store was another rank's, and is gone with it
            return f"rank {self.ranks.rank}: {own or _noticed(error, [])}"
        if own is None:
            return _noticed(error, silent)
        if len(faults) == self.ranks.world_size - 1 and set(faults.values()) == {own}:
            return own
        too = f" (and {len(faults)} more ranks failed)" if faults else ""
        return f"rank {self.ranks.rank}: {own}{too}"

    def spoken(self) -> None:
        """Tell the others that the line is out."""
        self._tell("spoken", "1")

    def _others(self, store: Any) -> tuple[dict[int, str], list[int]]:
        """Faults of the other ranks, and ranks that say nothing, once all have spoken or time is over."""
        others = [r for r in range(self.ranks.world_size) if r != self.ranks.rank]
        words = ("fault", "lost") if self.has_checked else ("fault", "lost", "checked")
        until = time.monotonic() + (RUN_S if self.has_checked else CHECK_S)
        while True:
            silent = [r for r in others if not any(store.check([f"{w}/{r}"]) for w in words)]
            if not silent or time.monotonic() > until:
                break
            time.sleep(0.05)
        return {r: store.get(f"fault/{r}").decode() for r in others if store.check([f"fault/{r}"])}, silent

    def _wait_for_the_line(self, store: Any) -> None:
        until = time.monotonic() + SPOKEN_S
        while time.monotonic() < until:
            if any(store.check([f"spoken/{r}"]) for r in range(self.ranks.world_size)):
                return
            time.sleep(0.05)

    def _tell(self, what: str, text: str) -> None:
        if self.store is not None:
            with suppress(RuntimeError):
                self.store.set(f"{what}/{self.ranks.rank}", text)


@contextmanager
def one_voice(ranks: Ranks, say: Callable[[str], None]) -> Iterator[Voice]:
    """End this process, and its line, so that a job of several ranks says one; nothing changes for a single process.

    Args:
        ranks: this process.
        say: writes a line to the user.

    Yields:
        What tells the others how far this rank is.
    """
    voice = Voice(ranks)
    if ranks.alone:
        yield voice
        return
    turn = (
        threading.Lock()
    )  # the main thread's, or that of the one that looks out: whoever is first ends the process

    def end(error: BaseException) -> NoReturn:
        turn.acquire()
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                signal.signal(number, signal.SIG_IGN)  # the line comes first
            except ValueError:  # only the main thread may
                pass
            except KeyboardInterrupt as late:  # came as another rank, interrupted too, was gone already
                error = late
        if lookout.interrupted or isinstance(error, KeyboardInterrupt):  # the terminal sends it to every rank
            if ranks.first:
                say("interrupted")
            _end(voice, 130)
        voice.store = voice.store or lookout.store
        words = _in_time(voice, error)
        if words is not None:
            say(words)
            voice.spoken()
        _end(voice, 2)

    lookout = Lookout(ranks, lambda: store_of_torchrun() or store_of_the_group(), end)
    try:
        with lookout.on_watch():
            yield voice
    except (HtaDsv4Error, RuntimeError, KeyboardInterrupt) as error:
        if isinstance(error, RuntimeError) and not _GONE.search(str(error)):
            raise
        end(error)


def _in_time(voice: Voice, error: BaseException) -> str | None:
    """What this rank has to say; also where the store, and whoever keeps it, is stuck."""
    said: list[str | None] = []
    thread = threading.Thread(target=lambda: said.append(voice.last_words(error)), daemon=True)
    thread.start()
    thread.join((RUN_S if voice.has_checked else CHECK_S) + SPOKEN_S + _STORE_S)
    if said:
        return said[0]
    voice.store = None  # nobody is told anything through it
    return f"rank {voice.ranks.rank}: {_noticed(error, [])}"


def _end(voice: Voice, code: int) -> NoReturn:
    for folder in voice.litter:  # also what a rank left that could not clean up
        shutil.rmtree(folder, ignore_errors=True)
    end_process(code)


def end_process(code: int) -> NoReturn:
    """End this rank without taking the interpreter down.

    After profiling among several gloo processes torch 2.13 aborts in about one exit of four ("terminate called without
    an active exception"), and torchrun would call a capture failed whose files stand.

    Args:
        code: exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _noticed(error: BaseException, gone: list[int]) -> str:
    """What a rank notices of others' end."""
    no_trace = "so no trace is kept"
    if isinstance(error, SilentError):
        return f"{_which(error.silent)} did not answer for {error.seconds:.0f} s, {no_trace}; it hangs, or was stopped"
    if isinstance(error, TerminatedError) and not gone:
        return f"asked to end (SIGTERM) before the capture was over, {no_trace}"
    return f"{_which(gone)} ended before the capture did, {no_trace}; its output or the system's log says why"


def _which(ranks: list[int]) -> str:
    if not ranks:
        return "another rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
