"""What comes from the cache equals what is read; stale, damaged and unwritable caches change nothing."""

from __future__ import annotations

import gzip
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hta_dsv4.errors import TraceError
from hta_dsv4.trace import cache, cache_folder, stored
from hta_dsv4.trace.content import Content
from hta_dsv4.trace.model import Trace, TraceMeta
from hta_dsv4.trace.reader import read_trace, read_traces
from tests.builders import KinetoTrace, baseline
from tests.conftest import CASES, cli

SHIPPED = Path(__file__).parents[1] / "traces"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty cache that takes traces of any size."""
    where = tmp_path / "cache"
    monkeypatch.setenv(cache_folder.VARIABLE, str(where))
    monkeypatch.setattr(cache, "MIN_JSON_BYTES", 0)
    monkeypatch.setattr(cache, "MIN_FILE_BYTES", 0)
    return where


def put(path: Path, data: str | bytes) -> Path:
    """Write a file, and wait until its time of change is in the past."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    time.sleep(0.06)
    return path


def entries(home: Path) -> list[Path]:
    return sorted((home / "traces").iterdir()) if (home / "traces").exists() else []


def assert_equal(a: Trace, b: Trace) -> None:
    for left, right in ((a.activities, b.activities), (a.events, b.events)):
        pd.testing.assert_frame_equal(left, right, check_exact=True, check_column_type=True)
        for name in left.columns:
            if isinstance(left[name].dtype, pd.CategoricalDtype):
                assert left[name].cat.categories.dtype == right[name].cat.categories.dtype
                assert left[name].cat.codes.dtype == right[name].cat.codes.dtype
        assert left.attrs == right.attrs
    others = [f.name for f in fields(a) if f.name not in ("activities", "events")]
    assert [getattr(a, n) for n in others] == [getattr(b, n) for n in others]


def never_read(monkeypatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("read afresh")

    monkeypatch.setattr("hta_dsv4.trace.reader._read", read)


# --- the same trace --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [*sorted(p for p in CASES.iterdir() if p.suffix != ".md" and p.name != "EXPECT.json"),
     *(SHIPPED / f"{n}.trace.json.gz" for n in ("h200_probe", "cuda_graph", "cuda_graph_eager", "mhc_fused"))],
    ids=lambda p: p.name,
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"cpu": False}, {"salvage": True, "python_frames": True}], ids=str)
def test_what_is_kept_equals_what_is_read(home, monkeypatch, path, options):
    """Any case or shipped trace, read twice -> the second time from the cache, equal frame by frame."""
    try:
        fresh = read_trace(path, cache=False, **options)
    except TraceError as error:
        with pytest.raises(TraceError) as again:
            read_trace(path, **options)
        assert str(again.value) == str(error)  # noqa: PT017
        assert not entries(home)
        return
    assert_equal(read_trace(path, **options), fresh)
    never_read(monkeypatch)
    assert_equal(read_trace(path, **options), fresh)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=300),
    big=st.integers(-(2**63), 2**63 - 1), top=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner), max_leaves=8,
    ),
)  # fmt: skip
def test_any_names_numbers_and_metadata_survive(tmp_path, names, big, top):
    """Names of any characters, ids up to 64 bits, metadata of any JSON -> the same after storing and loading."""
    t = KinetoTrace(note=top)
    for i, name in enumerate(names):
        t.kernel(name, i, None if i % 7 == 3 else "1.001", correlation=big if i % 2 else None)
        t.op(name, i, 1, external_id=i, shapes=[[i % 5]])
    trace = read_trace(t.write(tmp_path / "x.json"), cache=False)
    folder = tmp_path / "entry"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stored.store(trace, folder, {})
    assert_equal(stored.load(folder, trace.path), trace)


@dataclass(frozen=True, slots=True)
class WiderMeta(TraceMeta):
    """Metadata with one thing more to say."""

    clocks: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WiderTrace(Trace):
    """A trace of which more is known."""

    meta: WiderMeta
    lost: tuple[tuple[str, int], ...] = ()


