"""The report as text: complete, self-contained, safe, reproducible, and written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser

import pytest

import hta_dsv4
from hta_dsv4.present import captures as captures_module
from hta_dsv4.present.captures import Capture, capture_files, report_hash
from hta_dsv4.present.falls import falls
from hta_dsv4.present.grid import Grid
from hta_dsv4.present.html import grid_html
from hta_dsv4.present.notebook import show
from hta_dsv4.present.report import build
from hta_dsv4.present.report_html import report_html
from hta_dsv4.present.report_md import LIMIT, report_md, waterfall_text
from hta_dsv4.runs.launching import launch_changes
from hta_dsv4.runs.standing import standings
from tests.conftest import CASES, cli

HOSTILE = CASES / "37-hostile-kernel-names.json"


class Elements(HTMLParser):
    """Every element and attribute of a page, and its text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self.found or self.found[-1][0] not in ("script", "style"):
            self.text.append(data)


@pytest.fixture(scope="module")
def runs():
    shipped = hta_dsv4.traces()
    return [hta_dsv4.load(shipped[n]) for n in ("mhc_fused", "cuda_graph")]


@pytest.fixture(scope="module")
def report(runs):
    return build(runs, [c for r in runs for c in capture_files(r)])


@pytest.fixture(scope="module")
def page(report):
    return report_html(report)


def test_the_page_is_one_file_that_refers_to_nothing(page):
    """A report -> no element names another file or host, and its security policy forbids asking for any."""
    elements = Elements()
    elements.feed(page)
    for tag, attributes in elements.found:
        assert tag not in ("iframe", "object", "embed", "base")
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "data:,") in ("data:,",), (tag, attributes)
    policy = next(a["content"] for t, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_the_first_thing_is_where_each_variant_stands(report, page):
    """A report -> before all else a table of GPU time, step, tokens per second and what bounds it; in Markdown, too."""
    (lead,) = report.lead
    assert lead.headers[:3] == ("variant", "GPU ms/step (own)", "step ms, unprofiled")
    assert [row[0] for row in lead.rows] == ["mhc_fused", "cuda_graph"]
    assert page.index("where each variant stands") < page.index('class="summary"') < page.index("<h2>")
    text = report_md(report)
    assert text.index("where each variant stands") < text.index("own GPU time")
    assert report.summary[0].startswith("mhc_fused → cuda_graph: step 221.7 → 53.5 ms (4.14x); GPU 52.402 →")


def test_names_may_break_between_words_and_numbers_may_not():
    """A kernel's name with an arrow, a pair of numbers -> breaks after underscores, the name as it was; one arrow."""
    text = grid_html(Grid("t", ("kernel", "grid"), (("my_long_kernel<float, 16> -> x", "32x1 -> 1,024"),)))
    assert "my_<wbr>long_<wbr>kernel&lt;<wbr>float, 16&gt; -&gt; x" in text
    assert '<td class="n">32x1 → 1,024</td>' in text


def test_pages_name_no_option_of_the_command_line():
    """Rows and notes that count what was left out -> on a page they count it, and do not say --full."""
    grid = Grid(
        "t", ("a",), (("(3 more: --full)",),), notes=("(2 more launched alike: --full)", "a --full house")
    )
    page = grid.off_the_command_line
    assert (page.rows, page.notes) == ((("(3 more)",),), ("(2 more launched alike)", "a --full house"))


def test_what_a_bucket_hides_is_said_once_for_neighbours_and_only_where_it_is_much():
    """Three variants of which the same is true -> one sentence; one in which it is a few percent -> none."""
    shipped = hta_dsv4.traces()
    runs = [hta_dsv4.load(shipped[n]) for n in ("split_k_64k", "split_k_8k", "indexer_triton", "mhc_fused")]
    made = build(runs)
    hidden = [s for s in made.summary if "that belongs to" in s]
    assert len(hidden) == 1
    assert hidden[0].startswith(
        "split_k_64k, split_k_8k, indexer_triton: 18.3 to 23.7 % of the GPU time is glue"
    )
    table = next(s for s in made.sections if s.title == "Where the GPU time goes").grids[0]
    assert (
        len(table.headers) == 1 + len(runs) + 1
    )  # of more than two variants one column each, and the change
    assert table.rows[0][1].count("(") == 1


def test_layers_and_steps_of_the_last_variant_are_at_hand_or_said_to_be_missing(runs):
    """An eager last variant -> tables of its layers and steps; a graph alone -> steps, and what gives layers."""

    def section(of):
        return next(s for s in build(of).sections if s.title == "What asked for it")

    eager, graph = section(runs[:1]), section(runs)
    assert {"mhc_fused: layer x bucket, us/step", "mhc_fused: step x bucket, us"} < set(eager.folded)
    assert "cuda_graph: step x bucket, own us" in graph.folded
    assert any("--companion" in t for t in graph.text)
    # one wording in a report, also of a variant in which nothing starts early
    assert {"mhc_fused: bucket x origin, % of own time", "cuda_graph: bucket x origin, % of own time"} < set(
        graph.folded
    )
    assert "mhc_fused: bucket x origin, % of the sum" in eager.folded


def test_plotly_is_in_the_page_once(page):
    """Many figures -> Plotly's script once, and the page below 7 MB."""
    assert page.count("plotly.js v") == 1
    assert len(page) < 7e6


def test_the_page_holds_the_exact_numbers(page, runs):
    """Each variant's exact own time per step by bucket -> in a table of the page, to the nanosecond."""
    elements = Elements()
    elements.feed(page)
    text = " ".join(elements.text)
    for run in runs:
        for row in run.shares().table.head(3).to_dict("records"):
            ns = int(row["own_ns_per_step"])
            assert f"{ns // 1000:,}.{ns % 1000:03d}" in text


def test_the_same_traces_give_the_same_page(runs, page):
    """A report built twice -> the same text: no time of day, no random identifiers."""
    assert report_html(build(runs, [c for r in runs for c in capture_files(r)])) == page


def test_names_like_scripts_become_text():
    """Kernels named <script>, with quotes, pipes and CJK -> no element of theirs, all of them readable."""
    run = hta_dsv4.load(HOSTILE, label='</script><script>alert(2)</script>"')
    page = report_html(build([run], capture_files(run)))
    elements = Elements()
    elements.feed(page)
    assert sum(t == "script" for t, _ in elements.found) == 4  # two of data, Plotly, ours
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    text = "".join(elements.text)
    assert "<script>alert(1)</script>" in text
    assert "名前_カーネル" in text
    data = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.S)
    assert data is not None
    assert json.loads(data.group(1))


