"""Is what a capture was asked for possible? Checked before the GPU works, not after."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.shipped import traces_dir
from hta_dsv4.trace.manifest import TRACE_SUFFIX, Manifest, manifest_path, stem
from hta_dsv4.trace.toml_text import to_toml

# Said by the capture itself; the caller's details may not say otherwise.
_MEASURED = frozenset(
    {
        "trace",
        "variant",
        "concurrency",
        "steps",
        "warmup",
        "captured_at",
        "timing",
        "device",
        "versions",
        "removed",
    }
)
_LONGEST_NAME = 200  # bytes; a file system allows 255, and temporary names are longer than the final one


def no_cuda_message() -> str:
    """One line for a machine without a GPU, naming the traces that need none."""
    try:
        where = f"; traces captured on an H200 are in {traces_dir()}"
    except HtaDsv4Error:  # an installation without them
        where = ""
    return f"no CUDA device here, so there is nothing to trace{where}"


def check_counts(*, steps: int, warmup: int, baseline: int, concurrency: int) -> None:
    """Check how much is to be run.

    Raises:
        HtaDsv4Error: a number that makes no capture, naming it.
    """
    for name, value, least, why in (
        ("--steps", steps, 1, "a trace needs at least one recorded step"),
        ("--warmup", warmup, 0, "cannot be less than none"),
        ("--baseline", baseline, 1, "the unprofiled step is timed over at least one"),
        ("--concurrency", concurrency, 1, "need at least one request"),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise HtaDsv4Error(f"{name} {value!r}: not a whole number")
        if value < least:
            raise HtaDsv4Error(f"{name} {value}: {why}")


def check_label(variant: str) -> None:
    """Check a variant's label: tables print it.

    Raises:
        HtaDsv4Error: empty, or not one printable line.
    """
    if not isinstance(variant, str) or not variant.strip() or not variant.isprintable():
        raise HtaDsv4Error(f"--variant {variant!r}: the label must be one printable line, and not empty")


def check_details(details: Mapping[str, Any]) -> None:
    """Check further manifest fields.

    Raises:
        HtaDsv4Error: an unknown field, one that the capture measures itself, or a value that TOML cannot hold.
    """
    known = [f.name for f in fields(Manifest) if f.name not in _MEASURED]
    for name in details:
        if name not in known:
            raise HtaDsv4Error(f"details: {name!r} is not one of {', '.join(known)}")
    to_toml({k: v for k, v in details.items() if v is not None})


def companion_path(out: Path) -> Path:
    """Where the eager companion of a trace goes: ``<name>_eager.trace.json.gz`` beside it."""
    return out.with_name(f"{stem(out)}_eager{TRACE_SUFFIX}")


def check_place(out: Path | None) -> None:
    """Check ``--out`` of a command: a file, or a folder that is made where it is not there, in a folder that is.

    A folder above that is missing is a typing error rather than a wish, as in every other command.

    Raises:
        HtaDsv4Error: there is no such folder.
    """
    if out is not None and not out.is_dir() and not out.parent.is_dir():
        raise HtaDsv4Error(
            f"{out}: cannot write there (there is no folder {out.parent}); make it, or choose another --out"
        )


def trace_file(out: str | Path) -> Path:
    """The trace's final name, in a folder that can be written.

    Args:
        out: as the user gave it; ``.trace.json.gz`` is added where it does not end in ``.json`` or ``.gz``.

    Raises:
        HtaDsv4Error: ``out`` is a folder or no name for a file, or its folder cannot be made or written.
    """
    text = os.fspath(out)
    asked = Path(text)
    if not asked.name or "\0" in text or not asked.name.isprintable():
        raise HtaDsv4Error(f"{text!r}: no name for a file; choose another --out")
    if asked.is_dir():
        raise HtaDsv4Error(f"{asked}: is a folder; --out names a file here")
    if asked.exists() and not asked.is_file():
        raise HtaDsv4Error(f"{asked}: is a device, not a file; choose another --out")
    path = asked if asked.suffix in (".json", ".gz") else asked.with_name(asked.name + TRACE_SUFFIX)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise HtaDsv4Error(f"{path.name[:40]}...: longer than {_LONGEST_NAME} bytes; choose a shorter --out")
    probe = manifest_path(path).with_name(f".{path.name}.{os.getpid()}.probe")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise HtaDsv4Error(f"{path}: is a folder; --out names a file here")
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        blocking = next((p for p in path.parents if p.exists()), path.parent)
        raise HtaDsv4Error(
            f"{path}: cannot write there ({blocking} is no folder); choose another --out"
        ) from error
    except OSError as error:
        raise HtaDsv4Error(
            f"{path}: cannot write there ({error.strerror or error}); choose another --out"
        ) from error
    return path
