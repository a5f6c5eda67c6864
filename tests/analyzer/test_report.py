# SPDX-License-Identifier: Apache-2.0
"""The text, and the page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from graph_analyzer import Options, TransferPlan
from graph_analyzer.model.plan import diff
from graph_analyzer.report.html import page
from graph_analyzer.report.text import difference, report

HOSTILE = "</script><script>document.title = 'taken'</script>[bold]&amp;"


def shown(plan: TransferPlan, rows: int = 20) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(report(plan, rows=rows))
    return capture.get()


def test_text(plan: TransferPlan) -> None:
    text = shown(plan)
    assert f"in {len(plan.edges)} tensors" in text
    assert "dim 0 unknown: placeholder x" in text
    assert "worker:0" in text
    assert "Advice" not in text  # too few bytes to matter
    assert f"the largest; {len(plan.edges) - 1} more" in shown(plan, rows=1)


def test_page_has_pictures_of_tasks_variables_and_times(plan: TransferPlan) -> None:
    text = page(plan)
    for name in ("diagram", "treemap", "timeline"):
        assert f'<svg id="{name}"' in text
    assert text.count('<path class="line ') == len(plan.bytes_by_link())
    assert text.count('<rect class="tile ') == len(plan.variables) == 2
    assert "<title>w: 8.19 KB at ps:0</title>" in text
    assert text.count('<rect class="task"') == len(plan.tasks)
    rounds = {(edge.first, task, n) for edge in plan.edges
              for n, task in enumerate((edge.source, edge.destination))}  # fmt: skip
    assert text.count('<rect class="port ') == len(rounds)


def test_receivers_that_are_alike_share_a_picture(plan: TransferPlan) -> None:
    edge = next(edge for edge in plan.edges if edge.offset is not None)
    tasks = tuple(f"/job:worker/replica:0/task:{n}" for n in range(5))
    edges = tuple(replace(edge, destination=task) for task in tasks)
    link = next(link for link in plan.links if link.source == edge.source)
    links = tuple(replace(link, destination=task) for task in tasks)
    many = replace(plan, tasks=(edge.source, *tasks), edges=edges, links=links)
    text = page(many)
    assert text.count('<svg class="arena"') == 1
    assert "worker:0, worker:1, worker:2, worker:3, worker:4: " in text


def test_text_of_an_empty_plan() -> None:
    plan = TransferPlan(("/job:worker/replica:0/task:0",), Options(), (), ())
    assert "nothing travels" in shown(plan)
    assert "No tensor has a place." in page(plan)


def test_names_are_no_markup(plan: TransferPlan) -> None:
    hostile = replace(plan, edges=(replace(plan.edges[0], name=HOSTILE, variable=""),))
    assert "[bold]" in shown(hostile)


def test_differences(plan: TransferPlan) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(difference(diff(plan, replace(plan, edges=plan.edges[1:]))))
    assert plan.edges[0].variable in capture.get()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window, driven by selenium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    driver = shutil.which("chromedriver")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or program is None:
        pytest.skip("no chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # As root, as in containers, Chromium runs only without its sandbox. The page is ours.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    opened = webdriver.Chrome(options=options, service=service)
    yield opened
    opened.quit()


class Page:
    """What a user sees of the page and does on it."""

    def __init__(self, browser: Any, path: Path, plan: TransferPlan) -> None:
        path.write_text(page(plan, title="A plan"))
        self._browser = browser
        browser.get(path.as_uri())

    def ask(self, script: str, *values: Any) -> Any:
        return self._browser.execute_script(script, *values)

    def texts(self, selector: str) -> list[str]:
        script = (
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim())"
        )
        return [str(text) for text in self.ask(script, selector)]

    def column(self, number: int) -> list[str]:
        return self.texts(f"#edges tbody tr td:nth-child({number})")

    def click(self, selector: str) -> None:
        self._browser.find_element("css selector", selector).click()

    def write(self, selector: str, text: str) -> None:
        field = self._browser.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def complaints(self) -> list[Any]:
        return list(self._browser.get_log("browser"))


@pytest.fixture
def opened(browser: Any, plan: TransferPlan, tmp_path: Path) -> Page:
    return Page(browser, tmp_path / "plan.html", plan)


def test_page_needs_nothing_and_reports_no_error(opened: Page) -> None:
    assert opened.ask("return document.title") == "A plan"
    loaded = opened.ask("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []
    assert opened.complaints() == []


def test_page_shows_the_links(opened: Page, plan: TransferPlan) -> None:
    assert opened.texts("#matrix tr:first-child th")[1:] == ["ps:0", "worker:0", "worker:1"]
    filled = [text for text in opened.texts("#matrix td") if text]
    assert len(filled) == len(plan.bytes_by_link())
    assert len(opened.texts("#tasks tr")) == 1 + len(plan.tasks)


def test_page_draws_every_place(opened: Page, plan: TransferPlan) -> None:
    placed = [edge for edge in plan.edges if edge.offset is not None]
    assert len(opened.texts("svg.arena rect.box:not(.spare)")) == len(placed)
    sizes = opened.ask(
        "return [...document.querySelectorAll('svg.arena')].every(svg => "
        "[...svg.querySelectorAll('rect.box')].every(box => { const b = box.getBBox(), "
        "f = svg.querySelector('.frame').getBBox(); return b.width > 0 && b.height > 0 && b.x >= 0 && "
        "b.x + b.width <= f.width + 1 && b.y + b.height <= f.height + 1; }))"
    )
    assert sizes is True


def test_page_sorts(opened: Page, plan: TransferPlan) -> None:
    by_size = [f"{edge.bytes:,}" for edge in sorted(plan.edges, key=lambda e: -e.bytes)]
    assert opened.column(6) == by_size
    opened.click("#edges th:nth-child(6)")
    assert opened.column(6) == by_size[::-1]
    opened.click("#edges th:nth-child(1)")
    names = opened.column(1)
    assert names == sorted(edge.variable or edge.name for edge in plan.edges)
    opened.click("#edges th:nth-child(1)")
    assert opened.column(1) == names[::-1]


def test_page_filters(opened: Page, plan: TransferPlan) -> None:
    bounded = [edge for edge in plan.edges if edge.plan_class == "bounded"]
    assert 0 < len(bounded) < len(plan.edges)
    opened.ask(
        "const chosen = document.getElementById('class'); chosen.value = 'bounded';"
        "chosen.dispatchEvent(new Event('change'))"
    )
    assert len(opened.column(1)) == len(bounded)
    opened.write("#filter", "x:0 worker:1")
    assert opened.column(1) == ["x:0"]
    opened.write("#filter", "no such tensor")
    assert opened.column(1) == []
    assert opened.texts("#shown") == ["0 of 0 shown, 0 bytes"]


def test_page_of_many_tensors_shows_them_in_parts(
    browser: Any, plan: TransferPlan, tmp_path: Path
) -> None:
    edge = plan.edges[0]
    many = replace(plan, edges=tuple(replace(edge, name=f"tensor{n:04}:0") for n in range(2500)))
    opened = Page(browser, tmp_path / "many.html", many)
    assert len(opened.column(1)) == 200
    opened.click("#all")
    assert len(opened.column(1)) == 2500
    assert not opened.ask("return document.getElementById('all').checkVisibility()")


def test_names_cannot_break_out_of_the_page(
    browser: Any, plan: TransferPlan, tmp_path: Path
) -> None:
    hostile = replace(plan, edges=(replace(plan.edges[0], name=HOSTILE, variable=""),))
    opened = Page(browser, tmp_path / "hostile.html", hostile)
    assert opened.ask("return document.title") == "A plan"
    assert opened.column(1) == [HOSTILE]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_readable_by_day_and_night(browser: Any, opened: Page, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    brightness = opened.ask(
        "const light = c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 765;"
        "const style = getComputedStyle(document.body);"
        "return [light(style.backgroundColor), light(style.color)]"
    )
    paper, ink = brightness
    assert (paper > 0.9 and ink < 0.2) if scheme == "light" else (paper < 0.15 and ink > 0.85)
