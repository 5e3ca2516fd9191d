"""How do several processes read one trace? Pieces of a large file are decoded on all cores, and joined in order.

Every process unpacks the file and cuts it at the same places (unpacking costs a tenth of decoding, and text is never
sent). Who decodes a piece is settled by tickets: numbers of pieces in a pipe, each taken by whoever is free. A worker
sends back columns; the reader joins them in the order of the file, so the tables are those of one process.

Pieces are cut by guess. A piece that decodes, all before it having decoded, proves its guess; at the first that does
not, whatever the reason (the end of the list, a repair, damage), the reader goes on alone from there. A piece in which
something is odd is read once more by the reader itself, so that every warning is as it would have been. A worker that
dies, or that sees other bytes, costs time and nothing else.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import msgspec
from isal import isal_zlib

from hta_dsv4.trace.collect import Collector
from hta_dsv4.trace.container import open_trace
from hta_dsv4.trace.cuts import Piece
from hta_dsv4.trace.framing import Framing

VARIABLE = "HTA_DSV4_PROCESSES"
"""Environment variable: how many processes read one trace; 1 for no others. By default as many as cores are idle."""
MIN_JSON_BYTES = 192 << 20
"""JSON below this is read in about a second, of which starting processes would take a fifth."""
_MOST = 4
_PACKED = 10  # traces pack 10 to 40 times smaller
_AHEAD = 6  # pieces per process that may be under way
_ODD = 8  # pieces with something odd in them: then there is little to gain
_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])["modules"]
from hta_dsv4.trace.ahead import work
work()
"""
_HEAD = struct.Struct("<qqI")  # number of the piece, bytes that follow, checksum of its text
_PATIENCE_S = 30.0  # a piece takes a hundredth of a second
_NOTHING = b""  # for a piece that does not decode


def processes(path: Path, wanted: int | None = None) -> int:
    """How many processes should read a file.

    Args:
        path: the file.
        wanted: how many the caller wants; by default what ``HTA_DSV4_PROCESSES`` says, else one for each idle core,
            four at most: where cores are busy, several processes take more of them and gain nothing.
    """
    with suppress(ValueError):
        wanted = int(os.environ.get(VARIABLE, "")) if wanted is None else wanted
    if not sys.executable or not hasattr(os, "sched_getaffinity"):
        return 1
    if wanted is not None:
        return max(wanted, 1)
    try:
        with path.open("rb") as file:
            plain = file.read(1) in b" \t\r\n{[\xef"
        size = path.stat().st_size * (1 if plain else _PACKED)
    except (OSError, ValueError):
        return 1
    if size < MIN_JSON_BYTES or not path.is_file():
        return 1
    idle = len(os.sched_getaffinity(0)) - os.getloadavg()[0]
    return max(1, min(_MOST, round(idle)))


def read_ahead(framing: Framing, pending: bytes, collector: Collector, number: int) -> bytes:
    """Read what is regular of a trace with other processes.

    Args:
        framing: at the first event.
        pending: the text it has read beyond.
        collector: gets the events.
        number: processes, this one included.

    Returns:
        The text that :meth:`.Framing.batches` is to go on with.
    """
    stream = framing.stream
    how = {
        "path": str(stream.path), "member": stream.member, "max_ratio": stream.max_ratio, "chunk": framing.chunk,
        "cpu": collector.cpu_wanted, "python_frames": collector.python_frames,
    }  # fmt: skip
    with _workers(how, number - 1) as (tickets, results):
        return _Reader(framing, pending, collector, tickets, results, _AHEAD * number).read()


class _Tickets:
    """Numbers of pieces in a pipe, from which every process takes; non-blocking."""

    def __init__(self) -> None:
        self.out, self._in = os.pipe()
        os.set_blocking(self.out, False)
        self._next = 0

    def issue(self, count: int) -> None:
        """Let that many more pieces be taken."""
        os.write(self._in, b"".join(_NUMBER.pack(self._next + i) for i in range(count)))
        self._next += count

    def take(self) -> int | None:
        return _take(self.out)

    def close(self) -> None:
        os.close(self._in)
        os.close(self.out)


_NUMBER = struct.Struct("<q")


def _take(pipe: int) -> int | None:
    """The next ticket; ``None`` where there is none now. Whole numbers are read at once, so none is ever torn."""
    try:
        data = os.read(pipe, _NUMBER.size)
    except BlockingIOError:
        return None
    if not data:
        raise EOFError
    return int(_NUMBER.unpack(data)[0])


Result = tuple[int, int, bytes] | None  # number, checksum, columns; None: a worker has ended


@contextmanager
def _workers(how: dict[str, Any], count: int) -> Iterator[tuple[_Tickets, SimpleQueue[Result]]]:
    """Start workers, and end them whatever happens."""
    tickets = _Tickets()
    results: SimpleQueue[Result] = SimpleQueue()
    running: list[subprocess.Popen[bytes]] = []
    threads: list[threading.Thread] = []
    # The same modules as ours, by whatever path we found them, and nothing of the user's own script.
    how = {**how, "modules": sys.path}
    command = [sys.executable, "-c", _CODE, str(tickets.out), json.dumps(how)]
    try:
        for _ in range(count):
            with suppress(OSError):  # no memory, no more processes: fewer workers, or none
                p = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    pass_fds=(tickets.out,), start_new_session=True,
                )  # fmt: skip
                running.append(p)
                assert p.stdout is not None
                threads.append(threading.Thread(target=_receive, args=(p.stdout, results), daemon=True))
                threads[-1].start()
        yield tickets, results
    finally:
        tickets.close()
        for p in running:
            p.kill()
            p.wait()
        for thread in threads:
            thread.join()
        for p in running:
            assert p.stdout is not None
            p.stdout.close()


