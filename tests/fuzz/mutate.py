"""What can go wrong with a trace file? Seeds cut from real traces; mutations of bytes, tokens, values, containers.

Everything is drawn from one ``random.Random``, so a seed (or Hypothesis) names an input.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import zstandard

ROOT = Path(__file__).parents[2]
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}\[\]:,]', re.DOTALL)
_PAIR = re.compile(
    rb'"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)\s*,?', re.DOTALL
)


@dataclass(frozen=True)
class Input:
    """One file to read.

    Attributes:
        data: its bytes.
        base: the seed that it was made of.
        how: names of the mutations, in order.
        text: its JSON before it was packed.
    """

    data: bytes
    base: str
    how: tuple[str, ...]
    text: bytes


# --- seeds ---------------------------------------------------------------------------------------------


@cache
def seeds() -> dict[str, bytes]:
    """JSON of the traces that mutations start from: a window of some hundred events of each."""
    out = {
        f"{name}, {first}": cut(ROOT / "traces" / f"{name}.trace.json.gz", first, count)
        for name, first, count in (
            ("cuda_graph", 6000, 100), ("cuda_graph_eager", 16000, 150), ("h200_probe", 700, 160), ("h200_probe",
            900, 120),
        )
    }  # fmt: skip
    cases = ("00-baseline", "13-pdl-overlap-same-stream", "19-cuda-graph-shared-correlation",
    "26-merged-ranks-TP",
             "28-no-dur-null-args", "30-rocm-stream-zero", "37-hostile-kernel-names")  # fmt: skip
    out |= {name: (ROOT / "tests" / "cases" / f"{name}.json").read_bytes() for name in cases}
    return out


def cut(path: Path, first: int, count: int) -> bytes:
    """A trace reduced to its metadata events and ``count`` events from the ``first`` on, spelled as Kineto does."""
    body = json.loads(gzip.decompress(path.read_bytes()), parse_float=_Spelled)
    events = body["traceEvents"]
    body["traceEvents"] = [e for e in events[:first] if e.get("ph") == "M"][:20] + events[
        first : first + count
    ]
    return dump(body, Random(0), plain=True)


class _Spelled(float):
    """A number that is written as it was read."""

    def __new__(cls, text: str) -> _Spelled:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __repr__(self) -> str:
        return self.text


class Literal(float):
    """A number, or what stands in its place, spelled as wanted."""

    def __new__(cls, text: str) -> Literal:
        self = super().__new__(cls, 0.0)
        self.text = text
        return self

    text: str

    def __repr__(self) -> str:
        return self.text


def dump(value: Any, rng: Random, plain: bool = False) -> bytes:
    """JSON of a value, formatted in some way; numbers spelled as they are held."""
    indent, gap, after = (None, " ", "\n") if plain else (
        rng.choice((None, None, 1, 4)), rng.choice(("", " ", "\t ")), rng.choice(("", "\n", " \r\n")),
    )  # fmt: skip
    escape = plain or rng.random() < 0.7

    def spell(v: Any, depth: int) -> str:
        inside, outside = (
            ("\n" + " " * indent * (depth + 1), "\n" + " " * indent * depth) if indent else ("", "")
        )
        if isinstance(v, dict):
            if not v:
                return "{}"
            body = ",".join(
                f"{inside}{json.dumps(k, ensure_ascii=escape)}:{gap}{spell(x, depth + 1)}"
                for k, x in v.items()
            )
            return "{" + body + outside + "}"
        if isinstance(v, list):
            sep = "," + (after if depth == 1 else "")
            return "[" + sep.join(inside + spell(x, depth + 1) for x in v) + outside + "]"
        if isinstance(v, float):
            return repr(v)
        return json.dumps(v, ensure_ascii=escape)

    return spell(value, 0).encode("utf-8", "surrogatepass")


# --- bytes ---------------------------------------------------------------------------------------------

SPECIAL = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"\n", b"\x1b", b"'", b"-", b"e",
           b".",
           b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\\u", b"\\ud800", b"NaN", b"Infinity", b"//", b"},{", b"]}",
           b'","')  # fmt: skip


def flip(text: bytes, rng: Random) -> bytes:
    """A bit the other way round."""
    at = rng.randrange(len(text))
    return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]


def lose(text: bytes, rng: Random) -> bytes:
    """Some bytes gone."""
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.choice((1, 1, 2, 7, 64, 700)) :]


def gain(text: bytes, rng: Random) -> bytes:
    """Some bytes too many."""
    at = rng.randrange(len(text) + 1)
    return text[:at] + b"".join(rng.choices(SPECIAL, k=rng.choice((1, 1, 1, 3)))) + text[at:]


def overwrite(text: bytes, rng: Random) -> bytes:
    """Bytes written over others, as by two writers of one file."""
    at, size = rng.randrange(len(text)), rng.choice((1, 3, 40, 512))
    start = rng.randrange(len(text))
    junk = rng.choice(
        (bytes(size), b"\xff" * size, text[start : start + size], b"".join(rng.choices(SPECIAL, k=size)))
    )
    return text[:at] + junk[: len(text) - at] + text[at + len(junk) :]


def repeat(text: bytes, rng: Random) -> bytes:
    """A stretch that comes twice."""
    at, size = rng.randrange(len(text)), rng.choice((5, 50, 500))
    return text[: at + size] + text[at:]


def truncate(text: bytes, rng: Random) -> bytes:
    """The end missing."""
    return text[: rng.randrange(1, len(text))]


# --- tokens --------------------------------------------------------------------------------------------

VALUES = (
    b"null", b"true", b"false", b"0", b"-1", b"1", b'""', b'"x"', b"[]", b"{}", b'"12"', b'"1.5"', b"[1,2]",
    b'{"a":1}',
    b"NaN", b"-Infinity", b"Infinity", b"inf", b"nan", b"1e400", b"-1e400", b"1e-400", b"1E+3",
    b"12345678901234567890",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551615",
    b"0.0005", b"0.0015",
    b"1.23456789", b"-0.0", b"-0", b"00", b"01", b"+1", b".5", b"5.", b"0x10", b"1_000", b'"1_000"', b'"1e3"',
    b'" 7 "', b'"7 us"',
    b'"NaN"', b'"inf"', b"999999999999999.999", b"36028797018963.968", b"36028797018963.969",
    b"2305843009213693.952",
    b'"\\ud800"', b'"\\u0000"', b'"\x01"', b'"\\x"', b'"\\ud83d\\ude00"', b'"kernel"', b'"gpu_memcpy"',
    b'"cpu_op"', b'"X"',
    b'"B"', b'"E"', b'"M"', '"\u0661\u0662"'.encode(), b"9" * 400, b"1" + b"0" * 30 + b".5",
    b"0." + b"0" * 60 + b"1",
)  # fmt: skip


def _token(text: bytes, rng: Random) -> re.Match[bytes] | None:
    """A token at about a random place."""
    start = rng.randrange(len(text))
    start = max(text.rfind(b",", 0, start), 0)
    return _TOKEN.search(text, start)


def swap_value(text: bytes, rng: Random) -> bytes:
    """A value of another kind in the place of one."""
    start = rng.randrange(len(text))
    m = re.compile(rb':\s*("(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)', re.DOTALL).search(text, start)
    if m is None:
        return text
    return text[: m.start(1)] + rng.choice(VALUES) + text[m.end(1) :]


def drop_token(text: bytes, rng: Random) -> bytes:
    """A token gone."""
    m = _token(text, rng)
    return text if m is None else text[: m.start()] + text[m.end() :]


def double_token(text: bytes, rng: Random) -> bytes:
    """A token that comes twice."""
    m = _token(text, rng)
    return text if m is None else text[: m.end()] + m.group() + text[m.end() :]


def drop_pair(text: bytes, rng: Random) -> bytes:
    """A key and its value gone."""
    m = _PAIR.search(text, rng.randrange(len(text)))
    return text if m is None else text[: m.start()] + text[m.end() :]


def double_pair(text: bytes, rng: Random) -> bytes:
    """A key that comes twice, the second time with another value."""
    m = _PAIR.search(text, rng.randrange(len(text)))
    if m is None or not m.group().endswith(b","):
        return text
    key = m.group().split(b":")[0]
    again = m.group() if rng.random() < 0.3 else key + b":" + rng.choice(VALUES) + b","
    return (
        text[: m.start()] + again + text[m.start() :]
        if rng.random() < 0.5
        else text[: m.end()] + again + text[m.end() :]
    )


def nest(text: bytes, rng: Random) -> bytes:
    """Brackets in brackets, closed or not."""
    m = re.compile(rb":\s*(-?\d[\d.]*|\[\]|null)").search(text, rng.randrange(len(text)))
    if m is None:
        return text
    n = rng.choice((2, 20, 200, 900, 1100, 5000, 100_000))
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    middle = opened * n + b"1" + (closed * n if rng.random() < 0.8 else b"")
    return text[: m.start(1)] + middle + text[m.end(1) :]


def space(text: bytes, rng: Random) -> bytes:
    """Blanks, or what looks like them, between two tokens."""
    m = _token(text, rng)
    blank = rng.choice((b" ", b"\n\n", b"\t\r", b" " * 5000, b"\x0c", b"\xc2\xa0", b"\0", b"/* x */"))
    return text if m is None else text[: m.end()] + blank + text[m.end() :]


# --- values --------------------------------------------------------------------------------------------

KEYS = ("ts", "dur", "cat", "ph", "name", "pid", "tid", "args", "args.stream", "args.device",
        "args.correlation", "args.grid",
        "args.block", "args.External id", "args.registers per thread", "args.bytes", "args.graph node id",
        "args.Input Dims")  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**63, 2**64 - 1, -(2**63) - 1, 10**30, "", "x", "12", "1.5", " 3 ", "1e3", "-7", [],
    [1, 2, 3], ["1", 1, 1],
    [2**40, 1, 1], {}, {"a": [{}]}, Literal("1e400"), Literal("NaN"), Literal("-Infinity"), Literal("0.0005"),
    Literal("-0.25"),
    Literal("1e3"), Literal("123456789012345678.125"), "\x00", "\ud800", "a\tb", "\x1b[31m", "\u202e",
    "x" * 5000, "|", "=1+1",
    "<script>", "kernel", "gpu_memset", "Kernel", "KERNEL", "cpu_op", "cuda_runtime", "hip_runtime", "X", "B",
    "E", "i", "[TP01] 0",
)  # fmt: skip


def values(text: bytes, rng: Random) -> bytes:
    """Events with hostile values, dropped, doubled, out of order or no objects; written in another format."""
    try:
        body = json.loads(text, parse_float=_Spelled)
    except (ValueError, RecursionError):
        return text
    events = body.get("traceEvents") if isinstance(body, dict) else body
    if not isinstance(events, list) or not events:
        return text
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        at = rng.randrange(len(events))
        e = events[at]
        how = rng.random()
        if how < 0.06:
            events.insert(at, rng.choice(HOSTILE))
        elif how < 0.1:
            events.insert(at, events[rng.randrange(len(events))])
        elif how < 0.13 and len(events) > 1:
            del events[at]
        elif how < 0.16:
            rng.shuffle(events)
        elif isinstance(e, dict):
            e = events[at] = json.loads(json.dumps(e), parse_float=_Spelled) if how > 0.9 else e
            place: Any = e
            key = rng.choice(KEYS)
            if key.startswith("args."):
                place, key = e.get("args"), key[5:]
            if isinstance(place, dict):
                if rng.random() < 0.15:
                    place.pop(key, None)
                else:
                    place[key] = rng.choice(HOSTILE)
                if rng.random() < 0.2:
                    items = list(place.items())
                    rng.shuffle(items)
                    place.clear()
                    place.update(items)
    return dump(body, rng)


def header(text: bytes, rng: Random) -> bytes:
    """Hostile metadata around the events, before and after them."""
    try:
        body = json.loads(text, parse_float=_Spelled)
    except (ValueError, RecursionError):
        return text
    if not isinstance(body, dict):
        return text
    key = rng.choice(
        [
            *body,
            "deviceProperties",
            "distributedInfo",
            "baseTimeNanoseconds",
            "traceName",
            "with_stack",
            "x_version",
        ]
    )
    if key != "traceEvents" or rng.random() < 0.2:
        body[key] = rng.choice(
            (
                *HOSTILE,
                {"rank": rng.choice(HOSTILE)},
                [{"id": rng.choice(HOSTILE), "name": rng.choice(HOSTILE)}],
            )
        )
    items = list(body.items())
    rng.shuffle(items)
    return dump(dict(items), rng)


# --- whole documents -----------------------------------------------------------------------------------


def document(text: bytes, rng: Random) -> bytes:
    """Two documents, a list, a wrapper, a mark, another encoding, junk around it."""
    other = rng.choice(list(seeds().values()))
    body, _, _ = text.partition(b'"traceEvents"')
    return rng.choice((
        text + text, text + b"\n" + other, b"[" + text + b"," + other + b"]", b'{"a":' + text + b"}",
        b"[" + text + b"]",
        b"\xef\xbb\xbf" + text, text.decode("utf-8", "replace").encode("utf-16"), b" \n" * 50 + text,
        text + bytes(700),
        text + b"junk", text + b"\n\n", b"\0\0" + text, text.replace(b"\n", b"\r\n"),
        text.rstrip().removesuffix(b"}"),
        body + b'"traceEvents":[],' + text[len(body) :], text.rstrip().removesuffix(b"}") + b',"traceEvents":[]}',
        b"var trace = " + text, text + b"," + text, text.replace(b",", b",,", 1),
        text.rstrip().removesuffix(b"}") + b",}",
    ))  # fmt: skip


TEXT: tuple[tuple[Callable[[bytes, Random], bytes], int], ...] = (
    (flip, 4), (lose, 4), (gain, 4), (overwrite, 3), (repeat, 2), (truncate, 3), (swap_value, 8), (drop_token, 3),
    (double_token, 3), (drop_pair, 3), (double_pair, 4), (nest, 2), (space, 2), (values, 12), (header, 3),
    (document, 3),
)  # fmt: skip


# --- containers ----------------------------------------------------------------------------------------


def zipped(*entries: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as z:
        for name, data in entries:
            z.writestr(name, data)
    return out.getvalue()


def gz(data: bytes) -> bytes:
    """One gzip member."""
    return gzip.compress(data, 1, mtime=0)


def zst(data: bytes) -> bytes:
    """One zstd frame, with a checksum."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def pack(text: bytes, rng: Random) -> tuple[bytes, str]:
    """The text in some container, whole or damaged: (bytes, what was done)."""
    at = rng.randrange(len(text) + 1)
    whole = rng.choice((
        ("gz", gz(text)), ("gz", gz(text)), ("two members", gz(text[:at]) + gz(text[at:])), ("zst", zst(text)),
        ("two frames", zst(text[:at]) + zst(text[at:])), ("zip", zipped(("a.json", text))),
        ("stored zip", zipped(("a.json", text), how=zipfile.ZIP_STORED)), ("zip of two", zipped(("a.json",
        text), ("b.json", text))),
        ("zip of gz", zipped(("a.json.gz", gz(text)))), ("gz of gz", gz(gz(text))), ("gz of zst", gz(zst(text))),
        ("two whole members", gz(text) + gz(text)), ("padded gz", gz(text) + bytes(rng.randrange(600))),
        ("gz and junk", gz(text) + b"junk"), ("zip and junk", zipped(("a.json", text)) + b"junk"),
    ))  # fmt: skip
    name, data = whole
    damage = rng.random()
    if damage < 0.55:
        return data, name
    if damage < 0.7:
        return data[: rng.randrange(1, len(data))], f"{name}, cut"
    if damage < 0.8:
        end = max(len(data) - 8, 0)
        return data[:end] + flip(data[end:], rng), f"{name}, end damaged"
    if damage < 0.9:
        return flip(data, rng), f"{name}, bit flipped"
    return overwrite(data, rng), f"{name}, overwritten"


def make(rng: Random) -> Input:
    """One input."""
    base = rng.choice(list(seeds()))
    text, how = seeds()[base], []
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        mutation = rng.choices([m for m, _ in TEXT], [w for _, w in TEXT])[0]
        try:
            changed = mutation(text, rng)
        except RecursionError:  # nested too deep for this one
            continue
        if changed != text and changed:
            text = changed
            how.append(mutation.__name__)
    if rng.random() < 0.65:
        return Input(text, base, tuple(how), text)
    data, packed = pack(text, rng)
    return Input(data, base, (*how, packed), text)
