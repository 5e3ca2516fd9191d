"""Was this very file read before? Read traces kept on disk, found by the content of the file they came from.

What is kept is the tables *before* classification and steps (those are cheap and always made afresh), the metadata and
the warnings. An entry is named by the file's size, a SHA-256 of its bytes, the options it was read with, and a digest
of the reader's own source: another content, option or version never finds it, so nothing is ever out of date.

Entries are made in a folder of their own and renamed into place, so readers see whole ones or none, and of several
writers one wins. An entry that is damaged is read afresh and replaced. Where the folder cannot be written (read-only,
disk full) the trace is simply not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyarrow import ArrowException

from hta_dsv4.trace import stored
from hta_dsv4.trace.cache_folder import MAKING, PATHS, TRACES, evict, folder, make
from hta_dsv4.trace.content import Content
from hta_dsv4.trace.model import Trace

MIN_JSON_BYTES = 64 << 20
"""JSON below this is not kept: it is read in about half a second, which an entry could hardly better."""
MIN_FILE_BYTES = 256 << 10  # a smaller file cannot hold that much JSON short of a decompression bomb
_FAILED = (
    OSError, stored.Damaged, ArrowException, ValueError, TypeError, KeyError, MemoryError, RecursionError,
)  # fmt: skip


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
    _content: Content | None = None

    def find(self) -> tuple[Trace, int] | None:
        """The trace, if it is kept, and how many bytes of JSON it came from.

        Where it is not, hashing the file begins, beside what else the process does.
        """
        self._folder, self._content = folder(), None
        if self._folder is None:
            return None
        try:
            content = Content(self.path, self._folder / PATHS)
            if not content.is_file or content.size < MIN_FILE_BYTES:
                return None
            if any(self._entries.glob(f"{content.size}-*-{self._key}")):
                digest = content.digest()
                if digest is not None and (found := self._load(self._entry(content, digest))) is not None:
                    return found
            content.hash()
            self._content = content
        except _FAILED:
            pass  # then nothing is kept either
        return None

    def abandon(self) -> None:
        """The file cannot be read: nothing to keep."""
        if self._content is not None:
            self._content.stop()

    def keep(self, trace: Trace, json_bytes: int) -> bool:
        """Keep a trace that was read after :meth:`find` found none.

        Args:
            trace: as read.
            json_bytes: bytes of JSON it came from; too few are not worth an entry.

        Returns:
            Whether it is kept.
        """
        if self._folder is None or self._content is None:
            return False
        if json_bytes < MIN_JSON_BYTES:
            self.abandon()
            return False
        making = None
        try:
            digest = self._content.hashed()
            if digest is None:
                return False
            make(self._entries)
            making = Path(tempfile.mkdtemp(prefix=MAKING, dir=self._entries))
            stored.store(trace, making, {"path": str(self.path.absolute()), "json_bytes": json_bytes})
            entry = self._entry(self._content, digest)
            with suppress(OSError):  # another process kept it meanwhile: as good as ours
                making.rename(entry)
            self._content.remember(digest)
            evict(self._folder)
            return entry.is_dir()
        except _FAILED:
            return False
        finally:
            if making is not None:
                shutil.rmtree(making, ignore_errors=True)

    @property
    def _entries(self) -> Path:
        assert self._folder is not None
        return self._folder / TRACES

    @property
    def _key(self) -> str:
        text = json.dumps([reader_version(), dict(self.options)], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _entry(self, content: Content, digest: str) -> Path:
        return self._entries / f"{content.size}-{digest[:40]}-{self._key}"

    def _load(self, entry: Path) -> tuple[Trace, int] | None:
        if not entry.is_dir():
            return None
        try:
            found = stored.load(entry, self.path)
            json_bytes = int(stored.about_of(entry)["json_bytes"])
        except _FAILED:
            with suppress(OSError):  # away in one step, so that nobody finds half of it
                gone = entry.rename(entry.with_name(f"{MAKING}{os.getpid()}-{time.time_ns()}"))
                shutil.rmtree(gone, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(entry)  # used now: the last to be evicted
        return found, json_bytes
