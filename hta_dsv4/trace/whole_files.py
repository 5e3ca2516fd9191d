"""Files that captures leave: all of them whole, or none. Torch-free."""

from __future__ import annotations

import os
from pathlib import Path

from hta_dsv4.errors import HtaDsv4Error


def write_atomically(*files: tuple[Path, bytes]) -> None:
    """Write beside the final names, then rename: a reader sees the old files or the new ones, whole.

    Args:
        files: final names and contents; the renames follow one another, the last name appearing last.

    Raises:
        HtaDsv4Error: the folder cannot be written or the disk is full; nothing new is left behind.
    """
    done: list[Path] = []
    path = files[0][0]
    try:
        for path, data in files:
            with _partial(path).open("wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
        for path, _ in files:
            _partial(path).replace(path)
            done.append(path)
    except BaseException as error:  # an interrupt too must leave nothing half done
        for unfinished, _ in files:
            _partial(unfinished).unlink(missing_ok=True)
        for final in done:  # a trace whose conditions nobody knows is not left behind
            final.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        reason = error.strerror or error
        raise HtaDsv4Error(f"{path}: cannot write ({reason}); choose another --out or free space") from error


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