def test_a_field_added_to_the_model_is_kept_by_itself(tmp_path, monkeypatch):
    """New fields of tuples and of numbers as keys, named nowhere but in the model -> the same after loading."""
    monkeypatch.setattr(stored, "Trace", WiderTrace)
    stored._facts.cache_clear()
    read = read_trace(baseline().write(tmp_path / "x.json"), cache=False)
    meta = WiderMeta(clocks={3: (0.5, 1e300)})
    trace = WiderTrace(
        path=read.path, meta=meta, activities=read.activities, events=read.events, lost=(("k", 7),)
    )
    stored.store(trace, tmp_path, {})
    try:
        assert_equal(stored.load(tmp_path, read.path), trace)
    finally:
        stored._facts.cache_clear()


def test_tables_of_several_row_groups_are_whole(tmp_path, monkeypatch):
    """A row group of 7 rows -> the same tables, missing values at every place."""
    monkeypatch.setattr(stored, "ROWS", 7)
    t = KinetoTrace()
    for i in range(50):
        t.kernel(f"k{i % 11}", i, "0.5", correlation=i if i % 3 else None)
    trace = read_trace(t.write(tmp_path / "x.json"), cache=False)
    (tmp_path / "entry").mkdir()
    stored.store(trace, tmp_path / "entry", {})
    assert_equal(stored.load(tmp_path / "entry", trace.path), trace)


def test_options_have_entries_of_their_own(home, tmp_path):
    """The same file without CPU side -> another entry; a copy under another name -> the same entry."""
    path = put(tmp_path / "x.json", baseline().text())
    assert len(read_trace(path).events)
    assert not len(read_trace(path, cpu=False).events)
    assert len(entries(home)) == 2
    copy = Path(shutil.copy(path, tmp_path / "y.json"))
    time.sleep(0.06)
    assert read_trace(copy).path == copy
    assert len(entries(home)) == 2


def test_a_folder_of_ranks_is_cached_file_by_file(home, tmp_path, monkeypatch):
    """Two ranks, one named by its file only -> two entries, and the rank by name again."""
    folder = tmp_path / "run"
    folder.mkdir()
    for n in (0, 1):
        t = KinetoTrace(rank=None)
        t.eager(f"k{n}", 5, at=100)
        put(folder / f"rank{n}.json", t.text())
    first = read_traces(folder)
    assert len(entries(home)) == 2
    never_read(monkeypatch)
    for a, b in zip(first, read_traces(folder), strict=True):
        assert_equal(a, b)


# --- another file ----------------------------------------------------------------------------------------


