"""Where may a text of events be cut? Guesses from the bytes alone, to be proved by decoding (:mod:`.framing`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hta_dsv4.trace.container import ByteStream

TRIAL_BYTES = 256 << 20  # what trying cuts in one text may decode in all: half a second
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_OBJECT_NEXT = re.compile(rb",(?=\s*\{)")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole events, if the guess is right.

    Attributes:
        text: events, the comma after the last, and blanks up to the next event.
        end: where the last event ends; 0 where this is the rest, of which nothing is known.
    """

    text: bytes
    end: int


@dataclass
class Pieces:
    """An iterator over the pieces of a trace; the last, where no cut is in sight, has an ``end`` of 0.

    Attributes:
        stream: where text comes from.
        chunk: bytes of it in a piece, about.
        pending: text that was read and is in no piece yet.
    """

    stream: ByteStream
    chunk: int
    pending: bytes
    _done: bool = False

    def __iter__(self) -> Pieces:
        return self

    def __next__(self) -> Piece:
        """Read and cut the next piece."""
        if self._done:
            raise StopIteration
        more = self.stream.read(self.chunk)
        text = self.pending + more
        end = next(cuts(text), 0) if more else 0
        following = _BOUNDARY.match(text, end - 1) if end else None
        if following is None:
            self._done, self.pending = True, b""
            return Piece(text, 0)
        self.pending = text[following.end() - 1 :]
        return Piece(text[: following.end() - 1], end)


def cuts(text: bytes | bytearray) -> Iterator[int]:
    """Ends of pieces worth trying, from the end of a text backwards.

    Args:
        text: some events, the last cut anywhere.

    Yields:
        Positions just after the ``}`` of a ``} , {``: fewer where the text is long, as each is tried by decoding it.
    """
    end, window = len(text), 1 << 14
    tried, most = 0, max(8, min(200, TRIAL_BYTES // len(text)))
    while end > 1 and tried < most:
        start = max(1, end - window)
        ends = [m.start() + 1 for m in _BOUNDARY.finditer(text, start, end)]
        for cut in reversed(ends[tried - most :]):  # the last of them, as many as may still be tried
            tried += 1
            yield cut
        if ends:
            end = ends[0] + 1
        elif start == 1:
            return
        else:
            end = start + 256  # overlap: a boundary may span two windows
            if window > len(text):
                return
        window *= 4


def last_commas(text: bytearray) -> list[int]:
    """The last commas in a long text without ``} , {``, outside strings only by chance."""
    if len(text) < 1 << 16 or _BOUNDARY.search(text) is not None:
        return []
    last = text.rfind(b",")
    # Inside an object a comma stands before a key: one before a brace is between entries, or in a list of objects.
    tail = len(text) - (1 << 16)
    before_object = [m.start() for m in _OBJECT_NEXT.finditer(text, tail)][-2:]
    return [at for at in (*before_object[::-1], last, text.rfind(b",", 0, max(last, 0))) if at > 1]


def ends_open(text: bytearray) -> bool:
    """Whether the last bytes can only be the start of something (a number or word that was cut)."""
    return re.search(rb"[-+.eE0-9a-zA-Z\\]\s*$", bytes(text[-64:])) is not None


def close_before(text: bytearray, stop: int) -> int:
    """Position just after the ``]`` that closed the array, given where the text after it begins."""
    return text.rfind(b"]", 0, stop - 1) + 1  # the decoder names the byte after the first that is too much
