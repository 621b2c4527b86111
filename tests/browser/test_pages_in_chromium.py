"""The pages in a real browser: no error, no request, every figure in place, narrow and wide, both themes.

Needs chromium on the PATH and the `browser` extra (playwright, which drives the system's chromium and downloads none).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

KINDS = ("run", "sweep", "names", "compare", "plan")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# What is outside the page sideways, and is not in a box that scrolls by itself.
OVERFLOW = """() => [...document.querySelectorAll("body *")].filter((element) => {
  if (element.closest(".scroll, figure, pre")) return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.right > document.documentElement.clientWidth + 1;
}).map((element) => element.tagName + "." + element.className)"""
# Width, height and visible text of every drawing, and how far it stands out of what it scrolls in.
FIGURES = """() => [...document.querySelectorAll("figure svg")].map((svg) => {
  const box = svg.getBoundingClientRect(), frame = svg.parentElement;
  return {
    width: box.width, height: box.height, left: box.left, top: box.top + scrollY,
    frame: frame.getBoundingClientRect().width, scrolls: getComputedStyle(frame).overflowX,
    texts: svg.querySelectorAll("text").length, page: document.documentElement.scrollHeight,
  };
})"""
# Texts of a drawing that cover more than a quarter of one another.
CLASHES = """() => [...document.querySelectorAll("figure svg")].flatMap((svg) => {
  const texts = [...svg.querySelectorAll("text")].map(
    (text) => ({ text: text.textContent, box: text.getBoundingClientRect() }));
  const found = [];
  texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
    const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (width <= 0 || height <= 0) return;
    const smaller = Math.min(a.box.width * a.box.height, b.box.width * b.box.height);
    if (width * height > 0.25 * smaller) found.push(`${a.text} / ${b.text}`);
  }));
  return found;
})"""


@pytest.fixture(scope="module")
def pages(report_directories: dict[str, Path]) -> dict[str, Path]:
    return {kind: directory / "report.html" for kind, directory in report_directories.items()}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on the PATH (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'servesim[browser]'")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """One page at one width in one theme, with what the browser complained about and asked for."""

    def __init__(self, browser: Any, path: Path, width: int, scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_at_every_width_in_both_themes(
    chromium: Any, pages: dict[str, Path], kind: str, width: int, scheme: str
) -> None:
    with Visit(chromium, pages[kind], width, scheme) as visit:
        assert visit.requests == [pages[kind].as_uri()]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert visit.page.evaluate(OVERFLOW) == []
        drawn = visit.page.evaluate(FIGURES)
        assert len(drawn) >= 2
        for figure in drawn:
            assert figure["width"] > 200
            assert figure["height"] > 20
            assert figure["texts"] > 0
            assert figure["left"] >= 0
            assert figure["top"] + figure["height"] <= figure["page"]
            assert figure["width"] <= figure["frame"] + 1 or figure["scrolls"] == "auto"
        assert visit.complaints == []


@pytest.mark.parametrize("kind", KINDS)
def test_words_in_figures_do_not_cover_each_other(chromium: Any, pages: dict[str, Path], kind: str) -> None:
    with Visit(chromium, pages[kind], 1400, "light") as visit:
        assert visit.page.evaluate(CLASHES) == []
        visit.page.evaluate("(text => text.after(text.cloneNode(true)))(document.querySelector('figure svg text'))")
        assert len(visit.page.evaluate(CLASHES)) == 1, "the check finds a word on another"


@pytest.mark.parametrize("kind", KINDS)
def test_colours_follow_the_theme_and_print_is_light(chromium: Any, pages: dict[str, Path], kind: str) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    stroke = "getComputedStyle(document.querySelector('figure svg text')).fill"
    with Visit(chromium, pages[kind], 1000, "light") as visit:
        light = visit.page.evaluate(color), visit.page.evaluate(stroke)
        visit.page.emulate_media(color_scheme="dark")
        dark = visit.page.evaluate(color), visit.page.evaluate(stroke)
        assert light[0] == "rgb(255, 255, 255)"
        assert all(a != b for a, b in zip(light, dark, strict=True))
        visit.page.emulate_media(color_scheme="dark", media="print")
        assert (visit.page.evaluate(color), visit.page.evaluate(stroke)) == light
        assert len(visit.page.pdf()) > 10_000


@pytest.mark.parametrize("kind", ["sweep", "plan"])
def test_tables_sort_by_a_click_and_by_the_keyboard(chromium: Any, pages: dict[str, Path], kind: str) -> None:
    with Visit(chromium, pages[kind], 1400, "light") as visit:
        table = visit.page.locator("table:has(th button)").last
        button = table.get_by_role("button", name="TTFT p99")
        place = button.evaluate("b => [...b.closest('tr').children].indexOf(b.closest('th'))")
        keys = f"t => [...t.tBodies[0].rows].map(row => row.children[{place}].dataset.key)"
        button.click()
        assert button.evaluate("b => b.closest('th').getAttribute('aria-sort')") == "ascending"
        up = [float(key) for key in table.evaluate(keys) if key]
        assert len(up) >= 2
        assert up == sorted(up)
        button.press("Enter")
        assert [float(key) for key in table.evaluate(keys) if key] == up[::-1]
        assert visit.complaints == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_and_table_has_a_name_for_those_who_cannot_see_it(
    chromium: Any, pages: dict[str, Path], kind: str
) -> None:
    with Visit(chromium, pages[kind], 1000, "light") as visit:
        images = visit.page.get_by_role("img")
        assert images.count() == visit.page.locator("figure").count()
        names = images.evaluate_all("all => all.map(image => image.getAttribute('aria-label'))")
        assert len(set(names)) == len(names)
        assert visit.page.locator("table:not(:has(caption))").count() == 0
        assert visit.page.locator("thead th:not([scope=col]), tbody th:not([scope=row])").count() == 0
        levels = visit.page.locator("h1, h2, h3").evaluate_all("all => all.map(head => Number(head.tagName[1]))")
        assert levels.count(1) == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))
