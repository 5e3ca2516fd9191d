"""``hta-dsv4 cache``: where read traces are kept, how much there is, and away with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from hta_dsv4.cli.exit import say
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.trace import cache_folder as store

_READ_NONE = ("cache", "capture", "explain")

NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Read large traces afresh and keep none; with any command, before or after its name.",
    ),
]


def leave_cache(wanted: bool) -> None:
    """Switch the cache off for this process, as ``HTA_DSV4_CACHE=off`` does."""
    if wanted:
        os.environ[store.VARIABLE] = "off"


def say_unusable(command: str | None) -> None:
    """One line on stderr where ``HTA_DSV4_CACHE`` names what is no folder or may not be written: nothing is kept then.

    Args:
        command: the one that is run; those that read no trace say nothing of it.
    """
    named, folder = os.environ.get(store.VARIABLE, "").strip(), store.folder()
    if named and folder is not None and command not in _READ_NONE and (why := store.fault(folder)):
        say(f"{store.VARIABLE}={named}: {why}, so no trace is kept; name a folder, or off")


def no_cache_first(args: Sequence[str]) -> list[str]:
    """The words of a command line with ``--no-cache`` before the command, wherever it was written."""
    options = list(args[: args.index("--")] if "--" in args else args)
    flags = [a for a in options if a == "--no-cache"]
    return flags + [a for a in options if a != "--no-cache"] + list(args[len(options) :])


def cache(
    where: Annotated[bool, typer.Option("--where", help="Print the folder and nothing else.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove every trace kept.")] = False,
) -> None:
    """Large traces are kept after the first reading, so that they open at once: where, how many, how large.

    HTA_DSV4_CACHE names another folder, or off; HTA_DSV4_CACHE_MAX_GB limits it (10). Results never differ.

    Example: hta-dsv4 cache --clear
    """
    if where and clear:
        raise HtaDsv4Error("--where and --clear exclude each other; give one")
    folder = store.folder()
    if folder is None:
        named = os.environ.get(store.VARIABLE, "").strip()
        raise HtaDsv4Error(
            f"the cache is off ({store.VARIABLE}={named}); unset it, or name a folder"
            if named
            else f"no home folder to keep traces in; name a folder with {store.VARIABLE}"
        )
    why = store.fault(folder)
    if why and not folder.is_dir():
        raise HtaDsv4Error(
            f"{folder}: {why}, so no trace is kept; name a folder with {store.VARIABLE}, or off"
        )
    if where:
        print(folder)
    elif clear:
        before = store.usage(folder)
        store.clear(folder)
        left = store.usage(folder)
        gone = before.entries - left.entries
        print(f"removed {_traces(gone)}, {(before.bytes - left.bytes) / 1e6:.1f} MB")
        if left.entries:
            raise HtaDsv4Error(f"{folder}: {left.entries} traces cannot be removed; check its permissions")
    else:
        now = store.usage(folder)
        limit = store.limit_bytes() / 1e9
        closed = "; it cannot be written, so nothing new is kept" if why else ""
        print(f"{folder}: {_traces(now.entries)}, {now.bytes / 1e6:.1f} MB of {limit:g} GB{closed}")


def _traces(n: int) -> str:
    return f"{n} trace{'' if n == 1 else 's'}"
