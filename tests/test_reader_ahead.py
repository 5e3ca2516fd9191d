"""Several processes read one trace: the tables, warnings and errors are those of one."""

from __future__ import annotations

import gzip
import os
import random
import threading
from pathlib import Path

import pandas as pd
import psutil
import pytest

from benchmarks.generate import Plan, generate
from hta_dsv4.errors import TraceError
from hta_dsv4.trace import ahead
from hta_dsv4.trace.model import Trace
from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace, pack

SHIPPED = Path(__file__).parents[1] / "traces"


def assert_same(a: Trace, b: Trace) -> None:
    pd.testing.assert_frame_equal(a.activities, b.activities)
    pd.testing.assert_frame_equal(a.events, b.events)
    assert (a.meta, a.warnings, a.partial) == (b.meta, b.warnings, b.partial)


@pytest.fixture
def joined(monkeypatch) -> list[int]:
    """How many pieces each reading joined from several processes."""
    counts: list[int] = []
    read = ahead._Reader.read

    def counted(self: ahead._Reader) -> bytes:
        rest = read(self)
        counts.append(self.joined)
        return rest

    monkeypatch.setattr(ahead._Reader, "read", counted)
    return counts


def many(n: int = 400, **event: object) -> KinetoTrace:
    t = KinetoTrace()
    for i in range(n):
        t.eager(f"k{i % 13}", "2.125", at=1000 + 10 * i, op=f"aten::op{i % 5}")
    t.events[n].update(event)
    return t


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".zip"])
@pytest.mark.parametrize("options", [{}, {"cpu": False}, {"python_frames": True}], ids=str)
def test_any_container_and_options_give_the_same(tmp_path, joined, suffix, options):
    """A trace in pieces of 20 kB, three processes -> equal to one process, with most pieces joined."""
    path = tmp_path / "x.json"
    generate(path, Plan(150, 2, compiled=True, python_frames=1))
    path.write_bytes(pack(path.read_bytes(), suffix or ".json"))
    one = read_trace(path, chunk=20_000, workers=1, **options)
    assert_same(read_trace(path, chunk=20_000, workers=3, **options), one)
    assert joined[0] > 15


@pytest.mark.parametrize("name", ["h200_probe", "cuda_graph", "mhc_fused"])
def test_real_traces_give_the_same(joined, name):
    """A real capture, two processes -> equal to one process."""
    path = SHIPPED / f"{name}.trace.json.gz"
    assert_same(read_trace(path, chunk=1 << 16, workers=2), read_trace(path, chunk=1 << 16, workers=1))
    assert joined[0] > 2


@pytest.mark.parametrize(
    "event",
    [{"dur": None}, {"ts": "x"}, {"args": 5}, {"cat": "new_kind"}, {"ph": "B"}, {"name": 7}, {"tid": [1]}],
    ids=str,
)  # fmt: skip
def test_odd_events_are_told_as_by_one_process(tmp_path, joined, event):
    """One event with something odd -> the same warning with the same place, and the pieces after it joined too."""
    path = many(**event).write(tmp_path / "x.json")
    one = read_trace(path, chunk=4000, workers=1)
    assert_same(read_trace(path, chunk=4000, workers=2), one)
    assert joined[0] > 30


@pytest.mark.parametrize(
    ("find", "put"),
    [("aten::op3", ""), ("k7", "\x01"), ("k7", "\udcff"), ("k9", 'k"9'), ('"ph": "X"', '"ph" "X"')],
    ids=["nan", "control", "utf8", "quote", "colon"],
)  # fmt: skip
def test_repairs_and_errors_are_those_of_one_process(tmp_path, joined, find, put):
    """Damage in the middle -> the same repair, or the same line of error, naming the same byte."""
    text = many().text()
    at = text.index(find, len(text) // 2)
    if find.startswith("aten"):
        at = text.rindex('"', 0, at)
        put, find = '"a", "x": NaN, "y": "', '"'
    path = tmp_path / "x.json"
    path.write_bytes((text[:at] + put + text[at + len(find) :]).encode("utf-8", "surrogateescape"))
    said = []
    for workers in (1, 2):
        try:
            said.append(read_trace(path, chunk=4000, workers=workers))
        except TraceError as error:
            said.append(str(error))
    if isinstance(said[0], str):
        assert said[0] == said[1]
    else:
        assert_same(said[1], said[0])
    assert joined[0] > 5


def test_a_cut_file_is_truncated_at_the_same_byte(tmp_path):
    """A gzip that stops halfway -> the same error as of one process; salvage reads alone."""
    rng = random.Random(2)
    t = KinetoTrace()
    for i in range(600):
        t.eager(f"k{rng.random()}", 2, at=100 + 10 * i)
    data = gzip.compress(t.text().encode())
    path = tmp_path / "x.gz"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError) as one:
        read_trace(path, chunk=4000, workers=1)
    with pytest.raises(TraceError) as two:
        read_trace(path, chunk=4000, workers=2)
    assert str(one.value) == str(two.value)
    assert read_trace(path, chunk=4000, workers=2, salvage=True).partial