def test_a_changed_file_is_read_afresh(home, tmp_path):
    """Another text of the same length, its modification time put back -> the new text's kernels."""
    text = baseline().text()
    path = put(tmp_path / "x.json", text)
    before = path.stat()
    assert "gemm_a" in set(read_trace(path).activities["name"])
    put(path, text.replace("gemm_a", "GEMM_A"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    time.sleep(0.06)
    assert "GEMM_A" in set(read_trace(path).activities["name"])
    assert len(entries(home)) == 2


def test_a_digest_is_not_believed_where_the_sample_differs(tmp_path):
    """Times and inode that tell nothing -> the sampled blocks tell that the file is another."""
    path = put(tmp_path / "x.json", baseline().text())
    content = Content(path, tmp_path / "paths")
    assert content.digest() == content._remembered() is not None
    with open(path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b" ")
    assert content.size == path.stat().st_size
    assert content._remembered() is None


def test_a_file_written_this_moment_is_hashed_again(home, tmp_path):
    """A file whose last change is younger than a tick of its file system -> not kept, as it may change unseen."""
    path = tmp_path / "x.json"
    path.write_text(baseline().text())
    slot = cache.Slot(path, {})
    assert slot.find() is None
    slot._content._looked_ns = path.stat().st_ctime_ns + 1_000_000
    assert not slot.keep(read_trace(path, cache=False), 1000)
    assert not entries(home)


def test_a_file_that_changes_while_it_is_read_is_not_kept(home, tmp_path):
    """Bytes added between begin and end of reading -> no entry."""
    path = put(tmp_path / "x.json", baseline().text())
    slot = cache.Slot(path, {})
    assert slot.find() is None
    trace = read_trace(path, cache=False)
    put(path, baseline().text() + " ")
    assert not slot.keep(trace, 1000)
    assert not entries(home)


def test_another_reader_never_finds_it(home, tmp_path, monkeypatch):
    """The reader's source has changed -> read afresh, beside the old entry."""
    path = put(tmp_path / "x.json", baseline().text())
    read_trace(path)
    monkeypatch.setattr(cache, "reader_version", lambda: "another")
    read_trace(path)
    assert len(entries(home)) == 2


# --- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["activities.parquet", "events.parquet", "trace.json"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut", "flipped", "other"])
def test_a_damaged_entry_is_made_again(home, tmp_path, monkeypatch, name, how):
    """A file of the entry missing, empty, cut, with a changed byte or of another entry -> read afresh, then whole."""
    t = baseline()
    for i in range(300):
        t.eager(f"k{i % 13}", "2.125", at=1000 + 10 * i)
    path = put(tmp_path / "x.json", t.text())
    fresh = read_trace(path)
    other = put(tmp_path / "y.json", baseline().text())
    read_trace(other)
    entry, beside = sorted(entries(home), key=lambda e: int(e.name.split("-")[0]), reverse=True)
    file = entry / name
    data = file.read_bytes()
    rng = random.Random(f"{name}{how}")
    for _ in range(25 if how in ("cut", "flipped") else 1):
        at = rng.randrange(len(data))
        if how == "gone":
            file.unlink()
        elif how == "other":
            file.write_bytes((beside / name).read_bytes())
        else:
            flipped = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            file.write_bytes({"empty": b"", "cut": data[:at], "flipped": flipped}[how])
        assert_equal(read_trace(path), fresh)
        assert file.exists()
    with monkeypatch.context() as m:
        never_read(m)
        assert_equal(read_trace(path), fresh)
    assert len(entries(home)) == 2


def test_a_damaged_record_of_paths_is_made_again(home, tmp_path):
    """The file that remembers digests is no JSON -> the trace is hashed, and found."""
    path = put(tmp_path / "x.json", baseline().text())
    fresh = read_trace(path)
    (record,) = (home / "paths").iterdir()
    for junk in (b"", b"{", b"[]", b'{"facts": 1}', b"\xff\xfe"):
        record.write_bytes(junk)
        assert_equal(read_trace(path), fresh)
        assert b"digest" in record.read_bytes()


def test_a_bomb_that_was_allowed_once_is_refused_by_default(home, tmp_path, monkeypatch):
    """A file kept with a raised limit -> refused again without it."""
    monkeypatch.setattr("hta_dsv4.trace.container.RATIO_FREE", 1 << 20)
    monkeypatch.setattr("hta_dsv4.trace.reader.RATIO_FREE", 1 << 20)
    path = put(tmp_path / "bomb.gz", gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20) + b"]}"))
    read_trace(path, max_ratio=10_000)
    assert entries(home)
    with pytest.raises(TraceError, match="unpacks to more than 400 times"):
        read_trace(path)


# --- folders that cannot be written ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["/proc/nothing", "/dev/null/x", "a\0b"])
def test_a_cache_that_cannot_be_made_does_no_harm(home, tmp_path, monkeypatch, where):
    """A folder where nothing can be written -> the trace, nothing kept."""
    path = put(tmp_path / "x.json", baseline().text())
    fresh = read_trace(path, cache=False)
    monkeypatch.setattr(cache, "folder", lambda: Path(where))
    assert_equal(read_trace(path), fresh)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_read_only_cache_still_gives_what_it_has(home, tmp_path, monkeypatch):
    """An entry in a folder without write permission -> found; another trace -> read, not kept."""
    path, other = (put(tmp_path / n, baseline().text() + " " * len(n)) for n in ("x.json", "longer.json"))
    fresh = read_trace(path)
    for folder in (home / "traces", home / "paths"):
        folder.chmod(0o500)
    read_trace(other)
    assert len(entries(home)) == 1
    never_read(monkeypatch)
    assert_equal(read_trace(path), fresh)


