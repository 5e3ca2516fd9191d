"""What do Ctrl-C and a polite kill do? They end the command once, and what falls over because of it says nothing.

The first raises ``KeyboardInterrupt``, at which files that are half written go and workers end. While that is done, one
more changes nothing for some seconds: the impatient press twice, and what a terminal sends to every process of a group
a parent may pass on as well. When all is done and said, one more ends the process, whatever it still waits for.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

PATIENCE_S = 5.0
"""For that long after an interrupt another changes nothing."""
_AGAIN_S = 0.02

Handler = Callable[[int, FrameType | None], Any]


@dataclass(slots=True)
class _State:
    """Of this process.

    Attributes:
        handler: what we have set for signals.
        since: when the interrupt came that is ending the command.
        code: the exit code, when the command has ended.
    """

    handler: Handler | None = None
    since: float | None = None
    code: int | None = None


_state = _State()


def polite_signals() -> list[signal.Signals]:
    """Signals that ask a process to end; of torchrun's ranks Ctrl-C alone, as it sends the others when a rank ends."""
    names = ("SIGINT",) if "TORCHELASTIC_RUN_ID" in os.environ else ("SIGINT", "SIGTERM", "SIGHUP")
    return [signal.Signals[name] for name in names if hasattr(signal, name)]


def spoken_by_rank_0() -> bool:
    """Whether torchrun started this rank beside others: what all of them meet alike, rank 0 says."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"


def take_signals(handler: Handler) -> None:
    """Have them call a handler; not those that are ignored, as in the background, or handled by somebody else.

    Args:
        handler: as of :func:`signal.signal`; one that was set here before is replaced.
    """
    for number in polite_signals():
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL, _state.handler):
            signal.signal(number, handler)
    if _state.handler is None:
        atexit.register(_end)  # before any library's, so that it comes last
    _state.handler = handler


def interrupt(number: int, _frame: FrameType | None) -> None:
    """End the command (a signal's handler)."""
    now = time.monotonic()
    if _state.since is not None and now - _state.since < PATIENCE_S:
        return
    _state.since = now
    _say_no_more(number)
    raise KeyboardInterrupt


def leave(_number: int, _frame: FrameType | None) -> None:
    """End the process (a signal's handler): all is done and said, and the interpreter still waits for something."""
    if _state.since is None or time.monotonic() - _state.since > PATIENCE_S:
        os._exit(130)


def all_is_said(code: int) -> None:
    """The command has ended, and the process is about to.

    Args:
        code: its exit code.
    """
    if _state.handler is interrupt:
        take_signals(leave)
        _state.code = code


def _end() -> None:
    """Python's last act sets handlers back, and a signal would be the end that is reported; not where it is ignored.

    Where an interrupt came, that act is left out: had it come in ``exec`` of a string, which makes every dataclass,
    Python would send it to itself once more at the very end.
    """
    if _state.since is not None and _state.code is not None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(_state.code)
    for number in polite_signals():
        if signal.getsignal(number) is leave:
            signal.signal(number, signal.SIG_IGN)


def _say_no_more(number: int) -> None:
    """Libraries log what an interrupt does to them, from threads and as the interpreter ends: no news to anybody."""

    def unraisable(what: Any) -> None:
        if isinstance(
            what.exc_value, KeyboardInterrupt
        ):  # came in a destructor, where Python drops it: once more
            _state.since = None
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = lambda _args: None
    sys.unraisablehook = unraisable
