"""The notebooks run from top to bottom, stay clean in git, and draw in a browser when exported."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path

import pytest

from tests.browser import chromium, opened

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FIGURES = {"kernel_share": 11, "capture_and_diff": 2, "kernel_speed": 1}
MOST_SECONDS = 120.0  # 60 on two quiet cores is the bar; a busy machine must not fail it


@pytest.fixture(scope="module")
def exporter():
    spec = importlib.util.spec_from_file_location("export_notebook", ROOT / "scripts" / "export_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_clean_and_its_cells_are_short(path):
    """A notebook in git -> no outputs, no counters, few lines a cell, prose between them."""
    cells = json.loads(path.read_text())["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in code)
    assert all(len(c["source"]) <= 25 for c in code)
    assert len(cells) - len(code) >= 3


@pytest.mark.parametrize(
    ("notebook", "out", "said"),
    [
        ("gone.ipynb", "page.html", "gone.ipynb: cannot read"),
        ("README.md", "page.html", "README.md: no notebook"),
        ("list.ipynb", "page.html", "list.ipynb: no notebook"),
        ("good.ipynb", "README.md/page.html", "page.html: cannot write there"),
        ("good.ipynb", ".", ": cannot write there"),
        ("good.ipynb", "good.ipynb", "good.ipynb: is the notebook itself"),
    ],
)
def test_what_cannot_be_exported(notebook, out, said, exporter, tmp_path, monkeypatch, capsys):
    """No notebook, or no place for the page -> one line with the remedy, exit 2, before anything runs."""
    (tmp_path / "README.md").write_text("# words")
    (tmp_path / "list.ipynb").write_text("[1]")
    (tmp_path / "good.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    monkeypatch.setattr("sys.argv", ["export_notebook.py", str(tmp_path / notebook), str(tmp_path / out)])
    assert exporter.main() == 2
    told = capsys.readouterr().err
    assert (said in told, told.count("\n")) == (True, 1)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_its_page_draws_every_figure(path, exporter):
    """A notebook run and exported -> no cell fails, in time; its page draws all figures and asks for nothing."""
    began = time.monotonic()
    page = exporter.to_html(exporter.run_notebook(path), path.stem)
    took = time.monotonic() - began
    out = ROOT / "build" / "notebooks" / f"{path.stem}.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    assert took < MOST_SECONDS
    with chromium() as browser, opened(browser, out, 1100) as shown:
        shown.shot(f"notebook-{path.stem}")
        shown.check(FIGURES[path.stem])
