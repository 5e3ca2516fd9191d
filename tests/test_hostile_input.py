"""Input that attacks: numbers without end, padding, names that drive terminals, archives that lie."""

from __future__ import annotations

import gzip
import io
import json
import random
import time
import zipfile
from pathlib import Path

import pytest

from hta_dsv4.errors import HtaDsv4Error, TraceError
from hta_dsv4.present.machine import dumps
from hta_dsv4.runs.loading import load
from hta_dsv4.shipped import label_of, resolve
from hta_dsv4.trace.reader import read_trace, read_traces
from tests.builders import KinetoTrace
from tests.conftest import CASES, cli

PAIR = CASES / "34-diff-a.json"
KERNEL = b'{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":1,"pid":0,"tid":7,"args":{}}'


def zipped(*entries: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", how) as z:
        for name, data in entries:
            z.writestr(name, data)
    return packed.getvalue()


# --- numbers -------------------------------------------------------------------------------------------


def test_durations_whose_sum_passes_int64_are_refused_by_name(tmp_path):
    """Many kernels of 400 days -> an error that names one, not a sum that wrapped around."""
    t = KinetoTrace()
    for i in range(300):
        t.kernel("endless", i, 1 << 45)
    with pytest.raises(TraceError, match=r"last over a year in all.*'endless'"):
        read_trace(t.write(tmp_path / "a.json"))


@pytest.mark.parametrize("dur", ["4611686018427387.904", "9223372036854775.807", "40000000000000"])
def test_one_impossible_duration_is_said_and_not_summed(tmp_path, dur):
    """A kernel of over a year -> counted as 0 ns, with its name and time in a warning."""
    t = KinetoTrace()
    t.kernel("fine", 0, 7)
    t.kernel("endless", 10, dur)
    trace = read_trace(t.write(tmp_path / "a.json"))
    assert int(trace.activities["dur_ns"].sum()) == 7_000
    assert any("impossible duration" in w and f"endless, {dur}" in w for w in trace.warnings)


@pytest.mark.parametrize("ts", ["9223372036854775.807", "-9223372036854775.807"])
def test_a_start_near_the_end_of_int64_is_left_out_and_said(tmp_path, ts):
    """A start time centuries away -> the event is left out with a note, no span wraps around."""
    t = KinetoTrace()
    t.kernel("fine", 0, 7)
    t.kernel("far", ts, 7)
    run = load(t.write(tmp_path / "a.json"))
    assert run.info()[0].span_ns == 7_000
    assert any("without a usable start time" in w for w in run.traces[0].warnings)


def test_a_number_of_thousands_of_digits_is_one_odd_value(tmp_path):
    """A 5,000-digit start time and grid -> that event left out, that grid missing, the rest read."""
    long = b"9" * 5000
    bad = KERNEL.replace(b'"ts":1', b'"ts":' + long)
    grid = KERNEL.replace(b"{}", b'{"grid":[' + long + b",1,1]}")
    huge = KERNEL.replace(b"{}", b'{"grid":[1e400,1,1]}')
    path = tmp_path / "a.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join([KERNEL, bad, grid, huge]) + b"]}")
    trace = read_trace(path)
    assert len(trace.activities) == 3
    assert trace.activities["grid_x"].isna().all()
    assert any("usable start time" in w for w in trace.warnings)


def test_metadata_beyond_float64_becomes_null_in_json(tmp_path):
    """A version of 1e400 in the trace -> info --json is valid JSON with null there."""
    path = tmp_path / "a.json"
    path.write_bytes(b'{"x_version":1e400,"traceEvents":[' + KERNEL + b"]}")
    done = cli("info", str(path), "--json")
    assert json.loads(done.stdout, parse_constant=pytest.fail)["versions"] == {"x_version": None}


def test_json_holds_no_half_of_a_surrogate_pair():
    """A path with bytes that are not UTF-8 -> U+FFFD in JSON; pairs and escaped backslashes stay."""
    text = dumps("info", {"path": "a\udcff", "pair": "\U0001f600", "literal": "\\udcff"})
    assert json.loads(text)["path"] == "a\ufffd"
    assert json.loads(text)["pair"] == "\U0001f600"
    assert json.loads(text)["literal"] == "\\udcff"


# --- sizes ---------------------------------------------------------------------------------------------


def test_zeros_without_end_are_no_trace():
    """A device that gives zeros for ever -> refused after a megabyte."""
    with pytest.raises(TraceError, match="nothing but blanks and zeros"):
        read_trace("/dev/zero")


def test_padding_after_the_json_is_read_to_its_checksum_without_being_held(tmp_path):
    """300 MB of blanks behind a whole trace -> the trace; with a bad checksum behind them -> an error."""
    good = tmp_path / "a.json.gz"
    with gzip.open(good, "wb", 1) as f:
        f.write(PAIR.read_bytes())
        for _ in range(300):
            f.write(b" " * (1 << 20))
    assert len(read_trace(good).activities) == 8
    data = bytearray(good.read_bytes())
    data[-5] ^= 0xFF
    good.write_bytes(data)
    with pytest.raises(TraceError, match="corrupt"):
        read_trace(good)


