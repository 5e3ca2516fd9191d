"""Broken files: repaired where certain, one clear line where not, salvaged on request, never a traceback."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from hta_dsv4.errors import TraceError
from hta_dsv4.trace.reader import read_trace
from tests.builders import KinetoTrace, baseline, pack


def kernel_sum(trace) -> tuple[int, int]:
    a = trace.activities
    return len(a), int(a["dur_ns"].sum())


WHOLE = (5, 83_000)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_cut_anywhere_is_an_error_and_salvage_keeps_what_is_whole(tmp_path, indent):
    """Plain JSON cut at many places -> "truncated" each time; salvage never loses a whole event again."""
    text = baseline().text(indent=indent)
    path = tmp_path / "cut.json"
    before = 0
    first = text.index("traceEvents") + 16
    for n in range(first, len(text), 31):
        path.write_text(text[:n])
        with pytest.raises(TraceError, match="truncated") as error:
            read_trace(path)
        assert str(path) in str(error.value)
        trace = read_trace(path, salvage=True)
        whole = text[:n].count('"ph"', 0, text[:n].rfind("}"))
        assert trace.partial
        assert any("salvaged" in w for w in trace.warnings)
        assert before <= len(trace.activities) <= 5
        assert len(trace.activities) + len(trace.events) <= whole + 1
        before = len(trace.activities)
    assert before == 5


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_cut_container_is_truncated_not_corrupt(tmp_path, suffix):
    """Packed data that stops halfway -> truncated, with the byte; salvage reads what came out."""
    t = KinetoTrace()
    rng = random.Random(1)
    for i in range(4000):
        t.eager(f"k{rng.random()}", 2, at=100 + 10 * i)
    data = pack(t.text().encode(), suffix)
    path = tmp_path / f"x.json{suffix}"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=r"truncated: the JSON ends at byte \d+"):
        read_trace(path)
    trace = read_trace(path, salvage=True)
    assert trace.partial
    assert 0 < len(trace.activities) < 4000


def test_packed_data_cut_before_its_first_block_says_so(tmp_path):
    """A zstd file of which nothing comes out -> no text in it, possibly truncated."""
    path = tmp_path / "x.zst"
    path.write_bytes(pack(baseline().text().encode(), ".zst")[:40])
    with pytest.raises(TraceError, match="no text in the zstd data"):
        read_trace(path)


def test_a_cut_after_the_last_event_is_still_truncated(tmp_path):
    """All events there but the end of a gzip member missing -> an error, and all of them in salvage."""
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(baseline().text().encode())[:-4])
    with pytest.raises(TraceError, match="truncated after the events"):
        read_trace(path)
    trace = read_trace(path, salvage=True)
    assert (kernel_sum(trace), trace.partial) == (WHOLE, True)


def test_a_flipped_bit_in_gzip_is_corrupt(tmp_path):
    """A gzip whose checksum is wrong -> corrupt, one line, even where the JSON looks whole."""
    data = bytearray(gzip.compress(baseline().text().encode()))
    data[-6] ^= 1
    path = tmp_path / "x.json.gz"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"gzip data is corrupt after \d+ decompressed bytes"):
        read_trace(path)
    assert read_trace(path, salvage=True).partial


@pytest.mark.parametrize(
    ("find", "put", "word"),
    [
        ('"stream": 7', '"x": NaN, "stream": 7', "NaN"),
        ('"stream": 7', '"x": [-Infinity, Infinity,], "stream": 7', "Infinity"),
        ('"block": [128, 1, 1]', '"block": [128, 1, 1,]', "commas"),
        ('"name": "gemm_a"', '"name": "gemm_a", "path": "C:\\Users\\x"', "backslashes"),
        ('"name": "gemm_a"', '"name": "gemm_a", "more": "a\tb\nc"', "control characters"),
        ('"name": "norm_b"', '"name": "norm_b\\ud800"', "surrogate"),
        ('"name": "norm_b"', '"name": "norm_b\udcff"', "UTF-8"),
        ('"schemaVersion": 1', '"schemaVersion": NaN', "NaN"),
        ('"traceName": "/tmp/x.json"', '"traceName": NaN,', "NaN"),
    ],
)
def test_faults_with_one_meaning_are_repaired(tmp_path, find, put, word):
    """Literals, commas, escapes and bytes that JSON forbids -> the same numbers, and a warning that counts."""
    text = baseline().text()
    assert find in text
    path = tmp_path / "x.json"
    path.write_bytes(text.replace(find, put).encode("utf-8", "surrogateescape"))
    for chunk in (128, 1 << 20):
        trace = read_trace(path, chunk=chunk)
        assert kernel_sum(trace) == WHOLE
        assert any(word in w and "repaired" in w for w in trace.warnings)
        assert not trace.partial


def test_a_repair_leaves_text_inside_strings_alone(tmp_path):
    """NaN and ",]" inside a name beside a real NaN -> the name as it was."""
    t = baseline()
    t.kernel("NaN,] Infinity,}", 700, 1)
    path = tmp_path / "x.json"
    path.write_text(t.text().replace('"stream": 7', '"x": NaN, "stream": 7'))
    assert "NaN,] Infinity,}" in set(read_trace(path).activities["name"])


def test_broken_cpu_event_is_left_out_with_its_place(tmp_path):
    """Raw quotes in a Python frame's name -> that frame left out, everything else exact, the line named."""
    t = baseline()
    frame = t.add("python_function", "QUOTES", 95, 1, 4242, 4242)
    t.events.insert(3, t.events.pop(t.events.index(frame)))
    text = t.text(indent=1)
    path = tmp_path / "x.json"
    path.write_text(text.replace("QUOTES", '{"device": "cpu"}(219): f'))
    line = text[: text.index("QUOTES")].count("\n") + 1
    for chunk in (128, 1 << 20):
        trace = read_trace(path, chunk=chunk)
        assert kernel_sum(trace) == WHOLE
        assert f"malformed python_function at line {line}," in " ".join(trace.warnings)
        assert not trace.partial


