"""Several ranks, one line: who says what ended a capture, and how the others end.

A mistake that all ranks meet is said once, by the first to meet it. A rank's own fault names its rank. Where a rank
dies without a word, those that it leaves in a collective notice, and one of them says which is gone. Ranks tell each
other over the store by which they met; one that has nothing to say waits until the line is out, as ``torchrun`` ends
all others as soon as one ends.
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
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch.distributed

from hta_dsv4.capture.parallel import Ranks
from hta_dsv4.errors import HtaDsv4Error

CHECK_S, RUN_S, SPOKEN_S = 60.0, 2.0, 10.0
"""How long is waited for the others: to look at their options, to fail too, and for the line to be out."""
_GONE = re.compile(
    r"connection (closed|reset|refused)|by peer|remote process|broken pipe|socket|timed out", re.I
)
dist: Any = torch.distributed  # whose stores are exported without their types
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class TerminatedError(Exception):
    """The process was asked to end (SIGTERM): by ``torchrun``, when another rank ended."""


class Voice:
    """What one rank tells the others of its end.

    Args:
        ranks: this process among them.

    Attributes:
        litter: folders to take away where the job ends before its end.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.litter: list[Path] = []
        self._checked = False
        self._store: Any = None
        if (
            not ranks.alone and os.environ.get(_AGENT) == "True"
        ):  # torchrun's own store is there before the ranks meet
            with suppress(RuntimeError, ValueError, KeyError):
                host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
                again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
                self._store = dist.PrefixStore(f"hta_dsv4/{again}", store)

    def checked(self) -> None:
        """Tell the others that this rank found nothing wrong before they meet."""
        self._checked = True
        self._tell("checked", "1")

    def last_words(self, error: BaseException) -> str | None:
        """What this rank has to say of an error that ends the job; ``None`` where another says it.

        Args:
            error: a fault of this rank (:class:`HtaDsv4Error`), or what a rank notices of another's end.
        """
        own = str(error) if isinstance(error, HtaDsv4Error) else None
        store = self._store or _store_of_the_group()
        if store is None:
            if own and self.ranks.first and not self._checked:
                return own  # what is wrong before the ranks meet is mostly wrong for all
            return f"rank {self.ranks.rank}: {own or _ended([])}"
        self._store = store
        try:
            self._tell("lost" if own is None else "fault", own or "1")
            faults, silent = self._others(store)
            if (own is None and faults) or store.add("speakers", 1) > 1:
                self._wait_for_the_line(store)
                return None
        except RuntimeError:  # the store was another rank's, and is gone with it
            return f"rank {self.ranks.rank}: {own or _ended([])}"
        if own is None:
            return _ended(silent)
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
        words = ("fault", "lost") if self._checked else ("fault", "lost", "checked")
        until = time.monotonic() + (RUN_S if self._checked else CHECK_S)
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
        if self._store is not None:
            with suppress(RuntimeError):
                self._store.set(f"{what}/{self.ranks.rank}", text)


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
    try:
        with _term_as_error():
            yield voice
    except KeyboardInterrupt:  # the terminal sends it to every rank
        if ranks.first:
            say("interrupted")
        _end(voice, 130)
    except (HtaDsv4Error, RuntimeError, TerminatedError) as error:
        if isinstance(error, RuntimeError) and not _GONE.search(str(error)):
            raise
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the line comes first
        words = voice.last_words(error)
        if words is not None:
            say(words)
            voice.spoken()
        _end(voice, 2)


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


@contextmanager
def _term_as_error() -> Iterator[None]:
    """A polite kill unwinds, so that files that are half written go."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(f"signal {number}")

    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    signal.signal(signal.SIGTERM, end)
    yield


def _store_of_the_group() -> Any:
    """The store by which the ranks met, where they have."""
    if not dist.is_initialized():
        return None
    return dist.PrefixStore("hta_dsv4", dist.distributed_c10d._get_default_store())


def _ended(silent: list[int]) -> str:
    who = "another rank" if len(silent) != 1 else f"rank {silent[0]}"
    if len(silent) > 1:
        who = f"ranks {', '.join(map(str, silent))}"
    return f"{who} ended before the capture did, so no trace is kept; its output or the system's log says why"
