"""Where does each batch of events begin and end in the JSON? A byte stream -> lists of decoded events.

The text is cut into pieces of a few megabytes without trusting how it is formatted. A cut is *guessed* at
``} , {`` near the end of a piece and *proved* by decoding: JSON is parsed left to right, so when
``[`` + piece + ``]`` is a valid array, every event in it is whole and the cut lies between two events. A wrong
guess leaves the array unfinished ("truncated"), and the guess before it is tried. The end of ``traceEvents``
shows the same way: the decoder names the byte where the array was closed and other text began.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from hta_dsv4.errors import TraceError
from hta_dsv4.trace import repair
from hta_dsv4.trace.container import ByteStream

T = TypeVar("T")

CHUNK = 2 << 20  # bytes of JSON decoded at once; 0.25 to 8 MB are within 20 % in speed, memory grows with it
MAX_PENDING = 256 << 20  # a single event, or the text before or after the events, longer than this is refused
BAD_SHOWN = 5  # malformed events reported one by one; the rest are counted
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
# Strings whole, so that nothing inside them counts; a quote alone opens a string that is not all there yet.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,"]', re.DOTALL)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_BLANK = b" \t\r\n"
BOM = b"\xef\xbb\xbf"
REMEDY_CUT = "capture or copy it again, or read what is whole with --salvage"


@dataclass
class Framing:
    """Cuts one trace into batches of events; keeps what stands around them.

    Attributes:
        stream: the JSON bytes.
        salvage: read what can be read of a cut or damaged file instead of refusing it.
        chunk: bytes decoded at once.
        header: top-level keys before ``traceEvents``.
        trailer: top-level keys after it.
        warnings: what was repaired or ignored.
        partial: True once something was left out in salvage.
    """

    stream: ByteStream
    salvage: bool = False
    chunk: int = CHUNK
    header: dict[str, Any] = field(default_factory=dict)
    trailer: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    partial: bool = False
    repaired: Counter[str] = field(default_factory=Counter)
    _offset: int = 0  # position in the JSON of the first byte of the pending text
    _sanitize: bool = False  # a repair was needed once: repair each later piece before its first decode
    _bare_list: bool = False
    _want: int = 0  # bytes to decode next: the chunk, or less after damage
    _bad: Counter[str] = field(default_factory=Counter)  # events left out, by category
    _held: bytes = b""  # text put back after damage

    def __post_init__(self) -> None:
        self._want = self.chunk

    # -- public -----------------------------------------------------------------------------------------

    def batches(
        self, decode: Callable[[memoryview], list[T]], split: Callable[[bytes], list[T]]
    ) -> Iterator[list[T]]:
        """Give all events of the trace, in file order, some thousands at a time.

        Args:
            decode: decodes a JSON array of events; raises :class:`msgspec.DecodeError` on bad syntax and
                :class:`msgspec.ValidationError` on values of an undeclared type.
            split: decodes the same array event by event, tolerating such values.

        Yields:
            Lists of events.

        Raises:
            TraceError: empty, not a trace, truncated or malformed.
        """
        pending = self._find_events()
        while True:
            batch, pending, done = self._next(pending, decode, split)
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

    # -- the text around the events ---------------------------------------------------------------------

    def _find_events(self) -> bytes:
        """Read up to the first event; returns the text after ``[``."""
        text = b""
        size = 1 << 16
        while True:
            more = self.stream.read(size)
            text += more
            if not text.strip(_BLANK + b"\0" + BOM):
                if more:
                    continue
                self._stop_if_cut(text)
                if self.stream.container != "plain":
                    what = f"no text in the {self.stream.container} data: empty, or truncated before its first block"
                    raise self._error(what, "capture or copy it again")
                raise self._error("empty file: no JSON in it", "capture again")
            if text.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise self._error("the text is UTF-16", "convert it to UTF-8")
            lead = len(text) - len(text.removeprefix(BOM).lstrip(_BLANK))
            if text[lead : lead + 1] == b"[":
                self._bare_list = True
                return self._advance(text, lead + 1)
            if text[lead : lead + 1] != b"{":
                raise self._error("not a trace: the file is not JSON", "give a Kineto trace (torch.profiler)")
            found = _locate_events(text, lead)
            if found is not None:
                key, start = found
                head = text[lead:key].rstrip(_BLANK).removesuffix(b",")
                self.header = self._object(head + b"}", lead)
                return self._advance(text, start)
            if not more:
                return self._no_events(text[lead:], lead)
            if len(text) > MAX_PENDING:
                raise self._error(
                    f'not a trace: no "traceEvents" in the first {len(text)} bytes', "give a trace"
                )
            size = len(text)

    def _no_events(self, text: bytes, lead: int) -> bytes:
        """The file ended and there was no list of events: say which kind of "no"."""
        self._offset = lead
        self._stop_if_cut(text)
        try:
            root = msgspec.json.decode(text.rstrip(_BLANK + b"\0"))
        except msgspec.DecodeError as error:
            if "truncated" in str(error):
                raise self._error(
                    f"truncated: the JSON ends at byte {lead + len(text)}, before any event", REMEDY_CUT
                ) from error
            place = self._place(lead + _error_byte(error, 0))
            raise self._error(
                f"malformed JSON at {place}: {_reason(error)}", "capture or copy it again"
            ) from error
        if "traceEvents" in root:
            kind = type(root["traceEvents"]).__name__
            raise self._error(f'not a trace: "traceEvents" is no list but {kind}', "capture again")
        raise self._error('not a trace: no "traceEvents" in it', "give a Kineto trace (torch.profiler)")

    def _object(self, text: bytes, offset: int) -> dict[str, Any]:
        """Decode the text around the events as one JSON object."""
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            fixed, counts = repair.sanitize(text)
            self.repaired.update(counts)
            try:
                value = msgspec.json.decode(fixed)
            except msgspec.DecodeError as error:
                if self.salvage:
                    self.warnings.append("the top-level metadata is malformed and was left out")
                    self.partial = True
                    return {}
                place = self._place(offset + _error_byte(error, 0))
                raise self._error(
                    f"malformed JSON at {place}: {_reason(error)}", "capture it again"
                ) from error
        return value if isinstance(value, dict) else {}

    def _finish(self, rest: bytes) -> None:
        """Read what follows the closed list of events."""
        while (more := self._read(self.chunk)) and len(rest) <= MAX_PENDING:
            rest += more
        end = self._offset + len(rest)
        rest = rest.rstrip(_BLANK + b"\0")
        tail = rest.lstrip(_BLANK)
        lead = self._offset + len(rest) - len(tail)
        if self._bare_list:
            if tail:
                self.warnings.append(f"{len(tail)} bytes after the end of the JSON were ignored")
            self._stop_if_cut(rest, all_events=True)
            return
        if tail.startswith(b"}"):
            if tail[1:].strip(_BLANK):
                self.warnings.append(f"{len(tail) - 1} bytes after the end of the JSON were ignored")
            self._stop_if_cut(rest, all_events=True)
            return
        if not tail or not tail.startswith(b","):
            if tail:
                place = self._place(lead)
                self._refuse(
                    f"malformed JSON at {place}: expected ',' or '}}' after the events", "capture it again"
                )
            else:
                self._refuse(f"truncated: the JSON ends at byte {end}, right after the events", REMEDY_CUT)
            return
        text = b"{" + tail[1:]
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            if "trailing characters" in str(error):
                stop = _error_byte(error, len(text)) - 1
                self.warnings.append(f"{len(text) - stop} bytes after the end of the JSON were ignored")
                text = text[:stop]
            elif "truncated" in str(error):
                self._refuse(
                    f"truncated: the JSON ends at byte {end}, in the metadata after the events", REMEDY_CUT
                )
                return
        self.trailer = self._object(text, lead)
        if self.trailer.pop("traceEvents", None):
            self.warnings.append(
                'a second "traceEvents" was ignored: two traces seem to be joined in this file'
            )
        self._stop_if_cut(rest, all_events=True)

    # -- the events -------------------------------------------------------------------------------------

    def _next(
        self, pending: bytes, decode: Callable[[memoryview], list[T]], split: Callable[[bytes], list[T]]
    ) -> tuple[list[T], bytes, bool]:
        """Decode one batch from the stream: (events, text left over, whether the list has ended)."""
        want = self._want
        # One byte more than the text: room for the bracket that closes a piece on trial.
        text = bytearray(b"[" + pending + b" ")
        eof = False
        while True:
            if not eof and len(text) <= want:
                more = self._read(want)
                text = bytearray(text[:-1] + more + b" ")
                eof = not more
            if self._sanitize:
                text = self._sanitized(text)
            error: msgspec.DecodeError | None = None
            for end in _cuts(text):
                result = self._try(text, end, decode, split)
                if isinstance(result, list):
                    self._want = min(self.chunk, self._want * 2)
                    rest = bytes(memoryview(text)[end:-1])
                    return result, self._advance(rest, 0, end - 1, drop_comma=True), False
                error = result
                if "truncated" not in str(error):
                    break
            else:
                # No cut held: the list ends in this piece, or one event is longer than the piece.
                result = self._try(text, None, decode, split)
                if isinstance(result, list):
                    if not self._bare_list:
                        self._refuse(self._cut_text(text), REMEDY_CUT)
                    self._finish_at(text, len(text) - 1)
                    return result, b"", True
                error = result
            assert error is not None
            message = str(error)
            if "trailing characters" in message:
                view = memoryview(text)[: _close_before(text, _error_byte(error, len(text)))]
                result = self._decode(view, decode, split)
                self._finish_at(text, len(view))
                return result, b"", True
            at = _error_byte(error, len(text))
            near_end = "truncated" in message or at > len(text) - 64
            if near_end and not eof:
                if len(text) > MAX_PENDING:
                    raise self._error(
                        f"an event at byte {self._offset} is longer than {MAX_PENDING} bytes",
                        "capture it again",
                    )
                want = len(text) * 2
                continue
            if "truncated" in message or (near_end and _ends_open(text)):
                return self._cut_here(text, decode, split)
            if not self._sanitize and ": expected" not in message:
                # The commonest faults are literal (NaN, stray commas, bad escapes): fix those and look again.
                # "Expected , or }" is none of them but a raw quote or an overwritten piece.
                before = self.repaired.total()
                text = self._sanitized(text)
                if self.repaired.total() > before:
                    self._sanitize = True
                    continue
            skipped = self._skip_bad(text, error, decode, split, eof)
            if skipped is not None:
                return skipped
            want = len(text) * 2  # the next good event is not in this piece

    def _try(
        self,
        text: bytearray,
        end: int | None,
        decode: Callable[[memoryview], list[T]],
        split: Callable[[bytes], list[T]],
    ) -> list[T] | msgspec.DecodeError:
        """Decode ``text[:end]`` as a closed array; the error when it is none."""
        if end is None:
            try:
                return self._decode(memoryview(text), decode, split)
            except msgspec.DecodeError as error:
                return error
        # In place, as copying megabytes per trial costs more than decoding them. Decoded events may go on
        # looking into this text; the byte that is changed and restored belongs to none of them.
        kept, text[end] = text[end], ord("]")
        try:
            return self._decode(memoryview(text)[: end + 1], decode, split)
        except msgspec.DecodeError as error:
            return error
        finally:
            text[end] = kept

    def _decode(
        self, view: memoryview, decode: Callable[[memoryview], list[T]], split: Callable[[bytes], list[T]]
    ) -> list[T]:
        try:
            return decode(view)
        except msgspec.ValidationError:
            return split(bytes(view))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if "utf-8" not in str(error).lower():
                raise
            fixed = bytes(view).decode("utf-8", "replace").encode()
            self.repaired["text with invalid UTF-8 (shown as \N{REPLACEMENT CHARACTER})"] += 1
            try:
                return decode(memoryview(fixed))
            except msgspec.ValidationError:
                return split(fixed)

    def _sanitized(self, text: bytearray) -> bytearray:
        fixed, counts = repair.sanitize(bytes(text))
        self.repaired.update(counts)
        # Positions count in the file, not in the repaired text; inside this piece they may be off by the repair.
        self._offset -= len(fixed) - len(text)
        return bytearray(fixed) if counts else text

    def _read(self, size: int) -> bytes:
        """Read from what was put back, then from the stream."""
        if self._held:
            data, self._held = self._held[:size], self._held[size:]
            return data
        return self.stream.read(size)

    def _skip_bad(
        self,
        text: bytearray,
        error: msgspec.DecodeError,
        decode: Callable[[memoryview], list[T]],
        split: Callable[[bytes], list[T]],
        eof: bool,
    ) -> tuple[list[T], bytes, bool] | None:
        """An event does not parse: leave it out where it certainly is no GPU activity, else refuse.

        Returns:
            As :meth:`_next`; ``None`` where more text is needed to see where the damage ends.
        """
        at = _error_byte(error, len(text))
        bad = repair.bad_event(bytes(text[:-1]), at)
        if bad.resume is None and not eof and len(text) < MAX_PENDING:
            return None
        if not (bad.harmless or self.salvage):
            what = f"malformed JSON at {self._place(self._offset + at - 1)}: {_reason(error)}"
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
                f"malformed {kind} at {place} left out ({_reason(error)}): {' '.join(shown.split())}"
            )
        head: list[T] = []
        if bad.before > 1:
            head = self._decode(memoryview(bytes(text[: bad.before]) + b"]"), decode, split)
        if bad.resume is None:
            return head, b"", True
        # Where there is one there are often more: go on in small pieces so that each costs little.
        self._want = min(self.chunk, 1 << 16)
        self._held = bytes(memoryview(text)[bad.resume : -1]) + self._held
        return head, self._advance(b"", 0, bad.resume - 1), False

    # -- ends -------------------------------------------------------------------------------------------

    def _cut_here(
        self, text: bytearray, decode: Callable[[memoryview], list[T]], split: Callable[[bytes], list[T]]
    ) -> tuple[list[T], bytes, bool]:
        """The text ends inside an event: refuse, or keep the events before it."""
        stripped = bytes(text).rstrip(_BLANK + b"\0")
        if (
            self._bare_list
            and self.stream.cut is None
            and stripped.removesuffix(b",").rstrip(_BLANK).endswith(b"}")
        ):
            # The Trace Event format lets a bare list go without its closing bracket.
            body = stripped.removesuffix(b",") + b"]"  # a comma may come before the missing bracket
            try:
                result = self._decode(memoryview(body), decode, split)
            except msgspec.DecodeError:
                pass
            else:
                self.warnings.append("the list of events has no closing bracket (allowed in a bare list)")
                return result, b"", True
        self._refuse(self._cut_text(text), REMEDY_CUT)
        end = len(stripped)
        for _ in range(64):
            end = stripped.rfind(b"}", 0, end)
            if end < 0:
                break
            try:
                result = self._decode(memoryview(stripped[: end + 1] + b"]"), decode, split)
            except msgspec.DecodeError:
                continue
            return result, b"", True
        return [], b"", True

    def _cut_text(self, text: bytearray) -> str:
        end = self._offset + len(text) - 2
        why = f" ({self.stream.cut})" if self.stream.cut else ""
        return f"truncated: the JSON ends at byte {end}, inside traceEvents{why}"

    def _finish_at(self, text: bytearray, end: int) -> None:
        rest = bytes(memoryview(text)[end:-1])
        self._offset += end - 1
        self._finish(rest)

    def _stop_if_cut(self, text: bytes, all_events: bool = False) -> None:
        """A container without its end marker is a cut file even where its JSON happens to be whole."""
        if self.stream.cut is None:
            return
        where = "after the events" if all_events else f"at byte {len(text)} of the JSON"
        self._refuse(f"truncated {where}: {self.stream.cut}", REMEDY_CUT)

    def _refuse(self, what: str, remedy: str) -> None:
        """An error, or in salvage a warning that makes the trace partial."""
        if not self.salvage:
            raise self._error(what, remedy)
        self.partial = True
        self.warnings.append(f"salvaged: {what}; only what was whole before it is read")

    def _advance(
        self, text: bytes, start: int, consumed: int | None = None, drop_comma: bool = False
    ) -> bytes:
        """Drop what is done with; keeps count of where in the JSON the rest begins."""
        self._offset += start if consumed is None else consumed
        rest = text[start:]
        if drop_comma:
            stripped = rest.lstrip(_BLANK)
            if stripped.startswith(b","):
                self._offset += len(rest) - len(stripped) + 1
                rest = stripped[1:]
        return rest

    def _error(self, what: str, remedy: str) -> TraceError:
        return TraceError(f"{self.stream.path}: {what}; {remedy}")

    def _place(self, offset: int) -> str:
        """``line L, byte B`` of a position in the JSON; the file is read again to count, only on errors."""
        line = repair.line_of(self.stream, offset)
        return f"byte {offset}" if line is None else f"line {line}, byte {offset}"


def _cuts(text: bytearray) -> Iterator[int]:
    """Ends of pieces worth trying: just after the ``}`` of ``} , {``, from the end of the text backwards."""
    end, window = len(text), 1 << 14
    tried = 0
    while end > 1 and tried < 200:
        start = max(1, end - window)
        ends = [m.start() + 1 for m in _BOUNDARY.finditer(text, start, end)]
        for cut in reversed(ends):
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


def _ends_open(text: bytearray) -> bool:
    """Whether the last bytes can only be the start of something (a number or word that was cut)."""
    return re.search(rb"[-+.eE0-9a-zA-Z\\]\s*$", bytes(text[-64:])) is not None


def _locate_events(text: bytes, start: int) -> tuple[int, int] | None:
    """Find the top-level key ``traceEvents`` whose value is a list: (start of the key, after the ``[``)."""
    depth = 0
    expect_key = False
    key: tuple[int, bytes] | None = None
    after_colon = False
    for m in _TOKEN.finditer(text, start):
        c = text[m.start()]
        if m.group() == b'"':
            return None
        if c in b"{[":
            if c == ord("[") and depth == 1 and after_colon and key is not None and _is_events(key[1]):
                return key[0], m.end()
            depth += 1
            expect_key = depth == 1
            after_colon = False
        elif c in b"}]":
            depth -= 1
            if depth == 0:
                return None
            after_colon = False
        elif depth == 1:
            if c == ord(","):
                expect_key, after_colon = True, False
            elif c == ord(":"):
                after_colon = True
            elif expect_key:
                key, expect_key = (m.start(), m.group()), False
    return None


def _is_events(key: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(key) == "traceEvents")
    except msgspec.DecodeError:
        return False


def _close_before(text: bytearray, stop: int) -> int:
    """Position just after the ``]`` that closed the array, given where the text after it begins."""
    return text.rfind(b"]", 0, stop - 1) + 1  # the decoder names the byte after the first that is too much


def _error_byte(error: msgspec.DecodeError, default: int) -> int:
    found = _AT_BYTE.search(str(error))
    return int(found.group(1)) if found else default


def _reason(error: msgspec.DecodeError) -> str:
    return _AT_BYTE.sub("", str(error)).replace("JSON is malformed: ", "").strip()