def test_thousands_of_broken_frames_do_not_take_minutes(tmp_path):
    """3,000 frames with raw quotes among good events -> read in seconds, each one counted."""
    t = KinetoTrace()
    for i in range(3000):
        t.add("python_function", "QUOTES", i, 1, 4242, 4242)
        t.kernel("k", i, "0.5")
    path = tmp_path / "x.json"
    path.write_text(t.text().replace("QUOTES", '{"device": "cpu"}(219): f'))
    trace = read_trace(path)
    assert kernel_sum(trace) == (3000, 1_500_000)
    assert len(trace.warnings) == 6
    assert "3000 malformed events were left out in all: 3000 python_function" in trace.warnings


def test_broken_gpu_event_is_an_error_and_salvage_says_partial(tmp_path):
    """Raw quotes in a kernel's name -> an error with its place; salvage reads the rest as partial."""
    path = tmp_path / "x.json"
    path.write_text(baseline().text().replace('"name": "attn_c"', '"name": "attn"c"'))
    with pytest.raises(TraceError, match=r"malformed JSON at line 1, byte \d+"):
        read_trace(path)
    trace = read_trace(path, salvage=True)
    assert (kernel_sum(trace), trace.partial) == ((4, 43_000), True)


def test_a_quote_lost_early_is_not_taken_for_a_cut(tmp_path):
    """An opening bracket or quote lost in the middle -> malformed at its place; salvage reads on after it."""
    t = KinetoTrace()
    for i in range(300):
        t.kernel(f"k{i}", 10 * i, 5)
    for find, put in (
        ('"name": "k7"', '"name": "k7'),
        ('"k7", "pid": 0', '"k7", "pid": [0'),
        ('"k7", "', '"k7", "x": {"'),
    ):
        path = tmp_path / "x.json"
        path.write_text(t.text().replace(find, put, 1))
        for chunk in (256, 1 << 20):
            with pytest.raises(TraceError, match="malformed JSON"):
                read_trace(path, chunk=chunk)
            trace = read_trace(path, salvage=True, chunk=chunk)
            assert trace.partial
            assert len(trace.activities) == 299


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "empty file"), (b" \n\t", "empty file"), (b"\xef\xbb\xbf", "empty file"), (b"hello", "not JSON"),
        (b"{}", "no \"traceEvents\""), (b'{"traceEvents": {}}', "no list"), (b'{"traceEvents": null}', "no list"),
        (b'{"traceEvents"', "truncated"), (b'{"a": 1, "traceEvents": [', "truncated"), (b"[", "truncated"),
        (b'{"a": tru, "traceEvents": []}', "malformed"), (b'{"traceEvents": [] 5}', "malformed"),
        ('{"traceEvents": []}'.encode("utf-16"), "UTF-16"), (b'{"x": {"traceEvents": [1]}}', "no \"traceEvents\""),
        (b'"traceEvents"', "not JSON"), (b'{"traceEvents": [{"ph": "X",, "ts": 1}]}', "malformed"),
    ],
)  # fmt: skip
def test_what_is_no_trace_gets_one_line(tmp_path, text, word):
    """Text that is no trace -> one line: file, reason, remedy."""
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert word in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_odd_values_are_read_as_far_as_they_go(tmp_path):
    """Wrong types, ids as text, ints over 64 bits, negative and absent times -> rows kept, each kind reported."""
    t = KinetoTrace()
    t.kernel("text_ids", "1.5", "2.5", stream="7", device="0", correlation="12")
    t.kernel("big", 10, 1, correlation=2**64 - 1, bytes=2**63)
    t.kernel("negative", 20, -5)
    t.kernel("no_start", None, 3)
    t.kernel("odd_args", 30, 1)["args"] = [1, 2]
    t.kernel("grid", 40, 1, grid=(1, 2))
    t.kernel("xpu", 50, 1, stream=None, device=None, pid=2)
    t.kernel("zero", 60, 1, correlation=0, external_id=0)
    t.kernel(3, 70, 1)
    t.events += [None, 5, {"ph": "X"}, {"cat": "kernel", "name": "no_phase"}]
    trace = read_trace(t.write(tmp_path / "x.json"))
    a = trace.activities.set_index(trace.activities["name"].astype(str))
    assert a["dur_ns"].to_dict() == {
        "text_ids": 2500, "big": 1000, "negative": 0, "odd_args": 1000, "grid": 1000, "xpu": 1000, "zero": 1000,
        "3": 1000,
    }  # fmt: skip
    assert a.loc["text_ids", ["stream", "device", "correlation"]].tolist() == [7, 0, 12]
    assert a.loc[["big", "zero"], "correlation"].isna().all()
    assert a.loc["grid", ["grid_x", "grid_y", "grid_z"]].isna().all()
    assert a["stream"].isna().to_dict()["xpu"]
    assert a.loc["xpu", "device"] == 2  # from its pid, as Kineto writes it
    said = " | ".join(trace.warnings)
    for word in ("64-bit", "negative duration", "without a usable start", '"args" is no object', '"name" is no text',
                 "are no objects", "without a phase"):  # fmt: skip
        assert word in said


