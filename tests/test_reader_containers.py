"""Containers are told by content; folders and archives of ranks; memory does not follow the file."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
import zipfile

import pytest
import zstandard

from hta_dsv4.errors import TraceError
from hta_dsv4.trace.reader import read_trace, read_traces
from tests.builders import KinetoTrace, baseline, pack

TEXT = baseline().text().encode()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            z.writestr(name, data)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        b"\xef\xbb\xbf" + TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:99]) + gzip.compress(b"") + gzip.compress(TEXT[99:]),
        gzip.compress(TEXT[:99]) + b"\0" * 3000 + gzip.compress(TEXT[99:]) + b"\0" * 70000,
        zstandard.compress(TEXT),
        zstandard.compress(TEXT[:99]) + zstandard.compress(TEXT[99:]),
        zipped({"a.json": TEXT}),
        zipped({"d/": b"", "__MACOSX/._a.json": b"x", "d/a.json": TEXT, "README.txt": b"x"}),
        zipped({"a.json.gz": gzip.compress(TEXT)}),
        gzip.compress(gzip.compress(TEXT)),
    ],
    ids=[
        "plain",
        "bom",
        "gzip",
        "members",
        "padding",
        "zstd",
        "frames",
        "zip",
        "zip_clutter",
        "zip_gzip",
        "twice",
    ],
)
def test_container_is_told_by_content(tmp_path, data):
    """A trace packed in some way under a name that says nothing -> the same kernels, no warning."""
    path = tmp_path / "trace"
    path.write_bytes(data)
    trace = read_trace(path)
    assert (len(trace.activities), int(trace.activities["dur_ns"].sum()), trace.warnings) == (5, 83_000, ())


def test_junk_after_gzip_is_reported(tmp_path):
    """Bytes that are not gzip after the data -> ignored with a warning, as gunzip does."""
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(TEXT) + b"junk")
    assert "not gzip" in " ".join(read_trace(path).warnings)


def test_wrong_paths_and_archives_get_one_line(tmp_path):
    """Missing, a folder, a tar, several traces in a zip, an encrypted or broken zip -> one line with a remedy."""
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("a.json")
        info.size = len(TEXT)
        tar.addfile(info, io.BytesIO(TEXT))
    (tmp_path / "two.zip").write_bytes(zipped({"a.json": TEXT, "b.json": TEXT}))
    (tmp_path / "none.zip").write_bytes(zipped({}))
    (tmp_path / "cut.zip").write_bytes(zipped({"a.json": TEXT})[:200])
    (tmp_path / "gzipped.tar.gz").write_bytes(gzip.compress((tmp_path / "x.tar").read_bytes()))
    for name, word in (
        ("missing.json", "no such file"), ("", "is a folder"), ("x.tar", "tar archive"), ("two.zip", "holds 2 files"),
        ("none.zip", "holds no file"), ("cut.zip", "cannot be read"), ("gzipped.tar.gz", "tar archive"),
    ):  # fmt: skip
        with pytest.raises(TraceError, match=word) as error:
            read_trace(tmp_path / name)
        assert "\n" not in str(error.value)


def test_a_named_entry_of_a_zip(tmp_path):
    """Two traces in a zip and one named -> that one."""
    other = KinetoTrace(rank=1)
    other.kernel("only", 1, 2)
    path = tmp_path / "two.zip"
    path.write_bytes(zipped({"a.json": TEXT, "b.json": other.text().encode()}))
    assert read_trace(path, member="b.json").activities["name"].tolist() == ["only"]
    with pytest.raises(TraceError, match=r"entry c\.json"):
        read_trace(path, member="c.json")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    """A file that unpacks to far more than any trace does -> refused, unless allowed."""
    monkeypatch.setattr("hta_dsv4.trace.container.RATIO_FREE", 1 << 20)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20) + b"]}"))
    with pytest.raises(TraceError, match="unpacks to more than 400 times"):
        read_trace(path)
    assert read_trace(path, max_ratio=10_000).activities.empty


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    """A progress callback -> grows and ends at the file's size."""
    path = baseline().write(tmp_path / "x.json.gz")
    seen: list[tuple[int, int]] = []
    read_trace(path, progress=lambda done, size: seen.append((done, size)))
    size = path.stat().st_size
    assert seen[-1] == (size, size)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_memory_follows_the_tables_not_the_file(tmp_path):
    """24 MB of JSON that makes few rows -> a peak far below it."""
    t = KinetoTrace()
    t.kernel("k", 1, 2)
    event = (
        '{"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 5106093298343.101, "cat": "ac2g", "name": "ac2g"},'
    )
    text = t.text().replace('"traceEvents": [', '"traceEvents": [' + event * 250_000)
    path = tmp_path / "x.json.gz"
    path.write_bytes(pack(text.encode(), ".gz"))
    del text
    read_trace(path)
    tracemalloc.start()
    trace = read_trace(path, chunk=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(trace.activities) == 1
    assert peak < 14 << 20


# --- folders and archives of ranks -----------------------------------------------------------------------


def rank(n: int | None, us: float = 5) -> bytes:
    t = KinetoTrace(rank=n, world_size=2)
    t.eager("gemm_a", us, at=100)
    return t.text().encode()


def test_a_folder_of_ranks_is_read_in_rank_order(tmp_path):
    """Two ranks, a text file, a hidden file and a metadata file -> two traces by rank, the rest named."""
    (tmp_path / "b.json").write_bytes(rank(0))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(rank(1, 7)))
    (tmp_path / "profiler_out.txt").write_text("Self CPU time total")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "run.json").write_text('{"label": "x"}')
    (tmp_path / "sub").mkdir()
    traces = read_traces(tmp_path)
    assert [set(t.activities["rank"]) for t in traces] == [{0}, {1}]
    assert [int(t.activities["dur_ns"].sum()) for t in traces] == [5000, 7000]
    assert "2 files of" in traces[0].warnings[-1]
    assert "profiler_out.txt, run.json" in traces[0].warnings[-1]


