"""How does the command line end? Every way out of a command -> an exit code, and at most one line on stderr.

0 is done, or our output's reader has left; 2 a mistake, a broken input, or output that cannot be written; 130 Ctrl-C
or a polite kill (SIGTERM).
``gate`` alone also ends with 1, a budget is not kept, and 3, the captures cannot tell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from hta_dsv4.cli.interrupts import all_is_said, spoken_by_rank_0
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.text import printable

# Newer typer carries its own copy of click, so click's classes are reached through what typer exports.
_ClickException: type[Any] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_TURN_S = 20.0  # within this rank 0 has imported as much as the others


def run_and_exit(command: Callable[[], int | None]) -> NoReturn:
    """Run a command and leave the process.

    Args:
        command: does everything; returns an exit code, or ``None`` for 0.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a name that the terminal's encoding lacks is escaped, not a crash
            stream.reconfigure(errors="backslashreplace")
    try:
        if sys.stdout is None:  # so Python says that it was closed
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        code = command()
        if code == 130:  # click and typer differ in how they pass Ctrl-C on
            raise KeyboardInterrupt
        sys.stdout.flush()  # a full disk shows here, not in the interpreter's last breath
    except _ClickException as error:
        code = 2
        text = error.format_message()
        if type(error).__name__ == "NoArgsIsHelpError":  # no words at all: the message is the help page
            _write(text)
        else:
            context = getattr(error, "ctx", None)
            say_once(text + (f" (see {context.command_path} --help)" if context else ""))
    except HtaDsv4Error as error:
        code = 2
        say_once(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = 130
        if not spoken_by_rank_0():
            say("interrupted")
    except (BrokenPipeError, SystemExit):  # the latter is how click and rich leave when they meet the former
        code = 0
        _discard_output()
    except OSError as error:  # what reads files says more: what is left is mostly our own output
        code = 2
        where = f"{error.filename}: " if error.filename else "the output cannot be written: "
        say(f"{where}{error.strerror or error}")
        _discard_output()
    except MemoryError:
        code = 2
        say("out of memory; read fewer traces at once, or on a larger machine")
    all_is_said(code or 0)
    sys.exit(code or 0)


def say_once(text: str) -> None:
    """Write a message that every rank of a job has alike: rank 0 does, and the others give it the time to."""
    if spoken_by_rank_0():
        time.sleep(_TURN_S)  # torchrun ends them when rank 0 ends, and rank 0 where one of them ended first
    else:
        say(text)


def say(text: str) -> None:
    """Write a message to stderr, where there is one: one line, in which no file's name can drive the terminal."""
    _write("hta-dsv4: " + printable(" ".join(text.split())))


def _write(text: str) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _discard_output() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not fail on it as it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