def test_random_damage_never_ends_in_a_traceback(tmp_path):
    """Bytes changed, dropped or added at random -> a trace or a one-line error, whatever the options."""
    rng = random.Random(5)
    texts = [baseline().text().encode(), gzip.compress(baseline().text(indent=1).encode())]
    path = tmp_path / "x.json"
    for i in range(240):
        data = bytearray(texts[i % 2])
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.randrange(256)
            else:
                junk = rng.choices(b'"{}[],:\\0\xff\n', k=rng.randrange(3))
                data[at : at + rng.randrange(9)] = bytes(junk)
        path.write_bytes(data)
        for salvage in (False, True):
            try:
                read_trace(path, salvage=salvage, cpu=i % 3 > 0, chunk=rng.choice((100, 1 << 20)))
            except TraceError as error:
                assert "\n" not in str(error)  # noqa: PT017


def test_a_second_list_of_events_is_not_silently_dropped(tmp_path):
    """Two traces written into one object -> a warning."""
    path = tmp_path / "x.json"
    events = json.dumps(baseline().events)
    path.write_text(f'{{"traceEvents": {events}, "x": 1, "traceEvents": {events}}}')
    trace = read_trace(path)
    assert kernel_sum(trace) == WHOLE
    assert any("second" in w for w in trace.warnings)


def test_text_after_the_end_is_reported(tmp_path):
    """A second object or junk after the trace -> ignored with a warning; zero padding is silent."""
    path = tmp_path / "x.json"
    for junk, warned in ((b'{"more": 1}', True), (b"junk", True), (b"\0\0\0\n", False)):
        path.write_bytes(baseline().text().encode() + junk)
        trace = read_trace(path)
        assert kernel_sum(trace) == WHOLE
        assert any("after the end" in w for w in trace.warnings) == warned


@pytest.mark.parametrize(
    ("find", "put"),
    [
        ('"stream": 7', '"x": DEEP, "stream": 7'),
        ('"schemaVersion": 1', '"schemaVersion": DEEP'),
        ('"/tmp/x.json"', "DEEP"),
    ],
    ids=["event", "header", "trailer"],
)
def test_absurd_nesting_is_one_line(tmp_path, find, put):
    """100,000 brackets in an event or around them -> one line, no recursion error."""
    path = tmp_path / "x.json"
    path.write_text(baseline().text().replace(find, put, 1).replace("DEEP", "[" * 100_000 + "]" * 100_000))
    with pytest.raises(TraceError, match="nested more deeply"):
        read_trace(path)


@pytest.mark.parametrize("rank", [-1, 2**40, "x", 1.5, True])
def test_a_rank_that_is_none_is_unknown_and_said(tmp_path, rank):
    """distributedInfo.rank that cannot be a rank -> 0, unknown, with a warning."""
    trace = read_trace(KinetoTrace(rank=rank).write(tmp_path / "x.json"))
    assert not trace.meta.rank_known
    assert any("is no rank" in w for w in trace.warnings)


def test_metadata_values_beyond_floats_do_not_stop_the_read(tmp_path):
    """1e400 in the device properties, a base time with decimals -> read, the base time reported."""
    t = baseline()
    text = t.text().replace('"numSms": 132', '"numSms": 132, "x": 1e400')
    path = tmp_path / "x.json"
    path.write_text(text.replace("1700000000000000000", "1700000000000000000.5"))
    trace = read_trace(path)
    assert kernel_sum(trace) == WHOLE
    assert any("baseTimeNanoseconds" in w for w in trace.warnings)
