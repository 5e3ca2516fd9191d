"""``--parquet FILE``: the table of ``--csv``, typed, in a file that is whole and never someone else's."""

from __future__ import annotations

import csv
import io
import os
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from hta_dsv4 import shipped
from hta_dsv4.cli import main as cli_module
from hta_dsv4.cli.files import write_whole
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present.parquet import parquet_bytes
from tests.conftest import CASES

DATA = Path(__file__).parent / "data"
PROBE = str(shipped.traces()["h200_probe"])
A, B = (f"{x}={CASES / f'34-diff-{x}.json'}" for x in "ab")

COMMANDS = {
    "shares": [PROBE, "--by", "kernel"],
    "diff": [A, B, "--by", "kernel"],
    "scaling": [f"1={CASES / '34-diff-a.json'}", f"2={CASES / '34-diff-b.json'}"],
    "info": [PROBE],
    "explain": ["cutlass_80_simt_sgemm_64x128_8x5_tn_align1", "no_such_thing_at_all_zq"],
    "fill": [PROBE],
    "coverage": [PROBE],
    "idle": [PROBE],
    "roofline": [PROBE],
    "whatif": [PROBE, "--remove", "kernel:elementwise"],
    "findings": [PROBE],
    "ranks": ["cuda_graph_c32_tp2"],
    "gate": [A, "--baseline", B, "--budget", DATA / "step_budget.toml"],
    "sweep": ["--from", DATA / "sweeps" / "campaign.csv"],
}


