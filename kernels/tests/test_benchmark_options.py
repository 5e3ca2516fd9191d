"""What an option of the kernels' benchmarks cannot be is said before anything is measured."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tune_hopper --out /no/folder/x.json", "/no/folder/x.json: cannot be written"),
        ("tune_hopper --out . --batches 1", ".: cannot be written"),
        ("sparse_mla --out /no/folder/x.json", "/no/folder/x.json: cannot be written"),
        ("sparse_mla --batches 4 0", "'0': give a whole number from 1 on"),
        ("profile_call --batch many", "'many': give a whole number from 1 on"),
        ("tune_moe fp8 32", "'fp8': give mxfp4, nvfp4 or a number of tokens"),
        ("run_hopper_form", "the following arguments are required"),
        ("run_hopper_form loops plain 7", "invalid choice: 'loops'"),
        ("run_hopper_form loop plain -1", "-1"),
    ],
)
def test_what_an_option_cannot_be(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file, number or name that cannot be -> one line says so, exit 2, on any machine."""
    name, *more = words.split()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", [name, *more])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
