"""Was this very file read before? Read traces kept on disk, found by the content of the file they came from.

What is kept is the tables *before* classification and steps (those are cheap and always made afresh), the metadata and
the warnings. An entry is named by the file's size, a SHA-256 of its bytes, the options it was read with, and a digest
of the reader's own source: another content, option or version never finds it, so nothing is ever out of date.

To hash 2 GB takes longer than to open an entry. So the digest of a file is remembered by path, and trusted while size,
inode, modification *and* change time are the same, and 16 blocks spread over the file (its first and last among them)
hash the same. The change time cannot be set by programs: a file edited in place with its modification time put back is
noticed. A file hashed so soon after its last change that a further change could bear the same time is hashed again.

Entries are made in a folder of their own and renamed into place, so readers see whole ones or none, and of several
writers one wins. An entry that is damaged is read afresh and replaced. Where the folder cannot be written (read-only,
disk full) the trace is simply not kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat as stat_module
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pyarrow import ArrowException

from hta_dsv4.trace import stored
from hta_dsv4.trace.model import Trace

VARIABLE = "HTA_DSV4_CACHE"
"""Environment variable: another folder, or ``off``."""
LIMIT_VARIABLE = "HTA_DSV4_CACHE_MAX_GB"
"""Environment variable: the size the cache is kept below, in GB (10^9 bytes); 10 by default."""
MIN_JSON_BYTES = 64 << 20
"""JSON below this is not kept: it is read in about half a second, which an entry could hardly better."""
MIN_FILE_BYTES = 256 << 10  # a smaller file cannot hold that much JSON short of a decompression bomb
DEFAULT_LIMIT_GB = 10.0
_BLOCKS, _BLOCK = 16, 1 << 14  # the sample of a file
_FINE_NS, _COARSE_NS = 50_000_000, 2_000_000_000  # how long a file system may give one time to two changes
_STRAY_S = 86_400  # a folder being made for longer was left by a process that died
_ENTRY, _MAKING = re.compile(r"\d+-[0-9a-f]{40}-[0-9a-f]{16}"), ".making-"  # nothing else is ever removed
_RECORD = re.compile(r"[0-9a-f]{32}\.json")
_FAILED = (
    OSError, stored.Damaged, ArrowException, ValueError, TypeError, KeyError, MemoryError, RecursionError,
)  # fmt: skip


def folder() -> Path | None:
    """The cache's folder: ``HTA_DSV4_CACHE``, else ``hta_dsv4`` in the user's cache folder; ``None`` where off."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in ("off", "0", "no", "none"):
        return None
    try:
        if named:
            return Path(named).expanduser()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        return (base if base.is_absolute() else Path.home() / ".cache") / "hta_dsv4"
    except RuntimeError:  # no home
        return None


def limit_bytes() -> int:
    """The size the cache is kept below, in bytes."""
    try:
        gb = float(os.environ.get(LIMIT_VARIABLE, ""))
    except ValueError:
        gb = DEFAULT_LIMIT_GB
    gb = DEFAULT_LIMIT_GB if math.isnan(gb) else gb
    return int(max(gb, 0.0) * 1e9) if gb < 1e9 else int(1e18)


