"""A report: the same numbers in all its forms, text that stays text, a page that loads no other file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zerobench import report
from zerobench.errors import UsageError
from zerobench.machine.files import check_writable
from zerobench.report import markdown
from zerobench.report.document import compose
from zerobench.report.frame import Frames
from zerobench.report.knobs import differing_fields
from zerobench.report.summary import summarize
from zerobench.report.table import scaled
from zerobench.results import Json
from zerobench.results.files import read
from zerobench.suites.project.reports import golden, sample
from zerobench.suites.project.reports.page import Page, markdown_tables, received
from zerobench.suites.support.checkout import ROOT

_PUBLISHED = sorted((ROOT / "reports").glob("*/results.json"))
_MARKS = " \N{DOWNWARDS ARROW}\N{UPWARDS ARROW}"
_PARTS = {"parameters", "gradients", "optimizer", "whole at once", "peak", "host"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's report."""
    directory = tmp_path_factory.mktemp("report")
    report.write(directory, sample.results())
    return directory


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    """Its HTML."""
    return Page((written / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tables(written: Path) -> dict[str, list[dict[str, str]]]:
    """The tables of its Markdown: rows by column."""
    found = {}
    for title, (head, *rows) in markdown_tables((written / "report.md").read_text(encoding="utf-8")).items():
        names = [name.rstrip(_MARKS) for name in head]
        found[title] = [dict(zip(names, row, strict=True)) for row in rows]
    return found


def test_markdown_and_html_show_the_same(page: Page, tables: dict[str, list[dict[str, str]]]) -> None:
    """Every table, heading and cell."""
    assert len(tables) == 8
    assert {
        title: [dict(zip(head, row, strict=True)) for row in rows] for title, (head, *rows) in page.tables.items()
    } == tables


def test_bytes_are_those_of_the_json(written: Path, tables: dict[str, list[dict[str, str]]]) -> None:
    """Memory, traffic and offload: exact, the fullest rank's; the predicted value in brackets if it differs."""
    cases = [case for case in _json(written)["cases"] if case["subject"] != "compute-only"]
    for cells, case in zip(tables["Memory on each rank, in bytes"], cases, strict=True):
        shown = {name: _number(cell) for name, cell in cells.items() if name in _PARTS and cell[0].isdigit()}
        held = case["memory"]["measured"] if case["memory"] else []
        keys = {"whole at once": "peak_parameters"}
        expected = {name: max(each.get(keys.get(name, name), -1) for each in held) for name in _PARTS} if held else {}
        assert shown == {name: most for name, most in expected.items() if most >= 0}
    totals = [cells for cells in tables["Traffic of a step, in bytes"] if cells["collective"] == "total"]
    measured = [case for case in cases if case["traffic"]]
    for cells, case in zip(totals, measured, strict=True):
        for number in ("calls", "sent", "received"):
            sums = [sum(each[number] for each in ledger.values()) for ledger in case["traffic"]["measured"]]
            assert _number(cells[number]) == max(sums)
        wire = case["traffic"].get("wire")
        assert cells["wire / received"] == (f"{wire / received(case['traffic']):.3f}" if wire else "-")
    [off] = [cells for cells in tables["Offload in a step, in bytes"] if cells["offload"] == "cpu"]
    assert (off["to host"], off["written"]) == ("5,656,576 =", "0 =")
    [beside] = [cells["sent"] for cells in tables["Traffic of a step, in bytes"] if "(" in cells["sent"]][:1]
    assert beside == "11,313,152 (11,313,151)"


def test_times_are_those_of_the_json(written: Path, tables: dict[str, list[dict[str, str]]]) -> None:
    """Medians, spread, parts and rates, as they are rounded."""
    for cells, case in zip(tables["Time of a step"], _json(written)["cases"], strict=True):
        took = case["time"]
        if took is None:
            continue
        low, high = took["quartiles"]
        assert (cells["step, ms"], cells["IQR, ms"]) == (scaled(took["median"], 1e-3), scaled(high - low, 1e-3))
        assert float(cells["step, ms"]) == pytest.approx(1e3 * took["median"], abs=0.05)
        assert float(cells["x compute"]) == pytest.approx(took["ratio"], abs=0.005)
        assert _number(cells["tokens/s"]) == pytest.approx(took["tokens_per_second"], abs=0.5)
        parts = {name: cells[f"{name}, ms"] for name in ("forward", "backward", "communication", "optimizer")}
        split = took["split"] or dict.fromkeys(parts)
        assert parts == {name: scaled(split[name], 1e-3) for name in parts}


def test_the_plots_hold_the_numbers_of_the_frames(written: Path) -> None:
    """The text alternatives of the plots state the drawn values."""
    text = (written / "report.html").read_text(encoding="utf-8")
    [memory] = re.findall(r'<desc id="memory-description">(.*?)</desc>', text)
    held = _json(written)["cases"][0]["memory"]["measured"]
    for name in ("parameters", "gradients", "optimizer"):
        assert f"{name} {max(rank[name] for rank in held) / 2**20:.4g}" in memory.split(";")[0]
    [trade] = re.findall(r'<desc id="trade-description">(.*?)</desc>', text)
    frontier = trade.partition("On it: ")[2].rstrip(".").split("; ")
    assert [name.split(",")[0] for name in frontier] == ["reference stage 0", "reference stage 1", "reference stage 3",
                                                         "reference stage 3"]  # fmt: skip


def test_every_verdict_is_told_apart_in_every_table(tables: dict[str, list[dict[str, str]]]) -> None:
    """Unsupported, not measured, raised, crashed and timeout, each in each table that has rows."""
    for title in tables.keys() - {"Collectives on this machine", "Kernels", "Largest model within a limit of memory"}:
        said = {cell for cells in tables[title] for cell in cells.values()}
        assert {"unsupported", "not measured", "raised", "crashed", "timeout"} <= said, title


def test_columns_for_what_differs_and_no_others(tables: dict[str, list[dict[str, str]]]) -> None:
    """The sample has two precisions and two sub-groups; the model's width, which is one value, is no column."""
    assert list(tables["Right?"][0])[:5] == ["subject", "stage", "dtype", "sub group", "right?"]
    assert {cells["sub group"] for cells in tables["Right?"]} == {"1,000,000,000", "1,000,000"}


def test_a_setting_of_stage_3_is_no_setting_elsewhere() -> None:
    """Cases of other stages do not differ in it; every stage has sub-groups, and differs in them."""
    fields = differing_fields([{"stage": 1, "max_live": size, "sub_group": size} for size in (17, 100)], [1, 1])
    assert fields == [{"sub_group": "17"}, {"sub_group": "100"}]
    fields = differing_fields([{"stage": 3, "max_live": size} for size in (17, 100)] + [{}], [3, 3, 0])
    assert fields == [{"max_live": "17"}, {"max_live": "100"}, {"max_live": "-"}]


def test_the_summary_leads_with_what_is_wrong() -> None:
    """Wrong cases come first, then cases that were not measured, then the rest."""
    points = [what for what, _ in summarize(Frames.of(sample.results()))]
    assert points[:6] == ["WRONG", "Crashed", "Raised", "Timeout", "Unsupported", "Not measured"]


def test_text_from_outside_stays_text(written: Path, page: Page) -> None:
    """Names, paths and messages make no element, link, cell or fence."""
    assert not {"script", "b", "i", "a", "img", "link", "iframe"} & set(page.elements)
    text = (written / "report.md").read_text(encoding="utf-8")
    outside_fences = re.sub(r"^(`{3,})\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<" not in outside_fences
    assert "\n# a heading" not in outside_fences
    assert r"evil\|\*pkg\*:&lt;script>" in outside_fences


def test_the_page_asks_for_nothing(page: Page, written: Path) -> None:
    """No reference leaves the page, and its policy forbids loading; ids are unique though plots share a page."""
    assert all(target.startswith("#") for target in page.loads)
    text = (written / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"url\((?!#)|@import|<script", text)
    assert "default-src 'none'" in text
    assert len(page.ids) == len(set(page.ids))
    assert {target[1:] for target in page.loads} <= set(page.ids)


def test_plots_can_be_read_without_seeing_them(written: Path) -> None:
    """Each is an image with a title and a text; each table has a caption, and headings with a scope."""
    text = (written / "report.html").read_text(encoding="utf-8")
    plots = re.findall(r"<svg [^>]*>", text)
    assert len(plots) == 4
    assert all('role="img"' in plot and "aria-labelledby" in plot for plot in plots)
    assert text.count("<caption>") == text.count("<table>") == 8
    assert not re.findall(r"<th(?! scope=)[^ea>]*>", text)


def test_a_measured_subject_with_a_hostile_name(tmp_path: Path) -> None:
    """It stays text in the plots, too."""
    value = sample.results()
    for case in value["cases"][:2]:
        case["subject"] = f"{sample.HOSTILE} $x^{{$"
    report.write(tmp_path, value)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "script" not in Page(text).elements
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;`x` $x^{$ stage 0") > 3


def _failed(value: Json) -> Json:
    return value | {"cases": [sample.bare("reference", stage, "crashed", "gone") for stage in range(2)]}


@pytest.mark.parametrize("few", [
    lambda value: value | {"cases": []},
    _failed,
    lambda value: value | {"cases": value["cases"][:1]},
    lambda value: value | {"cases": value["cases"][-1:]},
    lambda value: value | dict.fromkeys(("settings", "text", "budget", "peaks", "collectives", "kernels", "fits")),
], ids=["no case", "all crashed", "one case", "compute-only", "nothing in common"])  # fmt: skip
def test_there_may_be_little_to_report(few: Callable[[Json], Json], tmp_path: Path) -> None:
    """A run of collectives alone, one in which all crashed, one case: the report shows the available parts."""
    report.write(tmp_path, few(sample.results()))
    shown = markdown_tables((tmp_path / "report.md").read_text(encoding="utf-8"))
    assert shown
    assert shown.keys() == Page((tmp_path / "report.html").read_text(encoding="utf-8")).tables.keys()


def test_bytes_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    """If a path or a message is not UTF-8, the report is still written and printed."""
    value = sample.results()
    value["command"] += " --data caf\udce9.txt"
    value["cases"][0]["subject"] = "mine\udcff"
    value["cases"][-4]["reason"] = "cannot read \udcff"
    text = report.write(tmp_path, value)
    assert all(said in text for said in ("caf\\udce9.txt", "cannot read \\udcff"))
    assert text.encode("utf-8") == (tmp_path / "report.md").read_bytes()
    assert "mine\\udcff stage 0" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert read(tmp_path / "results.json")["cases"][0]["subject"] == "mine\\udcff"


def test_results_outlive_a_report_that_cannot_be_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are written first; the error names their path, and an earlier report stays."""
    report.write(tmp_path, sample.results())
    before = {name: (tmp_path / name).read_bytes() for name in ("report.md", "report.html")}
    monkeypatch.setattr("zerobench.report.html.render", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as failed:
        report.write(tmp_path, sample.results() | {"command": "another"})
    assert failed.value.__notes__ == [f"The results are in '{tmp_path}/results.json'; `zerobench report` renders them."]
    assert _json(tmp_path)["command"] == "another"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "results.json"} == before


def test_a_directory_that_nobody_may_look_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as a directory that cannot be written to."""

    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(UsageError, match=r"cannot write to '.*': Permission denied"):
        check_writable(tmp_path / "secret", report.FILES)


def test_rendering_is_deterministic(written: Path, tmp_path: Path) -> None:
    """The same bytes each time, plots and all."""
    report.write(tmp_path, sample.results())
    for name in report.FILES:
        assert (tmp_path / name).read_bytes() == (written / name).read_bytes()


@pytest.mark.parametrize("name", ["report.md", "tables.html"])
def test_golden(name: str) -> None:
    """The rendering is the last reviewed one; ``golden.py`` writes it anew."""
    assert golden.rendering()[name] == (golden.DIRECTORY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("results", _PUBLISHED, ids=lambda path: path.parent.name)
def test_published_reports_show_their_results(results: Path) -> None:
    """`zerobench report` writes the published Markdown."""
    rendered = markdown.render(compose(Frames.of(read(results))))
    assert rendered == (results.parent / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("written")  # so that imports are not counted
def test_time_grows_with_the_cases_and_no_faster(tmp_path: Path) -> None:
    """Tables, plots and all three files of 500 cases take at most ten times as long as 100 on any processor;
    the plots draw the first cases and say so."""
    seconds = []
    for cases in (100, 500):
        value = sample.many(cases)
        start = time.process_time()
        report.write(tmp_path, value)
        seconds.append(time.process_time() - start)
    assert seconds[1] < min(10 * seconds[0], 50)  # about 3 on a processor of 2024
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The first 40 of 500 cases; the table has all." in text


def _json(directory: Path) -> Json:
    value: Json = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    return value


def _number(cell: str) -> int:
    return int(cell.split(" ", maxsplit=1)[0].replace(",", ""))
