"""What may stand behind the options of a benchmark: looked at before anything is measured, said in one line."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path


def whole(least: int) -> Callable[[str], int]:
    """A whole number from ``least`` on, as a ``type`` of argparse."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least} on")
        return value

    return read


def above_0(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return value


def share(text: str) -> float:
    """A number from 0 to below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0 to below 1")
    return value


def readable(text: str) -> Path:
    """A file that is there."""
    path = Path(text)
    if not os.access(path, os.R_OK) or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such file, or not readable; check the path")
    return path


def folder(text: str) -> Path:
    """A folder to write into."""
    path = Path(text)
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text}: no folder that can be written to; make it, or name another"
        )
    return path


def writable(text: str) -> Path:
    """A file to write: what is measured first must not be lost for want of a place."""
    path = Path(text)
    where = path if path.exists() else path.parent
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written; name a file in a folder that is there")
    return path


def last_line(stderr: str) -> str:
    """What a process that failed said last: of a traceback, the error itself."""
    return (stderr.strip().splitlines() or ["no word of why"])[-1]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
