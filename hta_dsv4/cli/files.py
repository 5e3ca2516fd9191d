"""Files that commands write: whole or not at all, and never over something else by mistake."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.parquet import MAGIC
from hta_dsv4.shipped import traces


def write_whole(path: Path, content: bytes, option: str = "-o") -> None:
    """Write a file at once: a reader sees the old content or the new, never a part, also when writing fails.

    Args:
        path: where to.
        content: what.
        option: by which the path was given, for messages.

    Raises:
        HtaDsv4Error: the folder is missing or may not be written, or the path is a folder.
    """
    try:
        if path.is_dir():
            raise HtaDsv4Error(f"{path}: this is a folder; name a file in it with {option}")
        if path.exists() and not path.is_file():  # a pipe or a device is written to, never replaced
            path.write_bytes(content)
            return
        path = Path(os.path.realpath(path))  # through a link, which stays
        beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
        try:
            beside.write_bytes(content)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except BrokenPipeError:  # a reader that has had enough is no error
        return
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise HtaDsv4Error(f"{path}: cannot be written ({said}); name another with {option}") from error


def not_an_input(out: Path, inputs: Iterable[Path], option: str = "-o") -> None:
    """Refuse to write over what is read, or to append to it.

    Args:
        out: where something is to be written.
        inputs: files that are read.
        option: by which ``out`` was given, for the message.

    Raises:
        HtaDsv4Error: the output is one of the inputs, by whatever name.
    """
    if any(out.exists() and one.exists() and out.samefile(one) for one in inputs):
        raise HtaDsv4Error(f"{out}: this is a file being read; name another with {option}")


def parquet_target(path: Path) -> Path:
    """A path that ``--parquet`` may write to; looked at before anything is read, as reading takes long.

    Only a Parquet file is ever written over: a trace, a manifest or rules, read or not, are none. That also catches
    ``--parquet`` taken for a switch like ``--csv``, with a trace behind it.

    Raises:
        HtaDsv4Error: it is a folder, in no folder, some other file, cannot be looked at, or a shipped trace's name.
    """
    try:
        if path.is_dir():
            raise HtaDsv4Error(f"{path}: this is a folder; name a file in it with --parquet")
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as f:
                if f.read(len(MAGIC)) != MAGIC:
                    raise HtaDsv4Error(
                        f"{path}: holds something other than Parquet, a trace perhaps, and is left as it is; "
                        "--parquet takes the file to write"
                    )
        elif not path.exists() and str(path) in traces():
            raise HtaDsv4Error(
                f"{path}: the name of a shipped trace; --parquet takes the file to write, e.g. {path}.parquet"
            )
        elif not path.parent.is_dir():
            raise HtaDsv4Error(f"{path}: there is no folder {path.parent}; make it, or name another file")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise HtaDsv4Error(
            f"{path}: cannot be looked at ({said}); name another file with --parquet"
        ) from error
    return path