@pytest.fixture
def run(capsys):
    """Run a command line in this process: exit code, standard output, standard error."""

    def go(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli_module.main([str(w) for w in words])
        return (left.value.code, *capsys.readouterr())

    return go


def value(cell):
    """A cell of a CSV file as it is compared: 0 and 0.0 are one number."""
    try:
        return float(cell)
    except ValueError:
        return cell


def test_every_command_with_csv_takes_parquet():
    """The commands that have --csv -> all have --parquet, and are the ones tried below."""
    takes = {
        command.callback.__name__: set(command.callback.__annotations__)
        for command in cli_module.app.registered_commands
    }
    assert {name for name, has in takes.items() if "as_csv" in has} == set(COMMANDS)
    assert {name for name, has in takes.items() if "parquet" in has} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_holds_what_csv_writes(command, run, tmp_path):
    """A command with --csv and with --parquet -> the same columns and cells, nothing on stdout."""
    out = tmp_path / "t.parquet"
    code, said, _ = run(command, *COMMANDS[command], "--csv")
    assert code == 0
    assert run(command, *COMMANDS[command], "--parquet", out)[:2] == (0, "")
    assert os.listdir(tmp_path) == ["t.parquet"]
    table = pq.read_table(out)
    header, *lines = csv.reader(io.StringIO(said))
    assert table.column_names == header
    cells = [["" if c is None else str(c) for c in row.values()] for row in table.to_pylist()]
    assert len(cells) > 1 or command == "info"
    assert [[value(c) for c in row] for row in cells] == [[value(c) for c in line] for line in lines]
    times = [
        f for f in table.schema if f.name in ("time_ns", "time_ns_per_step", "busy_ns", "idle_ns", "tail_ns")
    ]
    assert all(str(f.type) == "int64" for f in times)


def test_integers_keep_their_type_beside_missing_cells(run, tmp_path):
    """diff, whose base has no change -> whole ns in pandas too, missing as NA."""
    out = tmp_path / "t.parquet"
    run("diff", A, B, "--by", "kernel", "--parquet", out)
    frame = pd.read_parquet(out)
    change = frame["delta_ns_per_step"]
    assert str(change.dtype) == "Int64"
    assert change[frame["variant"] == "a"].isna().all()
    assert change.sum() == -19_000


def test_large_integers_mixtures_and_stray_surrogates_survive():
    """2^53 + 1 beside a missing cell, int beside float, half a surrogate pair, no value at all -> as they should be."""
    rows = [
        {"n": (1 << 53) + 1, "x": 1, "s": "\udcff|=1", "b": True},
        {"n": None, "x": 0.5, "s": None, "b": False, "e": None},
    ]
    table = pq.read_table(io.BytesIO(parquet_bytes(["n", "x", "s", "b", "e"], rows)))
    assert table["n"].to_pylist() == [(1 << 53) + 1, None]
    assert table["x"].to_pylist() == [1.0, 0.5]
    assert table["s"].to_pylist() == ["\\udcff|=1", None]
    assert [str(f.type) for f in table.schema] == [
        "int64",
        "double",
        table.schema.field("s").type,
        "bool",
        "null",
    ]
    with pytest.raises(HtaDsv4Error, match="column n"):
        parquet_bytes(["n"], [{"n": 1 << 70}, {"n": None}])
    assert pq.read_table(io.BytesIO(parquet_bytes(["a", "b"], []))).shape == (0, 2)


def test_the_known_gpus_are_a_table_in_every_form(run, tmp_path):
    """The list of GPUs in each form for programs -> one row per GPU."""
    out = tmp_path / "t.parquet"
    assert run("roofline", "--devices", "--parquet", out)[:2] == (0, "")
    names = pq.read_table(out)["name"].to_pylist()
    assert "NVIDIA H200" in names
    _, said, _ = run("roofline", "--devices", "--csv")
    assert [r["name"] for r in csv.DictReader(io.StringIO(said))] == names
    assert '"devices"' in run("roofline", "--devices", "--json")[1]


def test_no_other_file_is_written_over(run, tmp_path):
    """--parquet on the input trace, on a trace not read, on any file -> exit 2, one line, the file as it was."""
    trace = tmp_path / "a.json.gz"
    shutil.copy(PROBE, trace)
    link = tmp_path / "link.parquet"
    link.symlink_to(trace)
    before = trace.read_bytes()
    read, other = "this is a file being read", "other than Parquet"
    cases = (
        ([trace, "--parquet", trace], read),
        ([PROBE, "--parquet", trace], other),
        ([trace, "--parquet", link], read),
    )
    for words, why in cases:
        code, out, err = run("shares", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert why in err
        assert trace.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--parquet", "{}/none/t.parquet"], "no folder"),
        (["--parquet", "{}"], "is a folder"),
        (["--parquet", ""], "an empty word where its value belongs"),
        (["--parquet", "split_k"], "shipped trace"),
        (["--parquet", "{}/" + "n" * 300], "cannot be"),
        (["--parquet", "{}/t.parquet", "--csv"], "exclude each other"),
        (["--parquet"], "requires an argument"),
        (["--parquet", "/dev/full"], "cannot be written"),
        (["--parquet", "/proc/t.parquet"], "cannot be written"),  # not even by root
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(words, says, run, tmp_path):
    """No folder, a folder, a name too long, two forms, a full disk -> one line that says so, exit 2, nothing left."""
    code, out, err = run("info", PROBE, *(w.format(tmp_path) for w in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(monkeypatch, tmp_path):
    """The disk fails as the new file is put in place -> one line, the old content, no leftover."""
    out = tmp_path / "t.parquet"
    out.write_bytes(b"PAR1 old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(HtaDsv4Error, match="No space left"):
        write_whole(out, b"PAR1 new", "--parquet")
    assert out.read_bytes() == b"PAR1 old"
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_an_earlier_result_is_replaced_and_the_same_bytes(run, tmp_path):
    """The same command twice, a link in between -> the same file, the link still a link."""
    out, link = tmp_path / "t.parquet", tmp_path / "link.parquet"
    run("shares", PROBE, "--parquet", out)
    first = out.read_bytes()
    link.symlink_to(out)
    assert run("shares", PROBE, "--parquet", link)[0] == 0
    assert link.is_symlink()
    assert out.read_bytes() == first
