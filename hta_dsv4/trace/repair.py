"""What is certainly meant by this broken JSON? Repairs that cannot change a number, and where damage ends.

Only faults with one possible meaning are repaired: literals JSON does not know, commas before a closing
bracket, escapes and control characters that JSON forbids inside strings. Everything else is reported.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import msgspec

from hta_dsv4.errors import TraceError
from hta_dsv4.trace.container import ByteStream, open_trace, pieces

# One match takes a run of clean text (so that the callback runs per fault, not per string), or one of: a
# string that holds escapes or control characters (group 1); a string still open where the text ends (no group,
# kept); a literal that JSON does not know (2); a comma before a closing bracket (3).
_FAULT = re.compile(
    rb"""(?:[^"NI,\-]+|,(?!\s*[\]}])|-(?![NI])|"[^"\\\x00-\x1f]*"){1,400}"""
    rb"""|("[^"\\]*(?:\\.[^"\\]*)*")"""
    rb"""|"[^"\\]*(?:\\.[^"\\]*)*\\?\Z"""
    rb"""|(-?Infinity|-?NaN)|(,)(?=\s*[\]}])""",
    re.DOTALL,
)
# Inside a string: a pair of surrogates and valid escapes pass; half a pair (group 1), a backslash that escapes
# nothing (2) and a raw control character (3) do not.
_BAD_IN_STRING = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
    rb"|(\\)|([\x00-\x1f])"
)
_EVENT_START = re.compile(rb"\}\s*,\s*(?=\{)")
_LIST_END = re.compile(rb"\}\s*\]")
_PHASE = re.compile(rb'"ph"\s*:')
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]*)"')
# Events that carry no GPU time: leaving one out changes no total.
HARMLESS = frozenset({"python_function", "cpu_op", "user_annotation", "overhead", "Trace", "ac2g", "fwdbwd"})


def sanitize(text: bytes) -> tuple[bytes, Counter[str]]:
    """Repair what has only one possible meaning.

    Args:
        text: JSON text, whole or cut.

    Returns:
        The text repaired, and how many faults of each kind there were (empty: the text is as it was).
    """
    fixed, counts, _ = _repaired(text)
    return fixed, counts


def sanitize_events(text: bytes) -> tuple[bytes, Counter[str]]:
    """As :func:`sanitize`, but nothing behind a fault that cannot be repaired is touched.

    A quote too many or too few makes strings of what is none, and the other way round, so behind it nothing can be
    told to be a fault.

    Args:
        text: ``[`` and events, perhaps cut.
    """
    fixed, counts, edits = _repaired(text)
    at = _fault_at(fixed) if counts else None
    if at is None:
        return fixed, counts
    for end, grown in edits:
        if end + grown > at:
            break
        at -= grown
    head, counts = sanitize(text[:at])
    return head + text[at:], counts


def _fault_at(text: bytes) -> int | None:
    """Where a list of events ceases to be JSON; ``None`` where it only ends early, or goes on after its end."""
    try:
        msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        found = re.search(r"malformed.*\(byte (\d+)\)", str(error))
        return int(found.group(1)) if found and "trailing characters" not in str(error) else None
    return None


def _repaired(text: bytes) -> tuple[bytes, Counter[str], list[tuple[int, int]]]:
    """The text repaired, the faults by kind, and for each where it ends and by how much longer it became."""
    counts: Counter[str] = Counter()
    edits: list[tuple[int, int]] = []

    def fix(m: re.Match[bytes]) -> bytes:
        new = m.group()
        if m.lastindex == 1:
            new = _string(new, counts)
        elif m.lastindex == 2:
            counts["Infinity or NaN literals (read as missing)"] += 1
            new = b"null"
        elif m.lastindex == 3:
            counts["commas before a closing bracket"] += 1
            new = b" "
        if len(new) != m.end() - m.start():
            edits.append((m.end(), len(new) - m.end() + m.start()))
        return new

    fixed = _FAULT.sub(fix, text)
    return (fixed, counts, edits) if counts else (text, counts, [])


def _string(text: bytes, counts: Counter[str]) -> bytes:
    """Repair one string literal, quotes included."""

    def fix(m: re.Match[bytes]) -> bytes:
        if m.lastindex == 1:
            counts["halves of surrogate pairs"] += 1
            return b"\\ufffd"
        if m.lastindex == 2:
            counts["backslashes that escape nothing"] += 1
            return b"\\\\"
        if m.lastindex == 3:
            counts["control characters inside strings"] += 1
            return b"\\u%04x" % m.group()[0]
        return m.group()

    return _BAD_IN_STRING.sub(fix, text)


