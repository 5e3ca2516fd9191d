"""Where are read traces kept, and how much room do they take? The cache's folder, its limit, and its eviction.

``traces/`` holds an entry each (:mod:`.cache`), ``paths/`` remembered digests (:mod:`.content`). What lies there under
names of another form is somebody else's: never counted, never removed.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "HTA_DSV4_CACHE"
"""Environment variable: another folder, or ``off``."""
LIMIT_VARIABLE = "HTA_DSV4_CACHE_MAX_GB"
"""Environment variable: the size the cache is kept below, in GB (10^9 bytes); 10 by default."""
DEFAULT_LIMIT_GB = 10.0
TRACES, PATHS = "traces", "paths"
MAKING = ".making-"
"""An entry being made, or on its way out, is called so."""
_STRAY_S = 86_400  # a folder being made for longer was left by a process that died
_ENTRY, _RECORD = re.compile(r"\d+-[0-9a-f]{40}-[0-9a-f]{16}"), re.compile(r"[0-9a-f]{32}\.json")


def folder() -> Path | None:
    """The cache's folder, absolute: ``HTA_DSV4_CACHE``, else ``hta_dsv4`` in the user's cache folder.

    Returns:
        The folder, whether it can be used (:func:`fault`) or not; ``None`` where the cache is off.
    """
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in ("off", "0", "no", "none"):
        return None
    try:
        if named:
            return Path(named).expanduser().absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (base if base.is_absolute() else Path.home() / ".cache") / "hta_dsv4"
    except RuntimeError:  # no home
        return None


def fault(where: Path) -> str:
    """Why nothing can be kept in a folder, as far as can be seen without writing; empty where it can.

    Args:
        where: the folder, which need not exist.
    """
    try:
        there = next(p for p in (where, *where.parents) if p.exists())
        if not there.is_dir():
            return f"{there} is a file" if there.is_file() else f"{there} is no folder"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{there} cannot be written"
    except PermissionError:
        return f"{where} cannot be looked at"
    except (OSError, ValueError, StopIteration):
        return "no folder can have such a name"
    return ""


def limit_bytes() -> int:
    """The size the cache is kept below, in bytes."""
    try:
        gb = float(os.environ.get(LIMIT_VARIABLE, ""))
    except ValueError:
        gb = DEFAULT_LIMIT_GB
    gb = DEFAULT_LIMIT_GB if math.isnan(gb) else gb
    return int(max(gb, 0.0) * 1e9) if gb < 1e9 else int(1e18)


def make(path: Path) -> None:
    """Make a folder of the cache, for its owner alone."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)  # names in traces may be private


@dataclass(frozen=True)
class Usage:
    """What is in the cache.

    Attributes:
        entries: traces kept. bytes: what they take on disk.
    """

    entries: int
    bytes: int


def usage(where: Path) -> Usage:
    """How many traces a cache folder keeps, and how large they are."""
    sizes = [size for _, size, _ in _listed(where)]
    return Usage(len(sizes), sum(sizes))


def evict(where: Path, limit: int | None = None) -> int:
    """Remove the traces used longest ago until the rest fits.

    Args:
        where: the cache's folder.
        limit: bytes; by default :func:`limit_bytes`.

    Returns:
        How many were removed.
    """
    limit = limit_bytes() if limit is None else limit
    removed, total = 0, 0
    for used_at, size, entry in sorted(_listed(where, strays=True), reverse=True):
        if entry.name.startswith(MAKING):
            gone = time.time() - used_at > _STRAY_S
        else:
            total += size
            gone = total > limit
        if gone:
            shutil.rmtree(entry, ignore_errors=True)
            removed += not entry.name.startswith(MAKING)
    return removed


def clear(where: Path) -> int:
    """Remove every trace kept and every remembered digest; returns how many traces there were."""
    entries = _listed(where, strays=True)
    for _, _, entry in entries:
        shutil.rmtree(entry, ignore_errors=True)
    with suppress(OSError):
        for record in (where / PATHS).iterdir():
            if _RECORD.fullmatch(record.name):
                record.unlink(missing_ok=True)
    return sum(not e.name.startswith(MAKING) for _, _, e in entries)


def _listed(where: Path, strays: bool = False) -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, folder) of each entry."""
    out = []
    with suppress(OSError):
        for entry in (where / TRACES).iterdir():
            if not (_ENTRY.fullmatch(entry.name) or (strays and entry.name.startswith(MAKING))):
                continue
            with suppress(OSError):  # removed by another process while we look
                size = sum(f.stat().st_size for f in entry.iterdir())
                out.append((entry.stat().st_mtime, size, entry))
    return out
