"""Pages in a headless Chromium: opened, watched for errors and requests, measured, photographed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SHOTS = Path(__file__).parent.parent / "build" / "screenshots"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-default-apps", "--disable-dev-shm-usage",
]  # fmt: skip
# per figure: its size, and how many marks it drew
_MEASURE = """
() => Array.from(document.querySelectorAll('.js-plotly-plot')).map(box => {
  const svg = box.querySelector('.main-svg').getBoundingClientRect();
  const marks = box.querySelectorAll('.barlayer path, .scatterlayer path, .heatmaplayer image, .heatmaplayer .hm');
  const clipped = Array.from(box.querySelectorAll('.xtick text, .ytick text')).filter(t => {
    const r = t.getBoundingClientRect(), b = box.getBoundingClientRect();
    return r.width && (r.left < b.left - 1 || r.right > b.right + 1 || r.bottom > b.bottom + 1);
  }).map(t => t.textContent);
  return {width: svg.width, height: svg.height, marks: marks.length, clipped,
          title: (box.querySelector('.gtitle') || {}).textContent || ''};
})
"""


@dataclass
class Opened:
    """A page that was opened.

    Attributes:
        page: Playwright's page.
        errors: console errors and exceptions.
        requests: everything it asked for besides itself.
    """

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def figures(self) -> list[dict[str, Any]]:
        """Size, marks and title of every figure."""
        return self.page.evaluate(_MEASURE)  # type: ignore[no-any-return]

    def shot(self, name: str) -> Path:
        """Photograph the whole page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        path = SHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=True)
        return path

    def check(self, figures: int) -> None:
        """All figures drawn, nothing cut off, no error, no request, no sideways scrolling of the page."""
        found = self.figures()
        assert len(found) == figures, [f["title"] for f in found]
        for figure in found:
            assert figure["width"] > 200, figure
            assert figure["height"] > 100, figure
            assert figure["marks"] > 0, figure
            assert not figure["clipped"], figure
        assert self.errors == []
        assert self.requests == []
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; the test is skipped where there is none, and fails in CI."""
    if CHROMIUM is None:
        assert not os.environ.get("CI"), "no Chromium: run scripts/install_debian.sh"
        pytest.skip("no Chromium: run scripts/install_debian.sh")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, path: Path, width: int = 1200, dark: bool = False) -> Iterator[Opened]:
    """A page in a window of a width, with its figures drawn.

    Every request but the file itself is noted and refused.
    """
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    out = Opened(page)
    page.on("console", lambda m: out.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: out.errors.append(str(e)))

    def handle(route: Any) -> None:
        if route.request.url == path.resolve().as_uri():
            route.continue_()
        else:
            out.requests.append(route.request.url)
            route.abort()

    page.route("**/*", handle)
    page.goto(path.resolve().as_uri(), wait_until="load")
    # a loaded machine draws late: until every figure has marks, or check() says which has none
    with suppress(Exception):
        page.wait_for_function(
            f"() => {{ const all = ({_MEASURE})(); return all.length && all.every(f => f.marks > 0) }}"
        )
    page.wait_for_timeout(400)  # automargin settles
    try:
        yield out
    finally:
        page.close()
