"""Is any rank stuck or gone while this one waits for it? Threads that see it when the main thread cannot.

A rank that waits in a collective on the GPU is in the driver for as long as the kernel spins. Python calls no signal's
handler there, and with NCCL a rank that is dead, stopped or hung is waited for until torch gives up, after ten minutes,
by ending the process in the middle. So two threads look out. One counts on, in the store by which the ranks met, and
reads how far the others have counted. The other is woken by signals, and looks how long the others have been silent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed

from hta_dsv4.capture.parallel import Ranks

BEAT_S, SILENT_S = 1.0, 120.0
"""How often a rank counts, and how long one may not: compiling or writing can keep a process from it for some time."""
GRACE_S = 5.0
"""How long the main thread has to end by itself after Ctrl-C."""
_ASLEEP_S = 5.0  # not looked for so long: the job was stopped (Ctrl-Z) and goes on, or all were busy
dist: Any = torch.distributed  # whose stores are exported without their types


class TerminatedError(Exception):
    """The process was asked to end (SIGTERM): by ``torchrun``, when another rank ended, or by whoever started that."""


class SilentError(Exception):
    """Ranks that have not counted on.

    Args:
        silent: which.
        seconds: for how long.
    """

    def __init__(self, silent: list[int], seconds: float) -> None:
        self.silent, self.seconds = silent, seconds
        super().__init__(f"ranks {silent}")


class Lookout:
    """The two threads of one rank.

    Args:
        ranks: this process among the others.
        store: connects to the store by which the ranks met; ``None`` as long as there is none.
        end: ends the process, with :class:`TerminatedError`, :class:`SilentError` or ``KeyboardInterrupt``.

    Attributes:
        interrupted: whether Ctrl-C came; it does to all ranks, and the others may be gone before this one notices.
        store: the connection, once there is one; another to a store that is gone takes half a minute to fail.
    """

    def __init__(
        self, ranks: Ranks, store: Callable[[], Any | None], end: Callable[[BaseException], object]
    ) -> None:
        self._ranks, self._connect, self._end = ranks, store, end
        self._others = [r for r in range(ranks.world_size) if r != ranks.rank]
        self._heard: dict[int, float] = {}
        self._over = threading.Event()
        self.interrupted = False
        self.store: Any = None

    @contextlib.contextmanager
    def on_watch(self) -> Iterator[None]:
        """Look out until the block ends; SIGTERM then ends the process, wherever the main thread is."""
        self._heard = dict.fromkeys(self._others, time.monotonic())
        woken, wakes = socket.socketpair()
        for end in (woken, wakes):
            end.setblocking(False)
        main = threading.current_thread() is threading.main_thread()  # only that one may set handlers
        before = signal.getsignal(signal.SIGTERM)
        if main:
            signal.signal(signal.SIGTERM, _noted)
            signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        for work in (self._beat, lambda: self._look(woken)):
            threading.Thread(target=work, name="hta-dsv4-lookout", daemon=True).start()
        yield  # not after an error, which ends the process: until then both go on
        self._over.set()
        if main:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, before)

    def _beat(self) -> None:
        """Count, and read how far the others have."""
        store = None
        while store is None:
            store = self._connect()
            if self._over.wait(BEAT_S):
                return
        self.store = store
        counted, seen = 0, dict.fromkeys(self._others, b"")
        with contextlib.suppress(
            RuntimeError
        ):  # the store is gone with the rank that kept it, which is silence
            while not self._over.is_set():
                counted += 1
                store.set(f"beat/{self._ranks.rank}", str(counted))
                for rank in self._others:
                    if store.check([f"beat/{rank}"]) and (found := store.get(f"beat/{rank}")) != seen[rank]:
                        seen[rank], self._heard[rank] = found, time.monotonic()
                self._over.wait(BEAT_S)

    def _look(self, woken: socket.socket) -> None:
        """Wait for signals and for silence."""
        looked, since = time.monotonic(), 0.0
        while not self._over.is_set():
            select.select([woken], [], [], BEAT_S)
            now = time.monotonic()
            try:
                signals = woken.recv(64)
            except OSError:
                signals = b""
            if signal.SIGINT in signals and not self.interrupted:
                self.interrupted, since = True, now
            if self.interrupted and now - since > GRACE_S:
                self._end(KeyboardInterrupt())
            if signal.SIGTERM in signals:
                self._end(TerminatedError())
            if (
                now - looked > _ASLEEP_S or not dist.is_initialized()
            ):  # until they have met, each is on its own
                self._heard.update(dict.fromkeys(self._others, now))
            looked = now
            silent = [rank for rank in self._others if now - self._heard[rank] > SILENT_S]
            if silent:
                self._end(SilentError(silent, SILENT_S))


def store_of_torchrun() -> Any | None:
    """A connection of our own to the store that torchrun keeps; ``None`` where another started the ranks."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    return _store(f"hta_dsv4/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")


def store_of_the_group() -> Any | None:
    """A connection of our own to the store that rank 0 keeps, once the ranks have met."""
    return _store("hta_dsv4") if dist.is_initialized() else None


def _store(prefix: str) -> Any | None:
    with contextlib.suppress(RuntimeError, ValueError, KeyError):
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
        return dist.PrefixStore(prefix, store)
    return None


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Python must have a handler for the thread to be woken."""
