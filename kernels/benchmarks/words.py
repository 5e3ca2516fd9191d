"""What may stand behind the options of a benchmark: looked at before anything is measured, said in one line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def at_least_1(text: str) -> int:
    """A whole number from 1 on, as a ``type`` of argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return value


def writable(text: str) -> Path:
    """A file to write: minutes of measuring must not be lost for want of a place."""
    path = Path(text)
    where = path if path.exists() else path.parent
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: cannot be written; name a file in a folder that is there")
    return path


def no_options(page: str | None) -> None:
    """Refuse words that a script without options would take no notice of.

    Args:
        page: the script's docstring, for ``--help``.
    """
    argparse.ArgumentParser(
        description=page, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