def test_a_zip_of_ranks_is_a_folder_of_ranks(tmp_path):
    """Two ranks in a zip -> two traces; one file -> one."""
    path = tmp_path / "x.zip"
    path.write_bytes(zipped({"1.json": rank(1), "0.json": rank(0)}))
    assert [t.meta.distributed["rank"] for t in read_traces(path)] == [0, 1]
    (tmp_path / "x.json").write_bytes(rank(3))
    assert [t.meta.distributed["rank"] for t in read_traces(tmp_path / "x.json")] == [3]


def test_two_files_of_one_rank_are_refused(tmp_path):
    """The same rank twice -> an error that names both files."""
    (tmp_path / "a.json").write_bytes(rank(1))
    (tmp_path / "b.json").write_bytes(rank(1))
    with pytest.raises(TraceError, match=r"a\.json and b\.json are both rank 1"):
        read_traces(tmp_path)


def test_ranks_the_files_do_not_say_come_from_their_names(tmp_path):
    """No distributedInfo but rankN or -TP-N in the name -> that rank, said; neither -> refused."""
    (tmp_path / "rank0.17.pt.trace.json").write_bytes(rank(None))
    (tmp_path / "17-TP-1.trace.json").write_bytes(rank(None))
    traces = read_traces(tmp_path)
    assert [t.activities["rank"].tolist() for t in traces] == [[0], [1]]
    assert all("taken from its name" in t.warnings[-1] for t in traces)
    (tmp_path / "tp2.json").write_bytes(rank(None))
    with pytest.raises(TraceError, match="both rank 0"):
        read_traces(tmp_path)


def test_a_broken_rank_is_not_left_out(tmp_path):
    """One rank of two truncated -> an error, not half an answer."""
    (tmp_path / "a.json").write_bytes(rank(0))
    (tmp_path / "b.json").write_bytes(rank(1)[:-200])
    with pytest.raises(TraceError, match=r"b\.json: truncated"):
        read_traces(tmp_path)
    assert [t.partial for t in read_traces(tmp_path, salvage=True)] == [False, True]


def test_a_folder_without_traces_is_an_error(tmp_path):
    """No trace in a folder -> an error that counts what is there."""
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(TraceError, match="no trace among 1 file"):
        read_traces(tmp_path)
