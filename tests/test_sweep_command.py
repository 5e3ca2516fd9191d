"""``hta-dsv4 sweep``: what goes together, every form, figure and page, a sweep that stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hta_dsv4.analysis.sweep_plan import SweepStoppedError
from hta_dsv4.analysis.throughput import throughput
from hta_dsv4.errors import HtaDsv4Error
from hta_dsv4.present import figures
from hta_dsv4.runs.sweep_record import read_sweeps
from tests.conftest import cli
from tests.sweeps import CAMPAIGN, H200, LINE, swept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to measure; give one of --server URL, --variant NAME, --from FILE"),
        (("--server", "http://x", "--variant", "mma"), "--server and --variant given; give one of"),
        (
            ("--variant", "mma", "--gpu-time"),
            "--gpu-time: means nothing to sweep --variant; it goes with --from",
        ),
        (("--server", "http://x", "--context", "9"), "--context: means nothing to sweep --server"),
        (("--from", str(CAMPAIGN), "-c", "1,2"), "--concurrency: means nothing to sweep --from"),
        (("--from", str(CAMPAIGN), "--gpu-time"), "only captures state their GPU time"),
        (("--from", str(CAMPAIGN), "--label", "x"), "several variants; name each as LABEL=PATH"),
        (("--from", str(CAMPAIGN), "--out", "no/such/folder/x.json"), "there is no folder no/such/folder"),
        (("--from", str(CAMPAIGN), "--out", str(CAMPAIGN)), "a file being read"),
        (("--from", str(CAMPAIGN), "--figure", "x.bmp"), "is no form of a figure"),
        (("--from", str(CAMPAIGN), "--json", "--csv"), "exclude each other"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], said: str) -> None:
    """Options that do not go together, or a place that cannot be written -> exit 2, one line with the remedy."""
    done = cli("sweep", *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_every_form(tmp_path: Path) -> None:
    """--json, --csv, --md, --parquet and text of one sweep -> the same throughput in each."""
    name = str(H200["cuda_graph"])
    assert "1,102.47" in cli("sweep", "--from", name).stdout
    assert "| 64 | 1,102.47 |" in cli("sweep", "--from", name, "--md").stdout
    rows = cli("sweep", "--from", name, "--csv").stdout.splitlines()
    assert rows[0].startswith('"variant","concurrency","tokens_per_s"')
    assert rows[5].startswith('"cuda_graph",64,1102.4')
    import pandas as pd

    out = tmp_path / "x.parquet"
    assert cli("sweep", "--from", name, "--parquet", str(out)).returncode == 0
    table = pd.read_parquet(out)
    assert table["tokens_per_s"].iloc[-1] == pytest.approx(1102.47, abs=0.01)


def test_page_with_the_figure_works_alone(tmp_path: Path) -> None:
    """--figure x.html -> one page with figure and tables, labels of the user's as text."""
    page = tmp_path / "x.html"
    done = cli("sweep", "--from", f"<b>&={H200['mma']}", str(H200["split_k"]), "--figure", str(page))
    assert done.returncode == 0
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&=" not in text
    assert "102.59" in text


def test_report_shows_variants_that_were_captured_at_several_c(tmp_path: Path) -> None:
    """A report on mma and bf16_gemm -> mma over C with its step and GPU time, by the manifest; the other has one C."""
    from hta_dsv4.runs.sweep_record import sweeps_beside
    from hta_dsv4.shipped import traces

    known = traces()
    found = sweeps_beside([("tensor cores", known["mma"]), ("bf16_gemm", known["bf16_gemm"])])
    assert [s.label for s in found] == ["tensor cores", "tensor cores (GPU time)"]
    assert {r.concurrency for r in found[0].repeats} == {1, 32}
    page = tmp_path / "r.html"
    assert cli("report", "mma", "-o", str(page)).returncode == 0
    text = page.read_text()
    assert "<h2>Throughput over concurrency</h2>" in text
    assert "mma (GPU time)" in text


def test_figure_that_cannot_be_drawn_is_told_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--figure x.svg without kaleido, x.bmp -> one line with the remedy, and no server is asked."""
    from hta_dsv4.cli import sweep as cli_sweep

    monkeypatch.setattr(cli_sweep, "find_spec", lambda name: None)
    for name, says in (("x.svg", "kaleido"), ("x.bmp", "no form of a figure")):
        with pytest.raises(HtaDsv4Error, match=says):
            cli_sweep._drawable(Path(name))
    done = cli("sweep", "--server", "http://127.0.0.1:1", "--figure", "x.bmp")
    assert (done.returncode, "no form of a figure" in done.stderr) == (2, True)


def test_figure_draws_every_repeat_and_a_line_only_where_one_holds() -> None:
    """A true line and a bent one -> a point per repeat in both panels; ceiling of the first alone."""
    good = throughput(swept(*LINE, label="good"))
    bent = throughput(read_sweeps([str(H200["mma"])])[0])
    figure = figures.throughput([good, bent])
    points = [t for t in figure.data if t.mode == "markers"]
    assert [len(t.x) for t in points] == [9, 9, 15, 15]
    ceilings = [t for t in figure.data if t.name and t.name.endswith(": ceiling")]
    assert [t.name for t in ceilings] == ["good: ceiling"]
    assert ceilings[0].y[0] == pytest.approx(100, rel=0.01)
    assert good.line is not None
    assert good.line.fits is True
    joined = [t for t in figure.data if t.mode == "lines" and t.name == "mma"]
    assert list(joined[0].y) == pytest.approx([m / 1e6 for m in bent.line.mean_ns])  # type: ignore[union-attr]


def test_a_sweep_that_stops_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after some repeats -> table and record of those, exit 130; a server that went away -> exit 2."""
    pytest.importorskip("httpx")
    from hta_dsv4.serving import sweep as serving

    part = swept(*LINE[:5], notes=("stopped after 5 of 9 measurements: interrupted",))
    record = tmp_path / "x.json"
    for cause, code in ((KeyboardInterrupt(), 130), (HtaDsv4Error("the server no longer answers"), 2)):

        def stop(*_: object, cause: BaseException = cause) -> None:
            raise SweepStoppedError(part, cause)

        monkeypatch.setattr(serving, "run_server_sweep", stop)
        done = cli("sweep", "--server", "http://localhost:1", "--out", str(record))
        assert done.returncode == code
        assert "stopped after 5 of 9" in done.stdout
        assert len(json.loads(record.read_text())["variants"][0]["repeats"]) == 5
