"""Where does each batch of events begin and end in the JSON? A byte stream -> lists of decoded events.

The text is cut into pieces of a few megabytes without trusting how it is formatted. A cut is *guessed* at
``} , {`` near the end of a piece and *proved* by decoding: JSON is parsed left to right, so when
``[`` + piece + ``]`` is a valid array, every event in it is whole and the cut lies between two events. A wrong
guess leaves the array unfinished ("truncated"), and the guess before it is tried. The end of ``traceEvents``
shows the same way: the decoder names the byte where the array was closed and other text began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from hta_dsv4.trace import repair
from hta_dsv4.trace.cuts import Piece, Pieces, close_before, cuts, ends_open, last_commas
from hta_dsv4.trace.envelope import BAD_UTF8, BLANK, REMEDY_CUT, Envelope, error_byte, reason
from hta_dsv4.trace.limits import EVENT_VARIABLE

BAD_SHOWN = 5  # malformed events reported one by one; the rest are counted


class Decoder(Protocol):
    """Decodes JSON arrays of events, as :class:`~hta_dsv4.trace.schema.EventDecoder` does."""

    def decode(self, text: memoryview) -> list[Any]:
        """Raises :class:`msgspec.DecodeError` on bad syntax, ``ValidationError`` on values of an undeclared type."""
        ...

    def split(self, text: bytes) -> list[Any]:
        """The same array event by event, tolerating such values."""
        ...


@dataclass
class Framing(Envelope):
    """Cuts one trace into batches of events; what stands around them is in the :class:`Envelope`."""

    _sanitize: bool = False  # a repair was needed once: repair each later piece before its first decode
    _want: int = 0  # bytes to decode next: the chunk, or less after damage
    _bad: Counter[str] = field(default_factory=Counter)  # events left out, by category

    def __post_init__(self) -> None:
        self._want = self.chunk

    # -- public -----------------------------------------------------------------------------------------

    def batches(
        self,
        decoder: Decoder,
        ahead: Callable[[Framing, bytes], bytes] | None = None,
    ) -> Iterator[list[Any]]:
        """Give all events of the trace, in file order, some thousands at a time.

        Args:
            decoder: decodes events.
            ahead: may read events first (by :meth:`pieces`); gets the text before the first, returns the rest.

        Yields:
            Lists of events.

        Raises:
            TraceError: empty, not a trace, truncated or malformed.
        """
        pending = self._find_events()
        if ahead is not None:
            pending = ahead(self, pending)
        while True:
            batch, pending, done = self._next(pending, decoder)
            if batch:
                yield batch
            if done:
                break
        if self._bad.total() > BAD_SHOWN:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self._bad.most_common(5))
            self.warnings.append(f"{self._bad.total()} malformed events were left out in all: {kinds}")
        for kind, count in self.repaired.items():
            self.warnings.append(f"{count} {kind} repaired")
        self.warnings.extend(self.stream.notes or ())

    def begin(self) -> bytes:
        """Read up to the first event; the text from there on that was read. :meth:`batches` does it by itself."""
        return self._find_events()

    def pieces(self, pending: bytes) -> Pieces:
        """Cut the text into the pieces that :meth:`batches` would decode, without decoding: the cuts are guesses.

        Whoever decodes a piece proves its cut, if all before it are proved, and calls :meth:`passed`. What is not
        passed must be given back to :meth:`batches`: the pieces, then what :class:`Pieces` still holds.

        Args:
            pending: text before the first piece.
        """
        return Pieces(self.stream, self.chunk, pending)

    def passed(self, piece: Piece) -> None:
        """The events of a piece have been read."""
        self._offset += len(piece.text)

    # -- the events -------------------------------------------------------------------------------------

    def _next(self, pending: bytes, decoder: Decoder) -> tuple[list[Any], bytes, bool]:
        """Decode one batch from the stream: (events, text left over, whether the list has ended)."""
        want = self._want
        # One byte more than the text: room for the bracket that closes a piece on trial.
        text = bytearray().join((b"[", pending, b" "))
        eof = False
        while True:
            if not eof and len(text) <= want:
                more = self._read(want)
                text = bytearray().join((memoryview(text)[:-1], more, b" "))
                eof = not more
            if self._sanitize:
                text = self._sanitized(text)
            error: msgspec.DecodeError | None = None
            for end in cuts(text):
                result = self._try(text, end, decoder)
                if isinstance(result, list):
                    self._want = min(self.chunk, self._want * 2)
                    return result, self._after(text, end), False
                error = result
                if "truncated" not in str(error):
                    break
            else:
                # No cut held: the list ends in this piece, or one event is longer than the piece.
                result = self._try(text, None, decoder)
                if isinstance(result, list):
                    # The text read so far happens to stop at the bracket that closes the list.
                    self._finish_at(text, text.rindex(b"]") + 1)
                    return result, b"", True
                error = result
            assert error is not None
            message = str(error)
            if "trailing characters" in message:
                view = memoryview(text)[: close_before(text, error_byte(error, len(text)))]
                result = self._decode(view, decoder)
                self._finish_at(text, len(view))
                return result, b"", True
            at = error_byte(error, len(text))
            near_end = "truncated" in message or at > len(text) - 64
            if near_end and not eof:
                if len(text) > self.most:
                    what = f"an event at byte {self._offset} is longer than {self.most} bytes"
                    raise self._error(what, f"capture it again, or raise {EVENT_VARIABLE}")
                # No "} , {" at all: one huge event, or entries that are no objects and may be cut at any comma.
                for end in last_commas(text):
                    result = self._try(text, end, decoder)
                    if isinstance(result, list):
                        return result, self._after(text, end), False
                want = len(text) * 2
                continue
            if "truncated" in message or (near_end and ends_open(text)):
                if self._repair(text):  # half a pair of surrogates in the last event looks like a cut
                    continue
                # Cut, or a quote or bracket lost long before: then whole events follow, which a cut has not.
                opened = repair.open_event(bytes(text[:-1]))
                if opened.resume is None:
                    return self._cut_here(text, opened.before, decoder)
                at = opened.start
                error = msgspec.DecodeError(f"an event that does not end (byte {at})")
            # The commonest faults are literal (NaN, stray commas, bad escapes): fix those and look again.
            # "Expected , or }" is none of them but a raw quote or an overwritten piece.
            if ": expected" not in message and self._repair(text):
                continue
            skipped = self._skip_bad(text, error, decoder, eof)
            if skipped is not None:
                return skipped
            want = len(text) * 2  # the next good event is not in this piece

    def _after(self, text: bytearray, end: int) -> bytes:
        """What is left of a text when the events up to a cut are read."""
        return self._advance(bytes(memoryview(text)[end:-1]), 0, end - 1, drop_comma=True)

    def _try(self, text: bytearray, end: int | None, decoder: Decoder) -> list[Any] | msgspec.DecodeError:
        """Decode ``text[:end]`` as a closed array; the error when it is none."""
        if end is None:
            try:
                return self._decode(memoryview(text), decoder)
            except msgspec.DecodeError as error:
                return _bare(error)
        # In place, as copying megabytes per trial costs more than decoding them. Decoded events may go on
        # looking into this text; the byte that is changed and restored belongs to none of them.
        kept, text[end] = text[end], ord("]")
        try:
            return self._decode(memoryview(text)[: end + 1], decoder)
        except msgspec.DecodeError as error:
            return _bare(error)
        finally:
            text[end] = kept

    def _decode(self, view: memoryview, decoder: Decoder) -> list[Any]:
        def either(view: memoryview) -> list[Any]:
            try:
                return decoder.decode(view)
            except msgspec.ValidationError:
                return decoder.split(bytes(view))

        try:
            return either(view)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if "utf-8" not in str(error).lower():
                raise
        fixed = bytes(view).decode("utf-8", "replace").encode()
        self.repaired[BAD_UTF8] += 1
        return either(memoryview(fixed))

    def _repair(self, text: bytearray) -> bool:
        """Whether there is anything to repair that was not yet; repairs it, in place, and all later pieces."""
        if self._sanitize:
            return False
        before = self.repaired.total()
        text[:] = self._sanitized(text)
        self._sanitize = self.repaired.total() > before
        return self._sanitize

    def _sanitized(self, text: bytearray) -> bytearray:
        fixed, counts = repair.sanitize_events(bytes(text))
        self.repaired.update(counts)
        # Positions count in the file, not in the repaired text; inside this piece they may be off by the repair.
        self._offset -= len(fixed) - len(text)
        return bytearray(fixed) if counts else text

    def _skip_bad(
        self, text: bytearray, error: msgspec.DecodeError, decoder: Decoder, eof: bool
    ) -> tuple[list[Any], bytes, bool] | None:
        """An event does not parse: leave it out where it certainly is no GPU activity, else refuse.

        Returns:
            As :meth:`_next`; ``None`` where more text is needed to see where the damage ends.
        """
        at = error_byte(error, len(text))
        bad = repair.bad_event(bytes(text[:-1]), at)
        if bad.resume is None and not eof and len(text) < self.most:
            return None
        if not (bad.harmless or self.salvage):
            what = f"malformed JSON at {self._place(self._offset + at - 1)}: {reason(error)}"
            raise self._error(what, "repair the text there, or read around it with --salvage")
        self.partial |= not bad.harmless
        kind = bad.category or "event"
        if bad.resume is None:
            kind = "text, and all that follows"
        self._bad[kind] += 1
        if self._bad.total() <= BAD_SHOWN:
            place = self._place(self._offset + at - 1)
            shown = bytes(text[bad.start : bad.start + 90]).decode("utf-8", "replace")
            self.warnings.append(
                f"malformed {kind} at {place} left out ({reason(error)}): {' '.join(shown.split())}"
            )
        head: list[Any] = []
        if bad.before > 1:
            head = self._decode(memoryview(bytes(text[: bad.before]) + b"]"), decoder)
        if bad.resume is None:
            return head, b"", True
        # Where there is one there are often more: go on in small pieces so that each costs little.
        self._want = min(self.chunk, 1 << 16)
        self._held = bytes(memoryview(text)[bad.resume : -1]) + self._held
        return head, self._advance(b"", 0, bad.resume - 1), False

    # -- ends -------------------------------------------------------------------------------------------

    def _cut_here(self, text: bytearray, end: int, decoder: Decoder) -> tuple[list[Any], bytes, bool]:
        """The text ends inside an event, the events up to ``end`` being whole: refuse, or keep those."""
        stripped = bytes(text).rstrip(BLANK + b"\0")
        # The last event may be whole, with only the end of the list missing.
        whole = stripped.removesuffix(b",").rstrip(BLANK)
        head, complete = whole + b"]", whole.endswith(b"}") and repair.is_whole(whole)
        if not complete:
            head = bytes(memoryview(text)[:end]) + b"]"
        if self.bare_list and self.stream.cut is None and complete:
            # The Trace Event format lets a bare list go without its closing bracket.
            self.warnings.append("the list of events has no closing bracket (allowed in a bare list)")
        else:
            self._refuse(self._cut_text(text), REMEDY_CUT)
        return self._decode(memoryview(head), decoder), b"", True

    def _cut_text(self, text: bytearray) -> str:
        end = self._offset + len(text) - 2
        why = f" ({self.stream.cut})" if self.stream.cut else ""
        return f"truncated: the JSON ends at byte {end}, inside traceEvents{why}"

    def _finish_at(self, text: bytearray, end: int) -> None:
        rest = bytes(memoryview(text)[end:-1])
        self._offset += end - 1
        self._finish(rest)


def _bare(error: msgspec.DecodeError) -> msgspec.DecodeError:
    """The error without its frames, which would keep every text tried alive while no garbage is collected."""
    error.__context__ = None
    return error.with_traceback(None)
