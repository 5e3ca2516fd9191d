"""What stands around the events of a trace? The top-level keys before and after ``traceEvents``.

Finds where the list of events begins, reads the rest of the file once it has ended, and is the one place that
words errors: each names the file, the place and the remedy.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hta_dsv4.errors import TraceError
from hta_dsv4.trace import repair
from hta_dsv4.trace.container import ByteStream
from hta_dsv4.trace.limits import EVENT_VARIABLE, max_event_bytes

CHUNK = 1 << 20  # bytes of JSON decoded at once; 0.5 to 2 MB read equally fast, more only takes memory
MOST_DEEP = 100  # Kineto's metadata is nested 4 deep
MAX_BLANK = 1 << 20  # blanks and zeros before the JSON; a device such as /dev/zero gives them without end
# Strings whole, so that nothing inside them counts; a quote alone opens a string that is not all there yet.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,"]', re.DOTALL)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_TOP = msgspec.json.Decoder(float_hook=float)  # unlike the decoder's own, reads 1e400 (as infinite)
BAD_UTF8 = "text with invalid UTF-8 (shown as \N{REPLACEMENT CHARACTER})"
BLANK = b" \t\r\n"
_EVENTS = b'"traceEvents":0'  # stands for the events where what is around them is decoded
BOM = b"\xef\xbb\xbf"
REMEDY_CUT = "capture or copy it again, or read what is whole with --salvage"


@dataclass
class Envelope:
    """The text around the events of one trace, and where in the file we are.

    Attributes:
        stream: the JSON bytes.
        salvage: read what can be read of a cut or damaged file instead of refusing it.
        chunk: bytes decoded at once.
        header: top-level keys before ``traceEvents``.
        trailer: top-level keys after it.
        warnings: what was repaired or ignored.
        partial: True once something was left out in salvage.
        repaired: faults repaired, by kind.
        bare_list: the file is only the list of events, without an object around it.
        most: bytes that a single event, or the text before or after the events, may have.
    """

    stream: ByteStream
    salvage: bool = False
    chunk: int = CHUNK
    header: dict[str, Any] = field(default_factory=dict)
    trailer: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    partial: bool = False
    repaired: Counter[str] = field(default_factory=Counter)
    bare_list: bool = False
    most: int = field(default_factory=max_event_bytes)
    _offset: int = 0  # position in the JSON of the first byte of the pending text
    _held: bytes = b""  # text put back after damage

    def _find_events(self) -> bytes:
        """Read up to the first event; returns the text after ``[``."""
        text = b""
        size = 1 << 16
        while True:
            more = self.stream.read(size)
            text += more
            if not text.strip(BLANK + b"\0" + BOM):
                if more and len(text) <= MAX_BLANK:
                    continue
                if more:
                    what = f"not a trace: nothing but blanks and zeros in the first {len(text)} bytes"
                    raise self._error(what, "give a Kineto trace (torch.profiler)")
                self._stop_if_cut(text)
                if self.stream.container != "plain":
                    what = f"no text in the {self.stream.container} data: empty, or truncated before its first block"
                    raise self._error(what, "capture or copy it again")
                raise self._error("empty file: no JSON in it", "capture again")
            if text.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise self._error("the text is UTF-16", "convert it to UTF-8")
            lead = len(text) - len(text.removeprefix(BOM).lstrip(BLANK))
            if text[lead : lead + 1] == b"[":
                first = text[lead + 1 :].lstrip(BLANK)[:1]
                if not first and more and len(text) <= MAX_BLANK:
                    continue
                if first not in (b"{", b"]", b""):  # TOML and INI begin so too
                    raise self._error(
                        "not a trace: a list of no events", "give a Kineto trace (torch.profiler)"
                    )
                self.bare_list = True
                return self._advance(text, lead + 1)
            if text[lead : lead + 1] != b"{":
                raise self._error("not a trace: the file is not JSON", "give a Kineto trace (torch.profiler)")
            found = _locate_events(text, lead)
            if found is not None:
                key, start = found
                self.header = self._object(text[lead:key] + _EVENTS + b"}", lead)
                self.header.pop("traceEvents", None)
                return self._advance(text, start)
            if not more:
                return self._no_events(text[lead:], lead)
            if len(text) > self.most:
                raise self._error(
                    f'not a trace: no "traceEvents" in the first {len(text)} bytes',
                    f"give a trace, or raise {EVENT_VARIABLE}",
                )
            size = len(text)

    def _no_events(self, text: bytes, lead: int) -> bytes:
        """The file ended and there was no list of events: say which kind of "no"."""
        self._offset = lead
        self._stop_if_cut(text)
        try:
            root = msgspec.json.decode(text.rstrip(BLANK + b"\0"))
        except msgspec.DecodeError as error:
            if "truncated" in str(error):
                raise self._error(
                    f"truncated: the JSON ends at byte {lead + len(text)}, before any event", REMEDY_CUT
                ) from error
            place = self._place(lead + error_byte(error, 0))
            raise self._error(
                f"malformed JSON at {place}: {reason(error)}", "capture or copy it again"
            ) from error
        if "traceEvents" in root:
            kind = type(root["traceEvents"]).__name__
            raise self._error(f'not a trace: "traceEvents" is no list but {kind}', "capture again")
        raise self._error('not a trace: no "traceEvents" in it', "give a Kineto trace (torch.profiler)")

    def _object(self, text: bytes, offset: int) -> dict[str, Any]:
        """Decode the text around the events as one JSON object."""
        try:
            value = _TOP.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if "utf-8" in str(error).lower():
                text = text.decode("utf-8", "replace").encode()
                self.repaired[BAD_UTF8] += 1
            fixed, counts = repair.sanitize(text)
            self.repaired.update(counts)
            try:
                value = _TOP.decode(fixed)
            except msgspec.DecodeError as error:
                if self.salvage:
                    self.warnings.append("the top-level metadata is malformed and was left out")
                    self.partial = True
                    return {}
                place = self._place(max(offset + error_byte(error, 0), 0))
                raise self._error(
                    f"malformed JSON at {place}: {reason(error)}", "capture it again"
                ) from error
        if not isinstance(value, dict):
            return {}
        deep = [key for key, part in value.items() if _depth(part) > MOST_DEEP]
        for key in deep:  # what is nested so deep that writing or showing it fails, nobody wants to see
            del value[key]
            self.warnings.append(f"metadata {key[:40]!r}, nested over {MOST_DEEP} deep, was left out")
        return value

    def _finish(self, rest: bytes) -> None:
        """Read what follows the closed list of events."""
        rest, blanks = self._rest(rest)
        end = self._offset + len(rest) + blanks
        rest = rest.rstrip(BLANK + b"\0")
        tail = rest.lstrip(BLANK)
        lead = self._offset + len(rest) - len(tail)
        if self.bare_list:
            if tail:
                self.warnings.append(f"{len(tail)} bytes after the end of the JSON were ignored")
            self._stop_if_cut(rest, all_events=True)
            return
        if tail.startswith(b"}"):
            if tail[1:].strip(BLANK):
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
        text = b"{" + _EVENTS + tail
        lead -= len(text) - len(tail)
        error = _fault(text)
        if error is not None and "trailing characters" not in str(error):
            # Half a pair of surrogates near the end looks like a cut.
            text, counts = repair.sanitize(text)
            self.repaired.update(counts)
            error = _fault(text)
        if error is not None and "trailing characters" in str(error):
            stop = error_byte(error, len(text)) - 1
            self.warnings.append(f"{len(text) - stop} bytes after the end of the JSON were ignored")
            text = text[:stop]
        elif error is not None and "truncated" in str(error):
            self._refuse(
                f"truncated: the JSON ends at byte {end}, in the metadata after the events", REMEDY_CUT
            )
            return
        self.trailer = self._object(text, lead)
        if self.trailer.pop("traceEvents", 0) != 0:
            self.warnings.append(
                'a second "traceEvents" was ignored: two traces seem to be joined in this file'
            )
        self._stop_if_cut(rest, all_events=True)

    def _rest(self, rest: bytes) -> tuple[bytes, int]:
        """Read to the end of the file, so that checksums are checked: (the text, how many more blanks follow it)."""
        parts, size, blanks = [rest], len(rest), 0
        while more := self._read(self.chunk):
            if not more.strip(BLANK + b"\0"):
                blanks += len(more)
                if blanks <= MAX_BLANK:  # padding without end need not be held
                    parts.append(more)
                continue
            size += blanks + len(more)
            if size > self.most or blanks > MAX_BLANK:
                what = f"the text after the events is longer than {self.most} bytes"
                if blanks > MAX_BLANK:
                    what = f"{blanks} bytes of blanks and zeros in the text after the events"
                raise self._error(what, f"give a file that holds one trace, or raise {EVENT_VARIABLE}")
            parts.append(more)
            blanks = 0
        held = sum(map(len, parts)) - size
        return b"".join(parts), blanks - held

    def _read(self, size: int) -> bytes:
        """Read from what was put back, then from the stream."""
        if self._held:
            data, self._held = self._held[:size], self._held[size:]
            return data
        return self.stream.read(size)

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
            stripped = rest.lstrip(BLANK)
            if stripped.startswith(b","):
                self._offset += len(rest) - len(stripped) + 1
                rest = stripped[1:]
        return rest

    def _error(self, what: str, remedy: str) -> TraceError:
        entry = f" (entry {self.stream.member})" if self.stream.member else ""
        return TraceError(f"{self.stream.path}{entry}: {what}; {remedy}")

    def _place(self, offset: int) -> str:
        """``line L, byte B`` of a position in the JSON; the file is read again to count, only on errors."""
        line = repair.line_of(self.stream, offset)
        return f"byte {offset}" if line is None else f"line {line}, byte {offset}"


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
                between = text[key[0] + len(key[1]) : m.start()]
                return (key[0], m.end()) if between.strip(BLANK) == b":" else None
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


def _depth(value: Any) -> int:
    """How deep lists and objects are nested in a value; without recursion."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, list | dict)]:
        depth += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return depth


def _fault(text: bytes) -> msgspec.DecodeError | None:
    """What is wrong with the syntax of a text."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return error
    return None


def _is_events(key: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(key) == "traceEvents")
    except msgspec.DecodeError:
        return False


def error_byte(error: msgspec.DecodeError, default: int) -> int:
    """The byte a decoder's message names, or ``default`` where it names none."""
    found = _AT_BYTE.search(str(error))
    return int(found.group(1)) if found else default


def reason(error: msgspec.DecodeError) -> str:
    """A decoder's message without its preamble and place."""
    return _AT_BYTE.sub("", str(error)).replace("JSON is malformed: ", "").strip()