def _receive(pipe: IO[bytes], results: SimpleQueue[Result]) -> None:
    """Take a worker's results as they come, so that it never waits for us."""
    with suppress(OSError, ValueError):
        while len(head := pipe.read(_HEAD.size)) == _HEAD.size:
            number, size, checksum = _HEAD.unpack(head)
            body = pipe.read(size)
            if len(body) < size:
                break
            results.put((number, checksum, body))
    results.put(None)


class _Reader:
    """The process that joins: decodes pieces as the workers do, and takes all in their order."""

    def __init__(
        self, framing: Framing, pending: bytes, collector: Collector, tickets: _Tickets, results: SimpleQueue[Result],
        window: int,
    ) -> None:  # fmt: skip
        self.framing, self.collector, self.tickets, self.results = framing, collector, tickets, results
        self.source = framing.pieces(pending)
        self.waiting: deque[Piece] = deque()  # cut, not yet joined
        self.joined = 0  # pieces joined: the number of the first waiting
        self.done: dict[int, tuple[int, bytes] | Collector | None] = {}
        self.alive = True  # whether workers may still send
        self.odd = 0
        tickets.issue(window)

    def read(self) -> bytes:
        """Read on while pieces decode; the text that is left."""
        while True:
            number = self.tickets.take()
            if number is not None:
                self._cut(number)
                piece = self._piece(number)
                if piece is not None and piece.end:
                    self.done[number] = decoded(piece, self.collector)
            self._receive(block=number is None)
            while self.joined in self.done or not self.alive or self._at_last:
                self._cut(self.joined)
                if self._at_last or not self._join():
                    return b"".join(p.text for p in self.waiting) + self.source.pending

    @property
    def _at_last(self) -> bool:
        """Whether all is joined but the last piece, which is left to others."""
        return bool(self.waiting) and not self.waiting[0].end

    def _cut(self, number: int) -> None:
        """Cut pieces up to that one, or to the last."""
        while self.joined + len(self.waiting) <= number and (piece := next(self.source, None)) is not None:
            self.waiting.append(piece)

    def _piece(self, number: int) -> Piece | None:
        at = number - self.joined
        return self.waiting[at] if at < len(self.waiting) else None

    def _receive(self, block: bool) -> None:
        """Take what workers have sent; with ``block`` wait for something."""
        try:
            while True:
                result = self.results.get(block, _PATIENCE_S)
                block = False
                if result is None:
                    # One is gone, and its tickets are nobody's: what is missing we do ourselves.
                    self.alive = False
                elif result[0] >= self.joined:
                    self.done[result[0]] = result[1], result[2]
        except Empty:
            if block:  # stopped, or starved
                self.alive = False

    def _join(self) -> bool:
        """Join the first waiting piece; whether it could be."""
        piece = self.waiting[0]
        part = self.done.pop(self.joined, None)
        if isinstance(part, tuple):
            checksum, body = part
            part = pickle.loads(body) if body and checksum == isal_zlib.crc32(piece.text) else None
        if part is None or part.notes:
            # Not decoded, or odd: as one process would read it, warnings and all.
            part = None
            events = _events(piece, self.collector)
            if events is None:
                return False
            self.collector.add(events)
            self.odd += 1
        else:
            self.collector.absorb(part)
        self.framing.passed(piece)
        self.waiting.popleft()
        self.joined += 1
        self.tickets.issue(1)
        return self.odd < _ODD


def _events(piece: Piece, collector: Collector) -> list[Any] | None:
    """The events of a piece; ``None`` where it is not a list of events, or needs repair."""
    text = bytearray().join((b"[", memoryview(piece.text)[: piece.end], b"]"))
    try:
        try:
            return collector.decoder.decode(memoryview(text))
        except msgspec.ValidationError:
            return collector.decoder.split(bytes(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decoded(piece: Piece, like: Collector) -> Collector | None:
    """A collector of one piece; ``None`` where it does not decode."""
    part = like.alike()
    events = _events(piece, part)
    if events is None:
        return None
    part.add(events)
    return part


def work() -> None:
    """A worker: takes tickets, decodes those pieces, writes columns to standard output, until there are no more."""
    tickets, how = int(sys.argv[1]), json.loads(sys.argv[2])
    out = sys.stdout.buffer
    like = Collector(cpu=how["cpu"], python_frames=how["python_frames"])
    stream = open_trace(Path(how["path"]), member=how["member"], max_ratio=how["max_ratio"])
    framing = Framing(stream, chunk=how["chunk"])
    at = -1
    piece: Piece | None = None
    gc.disable()  # as the reader: no cycles in what is decoded
    source = framing.pieces(framing.begin())
    while True:
        try:
            number = _take(tickets)
        except EOFError:
            return
        if number is None:
            select.select([tickets], [], [])
            continue
        while at < number:
            piece = next(source, None)
            at += 1
            if piece is None or not piece.end:
                return  # past the last piece: the reader finds it out for itself
        assert piece is not None
        part = decoded(piece, like)
        body = _NOTHING if part is None or part.notes else pickle.dumps(part, protocol=5)
        out.write(_HEAD.pack(number, len(body), isal_zlib.crc32(piece.text)) + body)
        out.flush()
