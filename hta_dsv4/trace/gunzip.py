"""How are gzip files of any make unpacked? By ISA-L, member after member, up to where the data is whole."""

from __future__ import annotations

from typing import Any, Protocol, cast

from isal import isal_zlib

PIECE = 1 << 20  # bytes asked of the file at once; larger buys nothing, measured
GZIP = b"\x1f\x8b"
ISAL_ERROR = cast(type[Exception], isal_zlib.error)  # its stubs call the class an instance


class ByteSource(Protocol):
    """Anything that gives bytes: ``read(n)`` returns at most n bytes, ``b""`` at the end."""

    def read(self, size: int = -1, /) -> bytes:
        """Read at most ``size`` bytes."""
        ...


class Cut(Exception):  # noqa: N818  # the end of a cut stream is an event here, not an error of ours
    """The compressed stream ends early or breaks; carries the bytes decoded until then."""

    def __init__(self, why: str, data: bytes, corrupt: bool = False) -> None:
        super().__init__(why)
        self.data, self.corrupt = data, corrupt


class GzipSource:
    """Gzip by ISA-L, member after member; zero padding between and after members is legal and skipped."""

    def __init__(self, raw: ByteSource, first: bytes, notes: list[str]) -> None:
        self._raw, self._pending, self._notes = raw, first, notes
        self._member: Any = None
        self._members = 0
        self._done = False

    def read(self, size: int = -1, /) -> bytes:
        """Unpack at most ``size`` bytes; raises :class:`Cut` where the data ends or breaks before its end marker."""
        parts: list[bytes] = []
        have = 0
        while have < size and not self._done:
            if not self._pending:
                self._pending = self._raw.read(PIECE)
                if not self._pending:
                    if self._member is None:
                        self._done = True
                        break
                    # The unpacker may have read all and still hold some 64 kB of what it unpacked.
                    if data := self._unpack(b"", size - have, parts):
                        parts.append(data)
                        have += len(data)
                        continue
                    if self._member.eof:
                        self._member = None
                        continue
                    raise Cut("the gzip stream has no end marker", b"".join(parts))
            if self._member is None and not self._next_member():
                continue
            data = self._unpack(self._pending, size - have, parts)
            if self._member.eof:
                self._pending, self._member = self._member.unused_data, None
            else:
                self._pending = self._member.unconsumed_tail
            if data:
                parts.append(data)
                have += len(data)
        return b"".join(parts)

    def _unpack(self, packed: bytes, size: int, before: list[bytes]) -> bytes:
        try:
            return cast(bytes, self._member.decompress(packed, size))
        except ISAL_ERROR as error:
            raise Cut(f"the gzip data is corrupt ({error})", b"".join(before), corrupt=True) from error

    def _next_member(self) -> bool:
        """Skip padding and start the next member; False when more input is wanted or there is no more."""
        self._pending = self._pending.lstrip(b"\0") if self._members else self._pending
        if len(self._pending) < 2:
            more = self._raw.read(PIECE)
            self._pending += more
            if not more:
                if self._pending:
                    self._notes.append("1 byte after the end of the gzip data was ignored")
                self._pending, self._done = b"", True
            return False
        if not self._pending.startswith(GZIP):
            self._notes.append("bytes after the end of the gzip data were ignored (they are not gzip)")
            self._pending, self._done = b"", True
            return False
        self._member = isal_zlib.decompressobj(wbits=31)
        self._members += 1
        return True
