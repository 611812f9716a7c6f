"""The layout of the HTML report: what is wider than the page scrolls in a box of its own, on a desk and on a phone."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from zerobench.report import html
from zerobench.report.document import compose
from zerobench.report.frame import Frames
from zerobench.report.plots import draw
from zerobench.results.files import read_all
from zerobench.suites.project.reports import sample
from zerobench.suites.project.reports.browser import browse, measured, needed
from zerobench.suites.project.reports.page import Element, Page
from zerobench.suites.support.checkout import ROOT

_PUBLISHED = {path.parent.name: path for path in sorted((ROOT / "reports").glob("*/results.json"))}
#: Of a desk and of a phone.
_WIDTHS = (1280, 390)
#: In pixels of the page: half the size of its text and a little more.
_LEGIBLE = 9


@cache
def _sample() -> str:
    """The sample's page, plots and all."""
    frames = Frames.of(sample.results())
    return html.render(compose(frames), draw(frames))


def _published(results: Path) -> str:
    """A published report as this code renders it, without plots: drawing takes seconds, and all are of one width."""
    return html.render(compose(Frames.of(read_all([results]))), [])


def _style() -> dict[str, dict[str, str]]:
    """The declarations of the report's style by selector, those for a narrow page and for paper among them."""
    text = (files("zerobench") / "report" / "style.css").read_text(encoding="utf-8")
    rules: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{};]+)\{([^{}]*)\}", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        pairs = (each.partition(":")[::2] for each in body.split(";") if ":" in each)
        declared = {name.strip(): value.strip() for name, value in pairs}
        for selector in selectors.split(","):
            rules[selector.strip()] = declared | rules.get(selector.strip(), {})  # the first says it for the screen
    return rules


def _named(page: Page, tag: str) -> list[Element]:
    return [each for each in page.tree if each.tag == tag]


def test_tables_and_plots_are_in_a_box() -> None:
    """Each in its own, which the keyboard reaches; no two boxes of a page have one name."""
    page = Page(_sample())
    wide = [*_named(page, "table"), *_named(page, "svg")]
    boxes = [each.attributes for each in page.tree if "wide" in each.attributes.get("class", "").split()]
    assert len(wide) == 12
    assert all("wide" in each.parent for each in wide)
    assert len({each["aria-label"] for each in boxes}) == len(boxes) == len(wide)
    assert all((each["role"], each["tabindex"]) == ("region", "0") for each in boxes)


def test_the_page_is_as_wide_as_the_screen() -> None:
    """It says so, its drawings have a shape but no size, and no element but of a drawing has a style of its own."""
    page = Page(_sample())
    [viewport] = [each.attributes for each in _named(page, "meta") if each.attributes.get("name") == "viewport"]
    assert viewport["content"] == "width=device-width, initial-scale=1"
    for drawing in _named(page, "svg"):
        assert "viewbox" in drawing.attributes  # the parser writes names in lower case
        assert not {"width", "height", "style"} & drawing.attributes.keys()
    outside = re.sub(r"<svg.*?</svg>", "", _sample(), flags=re.DOTALL)
    assert not [each for each in Page(outside).tree if {"style", "width"} & each.attributes.keys()]


def test_only_boxes_hold_what_is_wide() -> None:
    """The style has a least width, and text that does not wrap, for cells and drawings alone; boxes and code scroll."""
    style = _style()
    assert style[".wide"].items() >= {"position": "relative", "overflow-x": "auto"}.items()
    assert style["pre"]["overflow-x"] == "auto"
    assert style["main"]["overflow-wrap"] == "anywhere"
    assert style[".wide svg"]["min-width"] != "0"
    wide = {selector for selector, rule in style.items() if "min-width" in rule or rule.get("white-space") == "nowrap"}
    assert wide == {"th", "td", "th:first-child", ".wide svg"}


def test_no_report_scrolls_sideways(tmp_path: Path) -> None:
    """Neither on a desk nor on a phone, published or the sample; letters in plots can be read on both."""
    needed()
    pages = {"sample": _sample(), **{name: _published(results) for name, results in _PUBLISHED.items()}}
    found = measured(tmp_path, pages, _WIDTHS)
    assert [(each["name"], each["frame"]) for each in found] == [(name, str(at)) for name in pages for at in _WIDTHS]
    assert not [each for each in found if each["content"] > each["width"] or each["out"]]
    assert min(each["letter"] for each in found) >= _LEGIBLE


def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """It says nothing on its console; the screenshot is left in the test's directory."""
    shot, page = tmp_path / "report.png", tmp_path / "report.html"
    needed()
    page.write_text(_sample(), encoding="utf-8")
    done = browse(tmp_path, "--hide-scrollbars", "--enable-logging=stderr", "--v=0", f"--screenshot={shot}",
                  "--window-size=1200,6000", page.as_uri())  # fmt: skip
    assert shot.stat().st_size > 100_000, done.stderr
    assert "CONSOLE" not in done.stderr