def test_a_full_disk_leaves_nothing_half_written(home, tmp_path):
    """No file may grow beyond 2,000 bytes -> the trace, and no entry."""
    path = put(tmp_path / "x.json", baseline().text())
    fresh = read_trace(path, cache=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        trace = read_trace(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_equal(trace, fresh)
    assert not entries(home)


# --- several processes -----------------------------------------------------------------------------------

_WORK = """
import sys
from pathlib import Path
from hta_dsv4.trace import cache, cache_folder
from hta_dsv4.trace.reader import read_trace
cache.MIN_JSON_BYTES = cache.MIN_FILE_BYTES = 0
for i in range(12):
    trace = read_trace(sys.argv[1])
    print(len(trace.activities), int(trace.activities["dur_ns"].sum()), len(trace.events), len(trace.warnings))
    if i % 4 == int(sys.argv[2]):
        for entry in (cache_folder.folder() / "traces").iterdir():
            cache_folder.evict(cache_folder.folder(), 0)
"""


def test_processes_that_write_read_and_remove_at_once_agree(home, tmp_path):
    """Four processes on one trace, each also emptying the cache -> the same answer from each; no folder left over."""
    t = baseline()
    for i in range(3000):
        t.eager(f"k{i % 7}", "1.5", at=1000 + 5 * i)
    path = put(tmp_path / "x.json", t.text())
    command = [sys.executable, "-c", _WORK, str(path)]
    running = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    said = [p.communicate() for p in running]
    assert [p.returncode for p in running] == [0] * 4, said
    assert len({line for out, _ in said for line in out.splitlines()}) == 1
    assert not [e for e in entries(home) if e.name.startswith(".")]
    assert len(entries(home)) <= 1


# --- size ------------------------------------------------------------------------------------------------


def test_small_traces_are_not_kept(home, tmp_path, monkeypatch):
    """JSON below the threshold -> no entry."""
    monkeypatch.setattr(cache, "MIN_JSON_BYTES", 64 << 20)
    read_trace(put(tmp_path / "x.json", baseline().text()))
    assert not entries(home)


def test_the_oldest_go_first(home, tmp_path, monkeypatch):
    """A limit for two entries and three traces -> the one used longest ago is gone."""
    paths = [put(tmp_path / f"{n}.json", baseline().text() + " " * n) for n in range(3)]
    read_trace(paths[0])
    size = cache_folder.usage(home).bytes
    monkeypatch.setenv(cache_folder.LIMIT_VARIABLE, str(2.5 * size / 1e9))
    read_trace(paths[1])
    read_trace(paths[0])  # used again: now paths[1] is the oldest
    read_trace(paths[2])
    left = {int(e.name.split("-")[0]) for e in entries(home)}
    assert left == {paths[0].stat().st_size, paths[2].stat().st_size}


def test_nothing_but_entries_is_ever_removed(home, tmp_path):
    """Files of others in the cache's folders -> still there after clearing."""
    read_trace(put(tmp_path / "x.json", baseline().text()))
    (home / "traces" / "mine").mkdir()
    (home / "traces" / "mine" / "a.json").write_text("x")
    (home / "paths" / "mine.json").write_text("x")
    assert cache_folder.clear(home) == 1
    assert cache_folder.usage(home).entries == 0
    assert (home / "traces" / "mine" / "a.json").exists()
    assert (home / "paths" / "mine.json").exists()


def test_where_it_is(monkeypatch, tmp_path):
    """HTA_DSV4_CACHE, XDG_CACHE_HOME or the home folder -> in this order; off -> none."""
    monkeypatch.setenv(cache_folder.VARIABLE, str(tmp_path))
    assert cache_folder.folder() == tmp_path
    monkeypatch.setenv(cache_folder.VARIABLE, " OFF ")
    assert cache_folder.folder() is None
    monkeypatch.delenv(cache_folder.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder.folder() == tmp_path / "hta_dsv4"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder.folder() == Path("/home/someone/.cache/hta_dsv4")


def test_off_reads_and_keeps_nothing(home, tmp_path, monkeypatch):
    """HTA_DSV4_CACHE=off -> no entry, and one that is there is not used."""
    path = put(tmp_path / "x.json", baseline().text())
    monkeypatch.setenv(cache_folder.VARIABLE, "off")
    read_trace(path)
    assert not entries(home)


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_says_where_and_clears(home, tmp_path):
    """One trace kept -> its folder, count and size; cleared, nothing; off, one line and exit code 2."""
    read_trace(put(tmp_path / "x.json", baseline().text()))
    assert cli("cache", "--where").stdout == f"{home}\n"
    assert "1 trace," in cli("cache").stdout
    assert cli("cache", "--clear").stdout.startswith("removed 1 trace,")
    assert not entries(home)
    assert cli("cache", "--where", "--clear").returncode == 2


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_where_the_cache_belongs_is_told(tmp_path, monkeypatch, inside):
    """HTA_DSV4_CACHE names a file, or a folder inside one -> cache ends with 2; traces are read, with one line."""
    trace, file = put(tmp_path / "x.json", baseline().text()), put(tmp_path / "file", "mine")
    monkeypatch.setenv(cache_folder.VARIABLE, str(file / "x" if inside else file))
    for words in ([], ["--where"], ["--clear"]):
        done = cli("cache", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"{file} is a file, so no trace is kept" in done.stderr
    done = cli("shares", str(trace))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert f"{file} is a file" in done.stderr
    assert cli("explain", "gemm").stderr == ""
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_told(home, tmp_path, monkeypatch):
    """No right to write -> the traces there are counted, and that nothing new is kept is said; reading goes on."""
    trace = put(tmp_path / "x.json", baseline().text())
    read_trace(trace)
    monkeypatch.setattr(cache_folder.os, "access", lambda *_: False)  # as root everything may be written
    assert "1 trace, " in (said := cli("cache").stdout)
    assert "nothing new is kept" in said
    done = cli("shares", str(trace))
    assert (done.returncode, "cannot be written" in done.stderr) == (0, True)


def test_a_relative_folder_is_the_current_ones(tmp_path, monkeypatch):
    """HTA_DSV4_CACHE without a root -> below the current folder, and shown whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache_folder.VARIABLE, "kept")
    assert cli("cache", "--where").stdout == f"{tmp_path / 'kept'}\n"


def test_no_cache_may_stand_anywhere(home, tmp_path, monkeypatch):
    """--no-cache before or after the command's name -> nothing kept; after ``--`` it is a name."""
    path = put(tmp_path / "x.json", baseline().text())
    for words in (["--no-cache", "shares", str(path)], ["shares", str(path), "--no-cache"]):
        monkeypatch.setenv(cache_folder.VARIABLE, str(home))
        assert cli(*words).returncode == 0
        assert not entries(home)
    monkeypatch.setenv(cache_folder.VARIABLE, str(home))
    assert cli("shares", str(path)).returncode == 0
    assert len(entries(home)) == 1
    assert "--no-cache" in cli("explain", "--", "--no-cache").stdout
    monkeypatch.setenv(cache_folder.VARIABLE, "off")
    done = cli("cache")
    assert (done.returncode, "is off" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "gb"), [("nan", 10), ("x", 10), ("", 10), ("-1", 0), ("0.5", 0.5), ("inf", 1e9)]
)
def test_the_limit_is_a_number(monkeypatch, text, gb):
    """A limit that is no number -> the usual one; below nothing -> nothing is kept; without end -> none."""
    monkeypatch.setenv(cache_folder.LIMIT_VARIABLE, text)
    assert cache_folder.limit_bytes() == gb * 1e9