def test_a_name_full_of_event_boundaries_is_read_in_a_moment(tmp_path):
    """Megabytes of '},{' inside one name -> read, without a trial at each of them."""
    path = tmp_path / "a.json"
    hostile = KERNEL.replace(b'"k"', b'"' + b"},{" * (1 << 20) + b'"')
    path.write_bytes(b'{"traceEvents":[' + KERNEL + b"," + hostile + b"," + KERNEL + b"]}")
    began = time.process_time()
    assert len(read_trace(path).activities) == 3
    assert time.process_time() - began < 5


# --- archives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_anywhere_in_a_zip_is_an_error_or_harmless(tmp_path, how):
    """Any byte of a zip overwritten -> one line naming the file, or the same sums; never another exception."""
    whole, path, rng = zipped(("a.json", PAIR.read_bytes()), how=how), tmp_path / "a.zip", random.Random(how)
    read, errors = 0, []
    for at in sorted(rng.sample(range(len(whole)), 150)):
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            trace = read_trace(path)
        except TraceError as error:
            errors.append(str(error))
        else:
            read += 1
            assert int(trace.activities["dur_ns"].sum()) == 640_000
    assert all(e.startswith(str(path)) and "\n" not in e for e in errors)
    assert read < 100


def test_a_zip_whose_entry_lies_outside_the_file_is_one_line(tmp_path):
    """The directory points before the start of the file -> an error, no OSError."""
    data = bytearray(zipped(("a.json", PAIR.read_bytes())))
    end = data.rindex(b"PK\x05\x06")
    data[end + 12 : end + 16] = (len(data) * 2).to_bytes(4, "little")
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"a\.zip"):
        read_trace(path)


def test_files_of_a_folder_that_only_look_like_lists_or_archives_are_no_traces(tmp_path):
    """TOML, INI and an empty zip beside a trace -> the trace, and a warning that names them."""
    (tmp_path / "a.json").write_bytes(PAIR.read_bytes())
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "numbers.csv").write_text("[1, 2]\n")
    (tmp_path / "none.zip").write_bytes(zipped())
    (trace,) = read_traces(tmp_path)
    assert any("3 files" in w and "pyproject.toml" in w for w in trace.warnings)


# --- names ---------------------------------------------------------------------------------------------


def test_a_name_that_drives_terminals_is_shown_as_escapes(tmp_path):
    """Escape sequences and reversing marks in a kernel's name -> none reaches text or Markdown."""
    t = KinetoTrace()
    t.kernel("\x1b]0;owned\x07\u202egnp\u2028x\x9b31m", 0, 7)
    path = str(t.write(tmp_path / "a.json"))
    for form in ([], ["--md"]):
        out = cli("shares", path, "--by", "kernel", *form).stdout
        assert "owned" in out
        assert not any((ord(c) < 32 and c != "\n") or c in "\x9b\u202e\u2028" for c in out)


def test_an_error_shows_a_hostile_file_name_as_escapes(tmp_path):
    """A broken trace whose file name holds an escape sequence -> one printable line on stderr."""
    path = tmp_path / "a\x1b[2J\nb.json"
    path.write_text("{")
    done = cli("shares", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", ["x" * 5000, "a=" + "y" * 5000, "a\0b", ""])
def test_a_word_that_no_file_can_be_called_is_one_short_line(text):
    """A name too long, with a NUL, or empty -> an error of ours."""
    with pytest.raises(HtaDsv4Error) as caught:
        resolve(text)
    assert len(str(caught.value)) < 1000
    with pytest.raises(HtaDsv4Error):
        load(text)


def test_a_folder_given_as_dot_is_called_by_its_own_name(tmp_path, monkeypatch):
    """The current folder as '.' -> its name is the label; bytes that are no text are escapes in it."""
    here = tmp_path / "decode_c32"
    here.mkdir()
    monkeypatch.chdir(here)
    assert label_of(Path()) == "decode_c32"
    assert label_of(Path("a\udcff.json")) == "a\\udcff"


def test_labels_that_are_no_text_do_not_break_a_comparison():
    """A label with a byte that is not UTF-8 -> compared, shown as an escape."""
    done = cli("diff", f"a\udcff={PAIR}", f"b={CASES / '34-diff-b.json'}", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["base"] == "a\\udcff"


def test_a_second_companion_of_a_variant_is_refused_before_anything_is_read():
    """--companion twice for one variant -> an error that names the first, not a silent choice."""
    done = cli("shares", str(PAIR), "--companion", str(PAIR), "--companion", "h200_probe")
    assert done.returncode == 2
    assert "already" in done.stderr


def test_a_hundred_million_seconds_of_integers_stay_integers_in_json(tmp_path):
    """Times above 2**53 ns -> the same digits in shares and diff, as JSON integers."""
    odd = (1 << 53) + 1
    t = KinetoTrace()
    for step in range(2):
        at = step * 20_000_000_000_000
        t.step(step, at + 1, 15_000_000_000_000)
        t.eager("gemm", f"{odd // 1000}.{odd % 1000:03d}", at=at + 50)
    path = str(t.write(tmp_path / "a.json"))
    (row,) = json.loads(cli("shares", path, "--by", "kernel", "--json").stdout)["variants"][0]["rows"]
    assert (row["time_ns"], row["time_ns_per_step"]) == (2 * odd, odd)
    body = json.loads(cli("diff", f"a={path}", f"b={PAIR}", "--by", "kernel", "--json").stdout)
    delta = {r["kernel"]: r["delta_ns_per_step"] for r in body["variants"][1]["rows"]}
    assert delta["gemm"] == -odd
