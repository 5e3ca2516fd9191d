"""What does this file say? A slow reader that shares no code with the package, to check the fast one by.

Standard library only (and ``zstandard`` for zstd): the whole file in memory, ``json`` for the text, fractions for the
times. It reads well-formed files and gives up (:class:`Unreadable`) on all others; what it does read it reads by the
rules that the documentation states, so any other answer of the package is a fault of one of the two.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import zstandard

KINDS = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset",
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset",
}  # fmt: skip
ARROWS, FRAMES = ("ac2g", "fwdbwd"), ("python_function", "PythonFunction")
FARTHEST, LONGEST = 2**61, 2**55  # ns
_DECIMAL = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_MOST = 64 << 20


class Unreadable(Exception):  # noqa: N818  # half of what the fuzzer makes is
    """Not a file that must be read."""


class Number(str):
    """A JSON number as it was spelled."""


class Object(dict[str, Any]):
    """A JSON object; every ``traceEvents`` it holds is kept, for files into which two traces were written."""

    lists: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Row:
    """One activity.

    ``stream`` and ``correlation`` are ``"?"`` where they are no plain whole number of 64 bits.
    """

    index: int
    start: int
    dur: int
    name: str | None
    kind: str
    stream: int | str | None
    correlation: int | str | None


@dataclass
class Reading:
    """What a file says: rows in order of start, and how many entries were what they should not be."""

    rows: list[Row] = field(default_factory=list)
    cpu_rows: int = 0
    odd: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Summed duration, ns."""
        return sum(r.dur for r in self.rows)


def read(data: bytes) -> Reading:
    """Read a file.

    Args:
        data: its bytes.

    Raises:
        Unreadable: it is no whole, well-formed trace.
    """
    reading = Reading()
    root = _parse(_unpack(data), reading)
    if isinstance(root, Object):
        events = next((v for v in root.lists if isinstance(v, list)), None)
        if len(root.lists) > 1 and root.lists[-1] is not events:
            reading.odd["second list"] += 1
    else:
        events = root
    if not isinstance(events, list):
        raise Unreadable("no list of events")
    for index, event in enumerate(events):
        _event(index, event, reading)
    reading.rows.sort(key=lambda r: (r.start, r.index))
    return reading


def _unpack(data: bytes) -> bytes:
    for _ in range(4):
        try:
            if data[:2] == b"\x1f\x8b":
                data = _gunzip(data)
            elif data[:4] == b"\x28\xb5\x2f\xfd":
                reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
                data = reader.read(_MOST)
            elif data[:4] == b"PK\x03\x04":
                with zipfile.ZipFile(io.BytesIO(data)) as z:
                    (name,) = [i for i in z.infolist() if not i.is_dir() and i.file_size]
                    data = z.read(name)
            else:
                return data
        except Exception as error:
            raise Unreadable(str(error)) from error
    raise Unreadable("packed too many times")


def _gunzip(data: bytes) -> bytes:
    out = b""
    while data.lstrip(b"\0"):
        if out:
            data = data.lstrip(b"\0")
        member = zlib.decompressobj(wbits=31)
        out += member.decompress(data, _MOST)
        if not member.eof:
            raise Unreadable("gzip data that does not end")
        data = member.unused_data
    return out


def _parse(data: bytes, reading: Reading) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> Object:
        out = Object(items)
        out.lists = tuple(v for k, v in items if k == "traceEvents")
        return out

    def constant(text: str) -> None:
        reading.odd["literal"] += 1

    decoder = json.JSONDecoder(
        object_pairs_hook=pairs, parse_float=Number, parse_int=Number, parse_constant=constant
    )
    try:
        text = data.decode("utf-8-sig", "replace").lstrip(" \t\r\n")
        root, end = decoder.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if text[end:].strip(" \t\r\n\0"):
        reading.odd["after the end"] += 1
    return root


def _event(index: int, event: Any, reading: Reading) -> None:
    odd = reading.odd
    if not isinstance(event, Object):
        odd["no object"] += 1
        return
    category, phase = event.get("cat"), event.get("ph")
    kind = KINDS.get(category) if type(category) is str else None
    if type(phase) is not str or phase != "X":
        if kind is not None and phase != "E":
            odd["no phase" if phase is None else "no complete event"] += 1
        return
    if kind is None and category in (*ARROWS, *FRAMES):
        return
    start = nanoseconds(event.get("ts"))
    if start is None or abs(start) > FARTHEST:
        odd["no start"] += 1
        return
    dur = nanoseconds(event.get("dur"))
    if kind is None:
        reading.cpu_rows += 1
        if category is None or category == "":
            odd["no category"] += 1
        return
    if dur is None:
        odd["no duration"] += 1
    elif dur < 0:
        odd["negative duration"] += 1
    elif dur > LONGEST:
        odd["impossible duration"] += 1
    dur = dur if dur is not None and 0 <= dur <= LONGEST else 0
    name = event.get("name")
    if name is None:
        name = ""
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    reading.rows.append(
        Row(
            index, start, dur, name.encode("utf-8", "replace").decode() if type(name) is str else None, kind,
            _whole(args.get("stream")), _whole(args.get("correlation")) or None,
        )
    )  # fmt: skip


def nanoseconds(value: Any) -> int | None:
    """Microseconds as written -> whole nanoseconds, half to even; ``None`` where it is no usable number."""
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        return None
    exponent = re.search(r"[eE]([+-]?\d+)", value)
    if exponent and abs(int(exponent.group(1)[:9])) > 400:
        digits = value[: exponent.start()].strip("+-0. \t\r\n")
        return 0 if exponent.group(1).startswith("-") or not digits else None
    exact = round(Fraction(value.strip()) * 1000)
    return exact if abs(exact) < 2**63 else None


def _whole(value: Any) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,25}", value, re.ASCII) and abs(int(value)) < 2**63:
        return int(value)
    return "?"