def test_a_grid_is_escaped_and_shortened_with_the_whole_name_at_hand():
    """A cell with HTML and a long name -> escaped; the long one cut, its tooltip whole."""
    long = "k" * 300
    html = grid_html(Grid("<t>", ("<h>", "n"), (("<b>x</b>", "1"), (long, "2")), notes=("a & b",), left=1))
    assert "<b>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert f'title="{long}"' in html
    assert "a &amp; b" in html


def test_a_report_of_one_variant_has_no_changes(runs):
    """One variant -> shares, origins, a timeline and kernels, but nothing about a change."""
    titles = [s.title for s in build(runs[:1]).sections]
    assert "Why it changed" not in titles
    assert titles[0] == "Where the GPU time goes"


def test_what_cannot_be_shown_is_said():
    """A trace without steps beside one with -> shares only, and the reasons in the report."""
    made = build([hta_dsv4.load(HOSTILE), hta_dsv4.load(CASES / "34-diff-a.json")])
    text = " ".join(t for s in made.sections for t in s.text)
    assert "only shares are drawn" in text
    assert "Not explained" in text
    assert "no decode steps" in text
    assert report_html(made)


def test_the_comment_names_shares_change_movers_caveats_and_captures(report):
    """Markdown -> share table with a change column, a waterfall as text, top movers, caveats, hashes; short enough."""
    text = report_md(report)
    assert "| fp4\\_moe |" in text
    assert "cuda\\_graph - mhc\\_fused, us/step" in text
    assert "```text" in text
    assert "top movers" in text
    assert "**caveats**" in text
    assert report_hash(report.captures)[:12] in text
    assert all(c.sha256[:12] in text for c in report.captures)
    assert len(text) < LIMIT


def test_the_waterfall_as_text_adds_up(report):
    """A change as text -> its numbers add up from the first line to the last, within rounding to a microsecond each."""
    why = report.explanation.pairs[0]
    numbers = [float(n.replace(",", "")) for n in re.findall(r"([+-]?[\d,]+\.\d{3}) ms", waterfall_text(why))]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.001 * len(numbers))
    assert len(numbers) == len(falls(why.decomposition)) + 2


