"""The accuracy command."""

from __future__ import annotations

from pathlib import Path

import pytest

from hta_dsv4.classify.accuracy import main, measure, read_names, render
from hta_dsv4.classify.rules_file import default_rules

DATA = Path(__file__).parent / "data"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "names.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_measures_per_bucket_and_sorts_the_errors(tmp_path: Path) -> None:
    """One right name, one glue counted elsewhere, one kernel counted as glue -> shares and both lists."""
    path = write(tmp_path, "bucket\tkernel_name", "mhc\t_hc_head_kernel", "glue\tampere_sgemm_128x64_tn",
                 "attention\tfill_kernel")  # fmt: skip
    result = measure(default_rules(), read_names(path))
    assert (result.total, result.share) == (3, pytest.approx(1 / 3))
    assert result.names == {"attention": 1, "glue": 1, "mhc": 1}
    assert result.right == {"attention": 0, "glue": 0, "mhc": 1}
    assert [m.name for m in result.glue_swallowed] == ["ampere_sgemm_128x64_tn"]
    assert [m.name for m in result.swallowed_by_glue] == ["fill_kernel"]
    text = render(result)
    assert "glue counted elsewhere: 1; counted as glue: 1" in text
    assert "attention -> glue (plain-fill): fill_kernel" in text


def test_exit_code_follows_the_minimum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the names right -> exit 0 at a minimum of 0.5 and 1 above it."""
    path = str(write(tmp_path, "kernel_name\tbucket", "_hc_head_kernel\tmhc", "_hc_head_kernel\tglue"))
    assert main([path, "--min", "0.5"]) == 0
    assert main([path, "--min", "0.51"]) == 1
    assert "50.00%" in capsys.readouterr().out


def test_bundled_table_passes_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The table the rules were learned from, minimum 0.98 -> exit 0."""
    assert main([str(DATA / "kernel_names.tsv"), "--min", "0.98"]) == 0
    assert "fp32_simt_gemm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["name\tbucket"], "line 1: needs the columns"),
        (["kernel_name\tbucket"], "holds no names"),
        (["kernel_name\tbucket", "a"], "line 2: 1 columns"),
        (["kernel_name\tbucket", "a\tmhc", "b\tgleu"], "line 3: unknown bucket 'gleu'"),
    ],
)
def test_broken_table_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], expected: str
) -> None:
    """A table with a mistake -> exit 2 and one line naming file, line and what is wrong."""
    path = write(tmp_path, *lines)
    assert main([str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert expected in error
    assert error.count("\n") == 1


def test_missing_table_and_bad_rules_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing table, a missing rules file -> exit 2, each named."""
    table = str(write(tmp_path, "kernel_name\tbucket", "a\tmhc"))
    assert main([str(tmp_path / "no.tsv")]) == 2
    assert "no.tsv" in capsys.readouterr().err
    assert main([table, "--rules", str(tmp_path / "no.toml")]) == 2
    assert "no.toml" in capsys.readouterr().err