@cache
def reader_version() -> str:
    """A digest of the source of this package: what is read may change with any of it."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


@dataclass
class Slot:
    """The place of one file, read with certain options, in the cache.

    Args:
        path: the trace file.
        options: what its tables depend on besides.

    Use :meth:`find` before reading, :meth:`keep` after; neither raises.
    """

    path: Path
    options: Mapping[str, Any]
    _folder: Path | None = None
    _stat: os.stat_result | None = None
    _hashing: _Hashing | None = None
    _started_ns: int = 0

    def find(self) -> tuple[Trace, int] | None:
        """The trace, if it is kept, and how many bytes of JSON it came from.

        Where it is not, hashing the file begins, beside what else the process does.
        """
        try:
            self._folder = folder()
            if self._folder is None:
                return None
            self._stat = self.path.stat()
            if not stat_module.S_ISREG(self._stat.st_mode) or self._stat.st_size < MIN_FILE_BYTES:
                self._folder = None  # a pipe has no content to know it by
                return None
            self._started_ns = time.time_ns()
            if any(self._entries.glob(f"{self._stat.st_size}-*-{self._key}")):
                digest = self._remembered()
                if digest is None:
                    digest = self._hash().result()
                    self._remember(digest)
                if digest is not None and (found := self._load(digest)) is not None:
                    return found
            self._hash()
        except _FAILED:
            self._folder = None
        return None

    def abandon(self) -> None:
        """The file cannot be read: nothing to keep."""
        if self._hashing is not None:
            self._hashing.stop()

    def keep(self, trace: Trace, json_bytes: int) -> bool:
        """Keep a trace that was read after :meth:`find` found none.

        Args:
            trace: as read.
            json_bytes: bytes of JSON it came from; too few are not worth an entry.

        Returns:
            Whether it is kept.
        """
        if self._folder is None or self._hashing is None:
            return False
        if json_bytes < MIN_JSON_BYTES:
            self.abandon()
            return False
        making = None
        try:
            digest = self._hashing.result()
            if digest is None or not (self._settled and _same(self._stat, self.path.stat())):
                return False  # it changed, or may have, while it was read
            _make(self._entries)
            making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=self._entries))
            stored.store(trace, making, {"path": str(self.path.absolute()), "json_bytes": json_bytes})
            with suppress(OSError):  # another process kept it meanwhile: as good as ours
                making.rename(self._entry(digest))
            self._remember(digest)
            evict(self._folder)
            return self._entry(digest).is_dir()
        except _FAILED:
            return False
        finally:
            if making is not None:
                shutil.rmtree(making, ignore_errors=True)

    # -- entries ----------------------------------------------------------------------------------------

    @property
    def _entries(self) -> Path:
        assert self._folder is not None
        return self._folder / "traces"

    @property
    def _key(self) -> str:
        text = json.dumps([reader_version(), dict(self.options)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _entry(self, digest: str) -> Path:
        assert self._stat is not None
        return self._entries / f"{self._stat.st_size}-{digest[:40]}-{self._key}"

    def _load(self, digest: str) -> tuple[Trace, int] | None:
        entry = self._entry(digest)
        if not entry.is_dir():
            return None
        try:
            found = stored.load(entry, self.path)
            json_bytes = int(stored.about_of(entry)["json_bytes"])
        except _FAILED:
            with suppress(OSError):  # away in one step, so that nobody finds half of it
                gone = entry.rename(entry.with_name(f"{_MAKING}{os.getpid()}-{time.time_ns()}"))
                shutil.rmtree(gone, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(entry)  # used now: the last to be evicted
        return found, json_bytes

    # -- what the file is -------------------------------------------------------------------------------

    def _hash(self) -> _Hashing:
        if self._hashing is None:
            self._hashing = _Hashing(self.path)
            self._hashing.thread.start()
        return self._hashing

    @property
    def _record(self) -> Path:
        assert self._folder is not None
        name = hashlib.blake2b(os.fsencode(self.path.absolute()), digest_size=16).hexdigest()
        return self._folder / "paths" / f"{name}.json"

    def _facts(self) -> list[int | str]:
        """What must be the same for a remembered digest to be believed."""
        s = self._stat
        assert s is not None
        return [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev, _sample(self.path, s.st_size)]

    def _remembered(self) -> str | None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads(self._record.read_bytes())
            if record["facts"] == self._facts() and isinstance(record["digest"], str):
                return str(record["digest"])
        return None

    @property
    def _settled(self) -> bool:
        """Whether a change since we began would show in the file's times: its last one is a tick or more ago."""
        s = self._stat
        assert s is not None
        tick = _FINE_NS if s.st_ctime_ns % 1_000_000 else _COARSE_NS
        return max(s.st_mtime_ns, s.st_ctime_ns) + tick <= self._started_ns

    def _remember(self, digest: str | None) -> None:
        """Remember the digest, unless the file may have changed since it was hashed without its times telling."""
        if digest is None or not self._settled:
            return
        with suppress(OSError):
            _make(self._record.parent)
            _write_whole(self._record, json.dumps({"facts": self._facts(), "digest": digest}))


@dataclass
class _Hashing:
    """SHA-256 of a file in a thread, which works while Python does: both its parts release the lock."""

    path: Path
    thread: threading.Thread = field(init=False)
    _stop: bool = False
    _digest: str | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run, name="hta-dsv4-hash", daemon=True)

    def _run(self) -> None:
        digest = hashlib.sha256()
        with suppress(OSError), open(self.path, "rb", buffering=0) as file:
            while not self._stop and (piece := file.read(1 << 20)):
                digest.update(piece)
            if not self._stop:
                self._digest = digest.hexdigest()

    def result(self) -> str | None:
        """Wait for it; ``None`` where the file could not be read."""
        self.thread.join()
        return self._digest

    def stop(self) -> None:
        """Stop early."""
        self._stop = True


def _sample(path: Path, size: int) -> str:
    """A digest of blocks spread over a file, its first and last among them."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        for i in range(_BLOCKS):
            file.seek(max(size - _BLOCK, 0) * i // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def _same(a: os.stat_result | None, b: os.stat_result) -> bool:
    names = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_dev")
    return a is not None and all(getattr(a, n) == getattr(b, n) for n in names)


def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)  # names in traces may be private


def _write_whole(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


# --- the whole cache -----------------------------------------------------------------------------------


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
        if entry.name.startswith(_MAKING):
            gone = time.time() - used_at > _STRAY_S
        else:
            total += size
            gone = total > limit
        if gone:
            shutil.rmtree(entry, ignore_errors=True)
            removed += not entry.name.startswith(_MAKING)
    return removed


def clear(where: Path) -> int:
    """Remove every trace kept and every remembered digest; returns how many traces there were."""
    entries = _listed(where, strays=True)
    for _, _, entry in entries:
        shutil.rmtree(entry, ignore_errors=True)
    with suppress(OSError):
        for record in (where / "paths").iterdir():
            if _RECORD.fullmatch(record.name):
                record.unlink(missing_ok=True)
    return sum(not e.name.startswith(_MAKING) for _, _, e in entries)


def _listed(where: Path, strays: bool = False) -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, folder) of each entry."""
    out = []
    with suppress(OSError):
        for entry in (where / "traces").iterdir():
            if not (_ENTRY.fullmatch(entry.name) or (strays and entry.name.startswith(_MAKING))):
                continue
            with suppress(OSError):  # removed by another process while we look
                size = sum(f.stat().st_size for f in entry.iterdir())
                out.append((entry.stat().st_mtime, size, entry))
    return out
