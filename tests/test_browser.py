"""The report in a real browser: every figure drawn, nothing asked of the network, readable on a phone and on paper."""

from __future__ import annotations

import pytest

from tests.browser import SHOTS, chromium, opened
from tests.conftest import CASES, cli


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "report.html"
    done = cli(
        "report", "indexer_triton", "mhc_fused", "cuda_graph", "--companion", "cuda_graph=cuda_graph_eager",
        "--param", "max_context", "--sweep", "split_k_8k", "--sweep", "split_k_64k", "-o", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


# shares, times, two waterfalls (a change and the whole), heatmap, all steps on one clock, coverage, scaling
FIGURES = 8
# the waterfall of a change below 2 %, and the step of each variant
FOLDED = 4


WINDOWS = [("desktop", 1200, False), ("dark", 1200, True), ("phone", 390, False)]


@pytest.mark.parametrize(("name", "width", "dark"), WINDOWS)
def test_the_report_draws_every_figure(browser, report, name, width, dark):
    """A report of three variants, on a desk, in the dark and on a phone -> all figures, nothing cut, no request."""
    with opened(browser, report, width, dark) as page:
        page.shot(f"report-{name}")
        page.check(FIGURES)
        fill = "rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)"
        assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == fill
        assert (
            page.page.evaluate("getComputedStyle(document.querySelector('.main-svg')).backgroundColor")
            == fill
        )


_TABLES = """
() => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  return Array.from(document.querySelectorAll('.table')).filter(t => t.querySelector('.scroll')).map(t => {
    const box = t.querySelector('.scroll'), caption = t.querySelector('.caption');
    const lines = Array.from(t.querySelectorAll('td')).filter(c => /^[0-9a-f]{12}$/.test(c.textContent))
      .map(c => { const r = document.createRange(); r.selectNodeContents(c); return r.getClientRects().length; });
    return {title: caption ? caption.textContent : '', over: box.scrollWidth - box.clientWidth, hashes: lines,
            shown: getComputedStyle(box).backgroundImage.split('gradient').length - 1};
  });
}
"""


def test_tables_fit_a_desk_or_are_seen_to_scroll(browser, report):
    """Everything opened at 1280 px -> tables fit, hashes stay on a line; edges would be shaded; no option is named."""
    with opened(browser, report, 1280, False) as page:
        tables = page.page.evaluate(_TABLES)
        launches = [t for t in tables if t["title"].startswith("launch configurations")]
        assert launches
        assert all(t["shown"] >= 4 for t in tables)  # shaded where one scrolls, as on a phone
        assert not [t for t in tables if t["over"] > 0]
        hashes = [n for t in tables for n in t["hashes"]]
        assert set(hashes) == {1}
        assert "--full" not in page.page.evaluate("document.body.textContent.split('<script')[0]")


def test_the_report_fits_on_paper(browser, report):
    """The report printed -> A4 landscape pages, figures as wide as the paper and light also from a dark screen."""
    with opened(browser, report, 1600, dark=True) as page:
        SHOTS.mkdir(parents=True, exist_ok=True)
        content = page.page.pdf(path=SHOTS / "report.pdf", prefer_css_page_size=True, print_background=True)
        assert content.startswith(b"%PDF")
        assert 5 <= content.count(b"/Type /Page\n") <= 40
        page.page.emulate_media(media="print", color_scheme="light")
        page.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.page.wait_for_timeout(300)
        assert {round(f["width"]) for f in page.figures()} == {1020}
        assert page.errors == []
        page.page.evaluate("window.dispatchEvent(new Event('afterprint'))")


def test_hostile_names_run_nothing_in_the_browser(browser, tmp_path):
    """A report on kernels named like scripts -> no dialog, no element of theirs, no error; their names are shown."""
    out = tmp_path / "hostile.html"
    trace = tmp_path / '<img src=x onerror="window.owned=1">.json'
    trace.write_bytes((CASES / "37-hostile-kernel-names.json").read_bytes())
    done = cli("report", str(trace), "-o", str(out))
    assert done.returncode == 0, done.stderr
    with opened(browser, out) as page:
        page.shot("report-hostile")
        page.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        box = page.page.locator(".js-plotly-plot").first.bounding_box()
        page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.page.wait_for_timeout(300)
        assert page.page.evaluate(
            "window.owned === undefined && document.querySelectorAll('img').length === 0"
        )
        assert "<script>alert(1)</script>" in page.page.inner_text("body")
        assert page.errors == []
        assert page.requests == []


def test_tables_open_and_numbers_are_not_wrapped(browser, report):
    """All folded parts opened on a phone -> their figures drawn, the page as wide as the phone, no number broken."""
    with opened(browser, report, 390) as page:
        page.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        broken = page.page.evaluate(
            """() => Array.from(document.querySelectorAll('td.n')).filter(
                td => td.getClientRects().length && td.offsetHeight > 60 && td.textContent.length < 20
                      && td.scrollWidth > td.clientWidth).length"""
        )
        assert broken == 0
        page.check(FIGURES + FOLDED)