@dataclass(frozen=True, slots=True)
class BadEvent:
    """An event that does not parse.

    Attributes:
        before: end of the last good event before it (1 where there is none).
        start: where it starts.
        resume: start of the next event that parses, or of the bracket that closes the list; ``None`` where
            neither is in the text.
        category: its ``cat``, where legible.
        harmless: it is one event and certainly no GPU activity.
    """

    before: int
    start: int
    resume: int | None
    category: str | None
    harmless: bool


def bad_event(text: bytes, at: int) -> BadEvent:
    """Find the bounds of the event around an error.

    Args:
        text: ``[`` and events, the first of them whole.
        at: byte of the error.

    Returns:
        The bounds.
    """
    ends, starts = _boundaries(text)
    first = next(
        i for i in range(len(starts) - 1, -1, -1) if starts[i] <= max(at, 1) and is_whole(text[: ends[i]])
    )
    return _around(text, at, ends, starts, first)


def open_event(text: bytes) -> BadEvent:
    """Find the event that does not end, in a text that stops before it does.

    Args:
        text: ``[`` and events, the first of them whole.

    Returns:
        Its bounds; ``resume`` is ``None`` where no event follows, as at the end of a file that was cut.
    """
    ends, starts = _boundaries(text)
    look = 8 if len(text) < 4 << 20 else 2  # each look decodes the text up to there
    low, high = 0, len(ends)  # the events up to ends[low] are whole; the text up to ends[high] is not
    while high - low > 1:
        middle = (low + high) // 2
        # Not every boundary is one: "}, {" may stand inside an event, so look at a few before giving up half.
        near = range(middle, max(low, middle - look), -1)
        found = next((i for i in near if is_whole(text[: ends[i]])), None)
        if found is None:
            high = middle
        else:
            low = found
    return _around(text, starts[low] + 1, ends, starts, low)


def _boundaries(text: bytes) -> tuple[list[int], list[int]]:
    """Where one event may end and the next begin; the first entry is the start of the list."""
    ends, starts = [1], [1]
    for m in _EVENT_START.finditer(text, 1):
        ends.append(m.start() + 1)
        starts.append(m.end())
    return ends, starts


def _around(text: bytes, at: int, ends: list[int], starts: list[int], first: int) -> BadEvent:
    """The bad event that begins at ``starts[first]``: up to the next one after ``at`` that parses."""
    for i in range(first + 1, len(starts)):
        stop = ends[i + 1] if i + 1 < len(starts) else _closing(text, starts[i])
        if starts[i] >= at and stop is not None and _is_event(text[starts[i] : stop]):
            return _bounds(text, ends[first], starts[first], starts[i])
    # The bad event may be the last of the list: nothing but top-level keys may follow the bracket.
    for m in _LIST_END.finditer(text, at):
        if _is_tail(text[m.end() :]):
            return _bounds(text, ends[first], starts[first], m.end() - 1)
    return BadEvent(ends[first], starts[first], None, None, False)


def _bounds(text: bytes, before: int, start: int, resume: int) -> BadEvent:
    inside = text[start:resume]
    categories = {c.decode("utf-8", "replace") for c in _CATEGORY.findall(inside)}
    category = categories.pop() if len(categories) == 1 else None
    return BadEvent(
        before, start, resume, category, len(_PHASE.findall(inside)) == 1 and category in HARMLESS
    )


def _is_tail(text: bytes) -> bool:
    """Whether this is what stands after the list of events, to the end of the file."""
    tail = text.strip()
    if not tail.startswith((b",", b"}")):
        return not tail
    try:
        msgspec.json.decode(b'{"_":0' + tail, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def is_whole(text: bytes) -> bool:
    """Whether ``[`` and events are whole events up to the end of the text."""
    if text == b"[":
        return True
    try:
        msgspec.json.decode(text + b"]", type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return True


def _closing(text: bytes, start: int) -> int | None:
    """End of the event at ``start`` when it is the last one in the text."""
    try:
        msgspec.json.decode(text[start:], type=msgspec.Raw)
    except msgspec.DecodeError as error:
        found = re.search(r"trailing characters \(byte (\d+)\)", str(error))
        return (
            start + int(found.group(1)) - 1 if found else None
        )  # it names the byte after the first too many
    return len(text)


def _is_event(text: bytes) -> bool:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return isinstance(value, dict) and "ph" in value


def line_of(stream: ByteStream, offset: int) -> int | None:
    """Line (from 1) of a byte of the JSON; the file is read again, as errors are rare and lines are not kept."""
    if not stream.path.is_file():
        return None
    try:
        again = open_trace(stream.path, member=stream.member, max_ratio=stream.max_ratio, lenient=True)
    except TraceError:
        return None
    line, left = 1, offset
    try:
        for piece in pieces(again):
            line += piece.count(b"\n", 0, left)
            left -= len(piece)
            if left <= 0:
                break
    except TraceError:
        return None
    finally:
        again.close()
    return line