def test_a_comment_keeps_its_table_whatever_the_names_are():
    """Hostile names and labels -> every table row has the same number of cells; no HTML but ours."""
    text = report_md(build([hta_dsv4.load(HOSTILE, label="a|b<c>")]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", text)


def test_a_comment_of_very_many_changes_stays_below_the_limit(report, monkeypatch):
    """A limit that two changes exceed -> the last are left out, and it says how many."""
    monkeypatch.setattr("hta_dsv4.present.report_md.LIMIT", len(report_md(report)) - 500)
    assert "1 of 1 changes left out" in report_md(report)


def test_hashes_follow_content_and_manifest_not_names():
    """The same content -> the same hash; another manifest or file -> another; key order of a manifest is no matter."""
    one = Capture("a", "x.json", "00", (), 1, {"p": 1, "q": 2})
    assert one.manifest_sha256 == Capture("a", "y.json", "00", (), 1, {"q": 2, "p": 1}).manifest_sha256
    assert report_hash([one]) != report_hash([Capture("a", "x.json", "00", (), 1, {"p": 1, "q": 3})])
    assert report_hash([one]) != report_hash([Capture("a", "x.json", "01", (), 1, {"p": 1, "q": 2})])
    assert Capture("a", "x", "0", (), 0).manifest_sha256 is None


def test_a_hash_is_that_of_the_file(tmp_path, monkeypatch):
    """A file -> its SHA-256, also by the way of Python 3.10."""
    run = hta_dsv4.load(CASES / "00-baseline.json")
    (with_digest,) = capture_files(run)
    monkeypatch.delattr(captures_module.hashlib, "file_digest", raising=False)
    assert capture_files(run)[0].sha256 == with_digest.sha256


def test_report_writes_html_or_markdown_as_asked(tmp_path):
    """-o x.html, -o x.md, no -o -> the form its ending says, Markdown on stdout."""
    html, md = tmp_path / "x.html", tmp_path / "x.md"
    for out in (html, md):
        assert (
            cli(
                "report", str(CASES / "34-diff-a.json"), str(CASES / "34-diff-b.json"), "-o", str(out)
            ).returncode
            == 0
        )
    done = cli("report", str(CASES / "34-diff-a.json"), str(CASES / "34-diff-b.json"))
    assert html.read_text().startswith("<!doctype html>")
    assert md.read_text() == done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.html", "x.md"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "html"], "name it with -o"),
        (["-o", "{dir}"], "this is a folder"),
        (["-o", "{dir}/no/where.html"], "cannot be written"),
        (["-o", "{dir}/x.html", "--sweep", "split_k_8k"], "at least twice"),
        (["-o", "{dir}/x.html", "--sweep", "split_k_8k", "--sweep", "split_k_64k"], "as X=TRACE"),
        (["--format", "pdf"], "pdf"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(arguments, said, tmp_path):
    """Wrong options and paths -> exit 2, one line with the remedy, nothing written."""
    filled = [a.replace("{dir}", str(tmp_path)) for a in arguments]
    done = cli("report", str(CASES / "34-diff-a.json"), *filled)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failing_write_leaves_the_old_report(tmp_path, monkeypatch):
    """A disk that fills while writing -> exit 2, the old file as it was, no temporary file."""
    out = tmp_path / "x.md"
    out.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = cli("report", str(CASES / "34-diff-a.json"), "-o", str(out))
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.md"]


def test_a_report_written_through_a_link_keeps_the_link(tmp_path):
    """-o naming a symbolic link -> its target is written, the link stays."""
    target, link = tmp_path / "real.md", tmp_path / "link.md"
    target.write_text("old")
    link.symlink_to(target)
    assert cli("report", str(CASES / "34-diff-a.json"), "-o", str(link)).returncode == 0
    assert link.is_symlink()
    assert target.read_text() != "old"


def test_show_makes_tables_of_every_result(runs):
    """What each method gives -> HTML tables; anything else -> an error that says what to give."""
    run = runs[1]
    results = [
        run.shares(), run.shares("bucket,origin"), run.fill("bucket"), run.coverage(), run.idle(), run.info(),
        run.roofline(), hta_dsv4.compare(runs), hta_dsv4.why(runs), run.shares().table, standings(runs),
        launch_changes(runs, hta_dsv4.why(runs)),
    ]  # fmt: skip
    html = show(*results)._repr_html_()
    assert html.count("<table>") >= len(results)
    assert "| bucket" in repr(show(run.shares()))
    with pytest.raises(hta_dsv4.HtaDsv4Error, match="int"):
        show(3)
