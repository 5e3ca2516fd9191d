"""Which bytes does a file hold? A SHA-256 of them, remembered by path.

To hash 2 GB takes longer than to open a kept trace. So the digest of a file is remembered by path, and trusted while
size, inode, modification *and* change time are the same, and 16 blocks spread over the file (its first and last among
them) hash the same. The change time cannot be set by programs: a file edited in place with its modification time put
back is noticed. A file hashed so soon after its last change that a further change could bear the same time is hashed
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat as stat_module
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hta_dsv4.trace.cache_folder import make

_BLOCKS, _BLOCK = 16, 1 << 14  # the sample of a file
_FINE_NS, _COARSE_NS = 50_000_000, 2_000_000_000  # how long a file system may give one time to two changes


class Content:
    """The content of one file, as it is now; what cannot be read raises :class:`OSError`."""

    def __init__(self, path: Path, records: Path) -> None:
        """Look at a file.

        Args:
            path: the file.
            records: the folder of remembered digests.
        """
        self.path = path
        self._stat = path.stat()
        self._record = records / (
            hashlib.blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest() + ".json"
        )
        self._looked_ns = time.time_ns()
        self._hashing: _Hashing | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is a file: a pipe has no content to know it by."""
        return stat_module.S_ISREG(self._stat.st_mode)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._stat.st_size

    def digest(self) -> str | None:
        """The digest: remembered, or computed and remembered; ``None`` where the file could not be read."""
        digest = self._remembered()
        if digest is None and (digest := self.hash().result()) is not None:
            self.remember(digest)
        return digest

    def hash(self) -> _Hashing:
        """Begin to hash the file, beside what else the process does."""
        if self._hashing is None:
            self._hashing = _Hashing(self.path)
            self._hashing.thread.start()
        return self._hashing

    def hashed(self) -> str | None:
        """The digest that :meth:`hash` ends with; ``None`` where the file may have changed since it was looked at."""
        digest = None if self._hashing is None else self._hashing.result()
        return digest if self._settled and self._unchanged() else None

    def stop(self) -> None:
        """Stop hashing: nobody asks for the digest any more."""
        if self._hashing is not None:
            self._hashing.stop()

    def remember(self, digest: str) -> None:
        """Remember the digest, unless the file may have changed since it was hashed without its times telling."""
        if not self._settled:
            return
        with suppress(OSError):
            make(self._record.parent)
            _write_whole(self._record, json.dumps({"facts": self._facts(), "digest": digest}))

    def _remembered(self) -> str | None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = json.loads(self._record.read_bytes())
            if record["facts"] == self._facts() and isinstance(record["digest"], str):
                return str(record["digest"])
        return None

    def _facts(self) -> list[int | str]:
        """What must be the same for a remembered digest to be believed."""
        s = self._stat
        return [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_dev, _sample(self.path, s.st_size)]

    def _unchanged(self) -> bool:
        now = self.path.stat()
        names = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_dev")
        return all(getattr(self._stat, n) == getattr(now, n) for n in names)

    @property
    def _settled(self) -> bool:
        """Whether a change since we looked would show in the file's times: its last one is a tick or more ago."""
        s = self._stat
        tick = _FINE_NS if s.st_ctime_ns % 1_000_000 else _COARSE_NS
        return max(s.st_mtime_ns, s.st_ctime_ns) + tick <= self._looked_ns


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


def _write_whole(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:  # an interrupt too
        os.unlink(name)
        raise