def test_objects_in_lists_are_not_taken_for_events(tmp_path):
    """Long lists of objects inside events, where a guessed cut is often wrong -> the same tables."""
    t = many(60)
    for e in t.events[::3]:
        e["args"]["nested"] = [{"a": i} for i in range(400)]
    path = t.write(tmp_path / "x.json")
    for chunk in (700, 3000, 9000):
        assert_same(read_trace(path, chunk=chunk, workers=2), read_trace(path, chunk=chunk, workers=1))


_DIES = "import sys; sys.exit(1)"
_DIES_MIDWAY = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[2])["modules"]
from hta_dsv4.trace import ahead
decoded, left = ahead.decoded, [3]
def dying(*a):
    left[0] -= 1
    if not left[0]:
        os.write(1, b"\\0" * 9)
        os._exit(9)
    return decoded(*a)
ahead.decoded = dying
ahead.work()
"""
_HANGS = """
import os, select, sys, time
select.select([int(sys.argv[1])], [], [])
os.read(int(sys.argv[1]), 8)
time.sleep(60)
"""
_SEES_OTHER_BYTES = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])["modules"]
from hta_dsv4.trace import ahead
pieces = ahead.Framing.pieces
def other(self, pending):
    for p in pieces(self, pending):
        yield ahead.Piece(p.text.replace(b"k7", b"j7"), p.end)
ahead.Framing.pieces = other
ahead.work()
"""


@pytest.mark.parametrize(
    "code", [_DIES, _DIES_MIDWAY, _HANGS, _SEES_OTHER_BYTES], ids=["dies", "midway", "hangs", "other"]
)
def test_a_broken_worker_costs_time_and_nothing_else(tmp_path, monkeypatch, code):
    """Workers that die, hang or see another file -> the same tables."""
    path = many().write(tmp_path / "x.json")
    one = read_trace(path, chunk=4000, workers=1)
    monkeypatch.setattr(ahead, "_CODE", code)
    monkeypatch.setattr(ahead, "_PATIENCE_S", 1.0)
    assert_same(read_trace(path, chunk=4000, workers=3), one)


def test_nothing_is_left_running_or_open(tmp_path):
    """A reading, and one that ends in an error -> no process, thread or pipe of ours is left."""
    good = many().write(tmp_path / "x.json")
    bad = tmp_path / "bad.json"
    bad.write_text(many().text()[:-2000])
    me = psutil.Process()
    before = me.num_fds(), me.children(), threading.active_count()
    for _ in range(3):
        read_trace(good, chunk=4000, workers=3)
        with pytest.raises(TraceError):
            read_trace(bad, chunk=4000, workers=3)
    assert (me.num_fds(), me.children(), threading.active_count()) == before


def test_how_many_processes(tmp_path, monkeypatch):
    """A small file, a large one, a wish, the environment -> one, the idle cores, the wish, what it says."""
    small, large, packed = (tmp_path / n for n in ("small.json", "large.json", "large.gz"))
    small.write_text("{}")
    for path, first, size in ((large, b"{", 200 << 20), (packed, b"\x1f\x8b", 20 << 20)):
        with path.open("wb") as file:
            file.write(first)
            file.truncate(size)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 9, 9))
    assert [ahead.processes(p) for p in (small, large, packed, tmp_path / "none")] == [1, 3, 3, 1]
    assert ahead.processes(small, 5) == 5
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 0, 0))
    assert ahead.processes(large) == 1
    monkeypatch.setattr(os, "getloadavg", lambda: (0, 0, 0))
    monkeypatch.setenv(ahead.VARIABLE, "1")
    assert ahead.processes(large) == 1
