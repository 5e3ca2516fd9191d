"""What is this file wrapped in? Bytes on disk -> a stream of JSON bytes, in pieces, whatever the name says.

Plain text, gzip (several members, zero padding), zstd and zip are told apart by their first bytes, and may be
nested (a zip of ``.json.gz``). Nothing here looks inside the JSON, and no more than a few megabytes are held.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import zstandard

try:
    from lzma import LZMAError
except ImportError:  # a Python built without it cannot meet it either
    LZMAError = OSError  # type: ignore[assignment, misc, unused-ignore]

from hta_dsv4.errors import TraceError
from hta_dsv4.trace.gunzip import GZIP, ISAL_ERROR, PIECE, ByteSource, Cut, GzipSource
from hta_dsv4.trace.limits import RATIO_VARIABLE
from hta_dsv4.trace.limits import max_ratio as most_ratio

ZSTD, ZIP, ZIP_EMPTY = b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06"
_MAX_NESTING = 3
# What the unpackers raise on data they cannot read: a bad CRC, an encrypted or exotic zip entry, offsets and sizes
# that point nowhere (OSError, ValueError, struct.error and OverflowError come out of zipfile then).
_UNPACKING: tuple[type[BaseException], ...] = (
    zstandard.ZstdError, zipfile.BadZipFile, zlib.error, LZMAError, ISAL_ERROR, struct.error, OSError, RuntimeError,
    ValueError, OverflowError, KeyError,
)  # fmt: skip
_BROKEN: tuple[type[BaseException], ...] = (*_UNPACKING, EOFError)
RATIO_FREE = (
    256 << 20
)  # bytes that may come out before the ratio is judged: padding in small files is harmless

Progress = Callable[[int, int], None]


@dataclass
class ByteStream:
    """Decompressed bytes of one trace, with what happened on the way.

    Attributes:
        path: the file on disk.
        source: where decompressed bytes come from.
        raw: the file itself, whose position says how far we are.
        size: bytes of the file on disk.
        container: ``plain``, ``gzip``, ``zstd``, ``zip`` or a nesting such as ``zip/gzip``.
        max_ratio: decompressed to stored bytes beyond which the file is refused.
        progress: called with (bytes of the file read, bytes of the file) after each read.
        cut: why the container ended before its own end marker; ``None`` while it is whole.
        notes: what was ignored, one sentence each.
        member: which entry of a zip this is, where one was named.
        lenient: take corrupt data for the end (see ``cut``) instead of refusing the file.
        out: bytes given so far.
    """

    path: Path
    source: ByteSource
    raw: IO[bytes]
    size: int
    container: str
    max_ratio: float = field(default_factory=most_ratio)
    progress: Progress | None = None
    cut: str | None = None
    notes: list[str] | None = None
    member: str | None = None
    lenient: bool = False
    out: int = 0

    def read(self, size: int) -> bytes:
        """Give at most ``size`` bytes; ``b""`` at the end, be it the real one or a cut (see :attr:`cut`).

        Raises:
            TraceError: the container is corrupt, or unpacks to more than ``max_ratio`` times its size.
        """
        if self.cut is not None:
            return b""
        try:
            data = self.source.read(size)
        except Cut as cut:
            if cut.corrupt and not self.lenient:
                raise self._corrupt(self.out + len(cut.data), cut) from cut
            self.cut, data = str(cut), cut.data
        except EOFError as error:
            self.cut = f"the {self.container} data ends early ({_one_line(error)})"
            return b""
        except _UNPACKING as error:
            if self.container == "plain":
                raise _unreadable(self.path, error) from error
            if not self.lenient:
                raise self._corrupt(self.out, error) from error
            self.cut = f"the {self.container} data is corrupt ({_one_line(error)})"
            return b""
        self.out += len(data)
        # A pipe has no size: nothing to compare with, nothing to report.
        if self.size and self.out > RATIO_FREE and self.out > self.max_ratio * self.size:
            raise TraceError(
                f"{self.path}: unpacks to more than {self.max_ratio:g} times its {self.size} bytes, which no "
                f"trace does; if it is genuine, raise {RATIO_VARIABLE}"
            )
        if self.progress is not None and self.size:
            self.progress(min(self.raw.tell(), self.size), self.size)
        return data

    def _corrupt(self, after: int, why: BaseException) -> TraceError:
        return TraceError(
            f"{self.path}: the {self.container} data is corrupt after {after} decompressed bytes "
            f"({_one_line(why)}); copy or capture the file again, or read what is whole with --salvage"
        )

    def close(self) -> None:
        """Close the file."""
        self.raw.close()


class _Prefixed:
    """A source with some bytes put back in front."""

    def __init__(self, first: bytes, rest: ByteSource) -> None:
        self._first, self._rest = first, rest

    def read(self, size: int = -1, /) -> bytes:
        if self._first:
            if size < 0 or size >= len(self._first):
                first, self._first = self._first, b""
                return first
            first, self._first = self._first[:size], self._first[size:]
            return first
        return self._rest.read(size)


def members(path: Path) -> list[str]:
    """The entries of a zip that may be traces, in archive order; empty when the file is not a zip."""
    try:
        with path.open("rb") as f:
            if f.read(4) not in (ZIP, ZIP_EMPTY):
                return []
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        with zipfile.ZipFile(path) as z:
            names = [i.filename for i in z.infolist() if not i.is_dir() and i.file_size]
    except _UNPACKING as error:
        raise TraceError(
            f"{path}: the zip archive cannot be read ({_one_line(error)}); copy it again"
        ) from error
    names = [n for n in names if not n.startswith("__MACOSX/") and not Path(n).name.startswith(".")]
    likely = [n for n in names if n.lower().endswith((".json", ".gz", ".zst", ".zstd", ".trace"))]
    return likely or names


def open_trace(
    path: Path,
    *,
    member: str | None = None,
    max_ratio: float | None = None,
    progress: Progress | None = None,
    lenient: bool = False,
) -> ByteStream:
    """Open a trace file for reading its JSON bytes.

    Args:
        path: the file.
        member: which entry of a zip; may be left out when there is one.
        max_ratio: see :class:`ByteStream`; by default as :mod:`hta_dsv4.trace.limits` says.
        progress: see :class:`ByteStream`.
        lenient: see :class:`ByteStream`.

    Returns:
        The stream, at the first byte of the JSON (a UTF-8 byte order mark is left in place).

    Raises:
        TraceError: missing, a folder, empty, unreadable, an unknown archive, or a zip with several traces.
    """
    try:
        if path.is_dir():
            raise TraceError(f"{path}: is a folder; give one trace file, or read it as a folder of ranks")
        raw: IO[bytes] = path.open("rb")
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file; check the path") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, error) from error
    size = path.stat().st_size
    if size == 0 and path.is_file():
        raw.close()
        raise TraceError(f"{path}: empty file (0 bytes); the profiler wrote nothing, capture again")
    try:
        notes: list[str] = []
        source, kinds = _unwrap(path, raw, raw, member, notes)
    except BaseException:
        raw.close()
        raise
    ratio = most_ratio() if max_ratio is None else max_ratio
    return ByteStream(
        path, source, raw, size, "/".join(kinds) or "plain", ratio, progress, None, notes, member, lenient
    )


def _unwrap(
    path: Path, raw: IO[bytes], source: ByteSource, member: str | None, notes: list[str]
) -> tuple[ByteSource, list[str]]:
    """Peel containers off until text is left."""
    kinds: list[str] = []
    while True:
        try:
            first = source.read(512)
        except Cut as cut:
            first = cut.data
            if not first:
                raise TraceError(
                    f"{path}: truncated: {cut} and no data before it; copy or capture the file again"
                ) from cut
        except _BROKEN as e:
            if not kinds:  # the file itself, before anything is unpacked
                raise _unreadable(path, e) from e
            raise TraceError(
                f"{path}: the {'/'.join(kinds)} data cannot be unpacked ({_one_line(e)}); copy the file again"
            ) from e
        if first[257:262] == b"ustar":
            raise TraceError(f"{path}: is a tar archive; unpack it and give the trace inside")
        if len(kinds) >= _MAX_NESTING and first.startswith((GZIP, ZSTD, ZIP)):
            raise TraceError(f"{path}: is packed more than {_MAX_NESTING} times over; unpack it by hand")
        if first.startswith(GZIP):
            kinds.append("gzip")
            source = GzipSource(source, first, notes)
        elif first.startswith(ZSTD):
            kinds.append("zstd")
            context = zstandard.ZstdDecompressor()
            # The reader asks its source for read() alone.
            source = context.stream_reader(cast(IO[bytes], _Prefixed(first, source)), read_across_frames=True)
        elif first.startswith((ZIP, ZIP_EMPTY)):
            kinds.append("zip")
            source = _open_member(path, raw if len(kinds) == 1 else None, member)
        else:
            return _Prefixed(first, source), kinds


def _open_member(path: Path, raw: IO[bytes] | None, member: str | None) -> ByteSource:
    if raw is None:
        raise TraceError(f"{path}: a zip inside another container; unpack the outer one first")
    if member is None:
        names = members(path)
        if len(names) != 1:
            shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
            what = f"the zip holds {len(names)} files ({shown}); unpack it, or give it alone to read them as ranks"
            raise TraceError(
                f"{path}: {what if names else 'not a trace: the zip holds no file; copy it again'}"
            )
        member = names[0]
    raw.seek(0)
    try:
        return zipfile.ZipFile(raw).open(member)
    except _BROKEN as error:
        raise TraceError(
            f"{path}: entry {member} of the zip cannot be opened ({_one_line(error)})"
        ) from error


def _unreadable(path: Path, error: BaseException) -> TraceError:
    why = getattr(error, "strerror", None) or _one_line(error)
    return TraceError(f"{path}: cannot be read ({why}); check the file and its permissions")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def pieces(stream: ByteStream, size: int = PIECE) -> Iterator[bytes]:
    """All pieces of a stream, one after another (for counting lines, hashing, and the like)."""
    while data := stream.read(size):
        yield data
