"""The page about runs in a real browser: drawn, answering, closed to the network, readable."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser
from reported_runs import PRIVACY, make_run

from sottovoce.reporting.report_data import report_of
from sottovoce.reporting.run_report import write_report

EPSILON = "#run-1-epsilon"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, window: Browser) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    evil = "</script><img src=x onerror=alert(2)>"
    first = make_run(folder / "first")
    second = make_run(
        folder / "second",
        name="<img src='x' onerror='document.title=1'>",
        rounds=3,
        data={"dataset": "digits", "names": [evil, "b", "c", "d"]},
        privacy=PRIVACY | {"epsilon": 2.0},
    )
    found = {"one": folder / "one.html", "two": folder / "two.html"}
    write_report(report_of([first]), found["one"])
    write_report(report_of([first, second]), found["two"])
    return found


@pytest.fixture
def one(window: Browser, pages: dict[str, Path]) -> Browser:
    return _opened(window, pages["one"])


@pytest.fixture
def two(window: Browser, pages: dict[str, Path]) -> Browser:
    return _opened(window, pages["two"])


def _opened(window: Browser, page: Path) -> Browser:
    window.resize(1200, 900)
    window.prefer("light")
    window.requests()
    window.errors()
    window.open(page)
    return window


def _press(window: Browser, selector: str, key: str) -> None:
    window.run(
        "const node = document.querySelector(arguments[0]); node.focus();"
        "node.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1], bubbles: true}));",
        selector,
        key,
    )


def _text(window: Browser, selector: str) -> Any:
    return window.run("return document.querySelector(arguments[0]).textContent", selector)


@pytest.mark.parametrize("name", ["one", "two"])
def test_nothing_is_asked_of_the_network_and_nothing_goes_wrong(
    window: Browser, pages: dict[str, Path], name: str
) -> None:
    _opened(window, pages[name])
    assert window.run("return document.documentElement.classList.contains('live')")
    assert window.errors() == []
    assert window.requests() == [pages[name].as_uri()]


def test_charts_are_drawn_named_and_have_tables(two: Browser) -> None:
    figures = two.run(
        """return [...document.querySelectorAll("figure.chart")].map((figure) => {
          const svg = figure.querySelector(".plot svg:not([hidden])");
          const box = svg.getBoundingClientRect();
          const boxes = [...svg.querySelectorAll(".curve, .dot")].map((one) => one.getBBox());
          return {
            name: svg.getAttribute("aria-label"), role: svg.getAttribute("role"),
            shapes: boxes.filter((one) => one.width + one.height > 0).length,
            size: box.width * box.height,
            rows: figure.querySelectorAll("details tbody tr").length,
            heads: figure.querySelectorAll("details thead th").length,
          };
        });"""
    )
    assert len(figures) == 4 + 2 * 5
    for figure in figures:
        assert figure["role"] == "img"
        assert figure["name"]
        assert figure["shapes"] > 0
        assert figure["size"] > 50_000
        assert figure["rows"] > 0
        assert figure["heads"] > 1


def test_names_of_runs_and_clients_stay_text(two: Browser) -> None:
    assert two.run("return document.querySelectorAll('img').length") == 0
    assert two.run("return document.title").endswith("Sottovoce report")
    assert "</script><img" in _text(two, "#run-2 .clients tbody")


def test_markup_that_was_not_escaped_would_neither_run_nor_load_nor_send_anything(
    window: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    evil = (
        "<script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
        "<style>body { display: none }</style><img src='https://example.org/?leak'>"
        "<form action='https://example.org'><button id='send'></button></form>"
    )
    page = tmp_path / "injected.html"
    page.write_text(pages["one"].read_text().replace("</h1>", f"</h1>{evil}", 1))
    _opened(window, page)
    assert window.run("return document.title").endswith("Sottovoce report")
    assert window.run("return getComputedStyle(document.body).display") == "block"
    window.run("document.querySelector('#send').click()")
    refused = "".join(window.errors())
    for what in ("script-src", "style-src", "img-src", "form-action"):
        assert what in refused, what
    assert window.run("return document.documentElement.classList.contains('live')")


def test_arrow_keys_read_every_series(one: Browser) -> None:
    plot = f"{EPSILON} .plot"
    for _ in range(3):
        _press(one, plot, "ArrowRight")
    reading = _text(one, f"{EPSILON} .unseen")
    assert reading.startswith("round 3: ")
    for name in ("renyi", "zcdp", "budget 4.0000"):
        assert name in reading
    assert one.run("return document.querySelectorAll('.cross').length") == 1
    _press(one, plot, "End")
    assert _text(one, f"{EPSILON} .unseen").startswith("round 6: ")
    _press(one, plot, "ArrowRight")  # there is nothing beyond
    assert _text(one, f"{EPSILON} .unseen").startswith("round 6: ")
    _press(one, plot, "Home")
    assert _text(one, f"{EPSILON} .tip b") == "round 1"
    _press(one, plot, "Escape")
    assert one.run("return document.querySelectorAll('.cross, .tip.shown').length") == 0


def test_a_pointer_finds_the_nearest_round(one: Browser) -> None:
    one.run(
        """const plot = document.querySelector(arguments[0] + " .plot");
        const box = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent("pointermove", {
          clientX: box.right - 2, clientY: box.top + 20, bubbles: true, pointerType: "touch"}));""",
        EPSILON,
    )
    assert _text(one, f"{EPSILON} .tip b") == "round 6"
    assert one.run("return getComputedStyle(document.querySelector('.tip.shown')).visibility") == (
        "visible"
    )


def test_points_of_the_frontier_are_found_one_by_one(two: Browser) -> None:
    _press(two, "#frontier-epsilon .plot", "ArrowRight")
    first = _text(two, "#frontier-epsilon .unseen")
    assert first.startswith("epsilon 2, test accuracy 0.")
    _press(two, "#frontier-epsilon .plot", "ArrowRight")
    assert _text(two, "#frontier-epsilon .unseen").startswith("epsilon 4, test accuracy 0.")


def test_the_legend_hides_and_shows_a_series(one: Browser) -> None:
    shown = (
        "return [...document.querySelectorAll(arguments[0] + ' .plot svg:not([hidden]) .s0')]"
        ".some((one) => getComputedStyle(one).display !== 'none')"
    )
    button = f"{EPSILON} .legend button"
    assert one.run(shown, EPSILON) is True
    one.run("document.querySelector(arguments[0]).click()", button)
    assert one.run(shown, EPSILON) is False
    pressed = "return document.querySelector(arguments[0]).getAttribute('aria-pressed')"
    assert one.run(pressed, button) == "false"
    _press(one, f"{EPSILON} .plot", "End")
    first = one.run("return document.querySelector(arguments[0]).textContent", button)
    assert first not in _text(one, f"{EPSILON} .unseen")
    one.run("document.querySelector(arguments[0]).click()", button)
    assert one.run(shown, EPSILON) is True
    assert one.run(pressed, button) == "true"


def test_the_scale_can_be_switched(one: Browser) -> None:
    shown = (
        "return [...document.querySelectorAll(arguments[0] + ' .plot svg')]"
        ".map((one) => getComputedStyle(one).display !== 'none')"
    )
    assert one.run(shown, EPSILON) == [True, False]
    one.run("document.querySelectorAll(arguments[0] + ' .scales button')[1].click()", EPSILON)
    assert one.run(shown, EPSILON) == [False, True]


def test_clients_are_found_by_name(one: Browser) -> None:
    search = (
        "const input = document.querySelector('.clients input[type=search]');"
        "input.value = arguments[0]; input.dispatchEvent(new Event('input'));"
        "return [...document.querySelectorAll('.clients tbody th')].map((one) => one.textContent)"
    )
    assert len(one.run(search, "")) == 4
    assert one.run(search, "0002") == ["client-0002"]
    assert one.run(search, "unknown") == []
    assert "0 of 0" in _text(one, ".clients .count")


def test_dark_and_light_follow_the_system_and_the_switch(one: Browser) -> None:
    brightness = (
        "const parts = getComputedStyle(document.body).backgroundColor.match(/\\d+/g);"
        "return (+parts[0] + +parts[1] + +parts[2]) / 3"
    )
    assert one.run(brightness) > 200
    one.prefer("dark")
    assert one.run(brightness) < 60
    one.run("document.querySelector('button.theme').click()")
    assert one.run(brightness) > 200
    assert _text(one, "button.theme") == "Dark"
    one.run("document.querySelector('button.theme').click()")
    assert one.run(brightness) < 60


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_phone_need_not_scroll_sideways(
    window: Browser, pages: dict[str, Path], name: str
) -> None:
    _opened(window, pages[name])
    window.resize(390, 844)
    window.open(pages[name])
    window.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert window.run("return document.documentElement.scrollWidth") <= 390
    smallest = window.run(
        """return Math.min(...[...document.querySelectorAll(".plot svg:not([hidden])")].map((svg) =>
          parseFloat(getComputedStyle(svg.querySelector("text")).fontSize)
          * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width));"""
    )
    assert smallest >= 9.5  # pixels of the screen


def test_paper_gets_open_tables_and_no_switches(one: Browser) -> None:
    one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        one.run("return new Promise((done) => requestAnimationFrame(() => done(1)))")
        assert one.run(
            "return [...document.querySelectorAll('details[data-print]')].every((one) => one.open)"
        )
        assert one.run(
            "return [...document.querySelectorAll('button.theme, .scales, .copy, .find')]"
            ".every((one) => getComputedStyle(one).display === 'none')"
        )
    finally:
        one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    one.run("return new Promise((done) => requestAnimationFrame(() => done(1)))")
    assert not one.run("return document.querySelector('figure details').open")


def test_without_scripts_pictures_tables_and_clients_are_there(
    one: Browser, pages: dict[str, Path]
) -> None:
    one.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        one.open(pages["one"])
        nodes = one.driver.find_elements("css selector", "figure.chart .plot svg:not([hidden])")
        assert len(nodes) == 5
        assert all(node.is_displayed() for node in nodes)
        assert len(one.driver.find_elements("css selector", ".clients tbody tr")) == 4
        for node in one.driver.find_elements("css selector", ".scales, .find, button.theme"):
            assert not node.is_displayed()
    finally:
        one.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_everything_that_can_be_reached_has_a_name(two: Browser) -> None:
    nameless = two.run(
        """const reached = "button, input, [tabindex='0'], [role=region], nav";
        return [...document.querySelectorAll(reached)]
          .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim()
            || one.closest("label"))).map((one) => one.outerHTML.slice(0, 80));"""
    )
    assert nameless == []
    assert two.run("return document.querySelectorAll('h1').length") == 1


def test_the_spec_can_be_copied(one: Browser) -> None:
    one.run("document.querySelector('article > details').open = true")
    one.run(
        """const button = document.querySelector("button.copy");
        button.click();
        return new Promise((done) => {
          const look = () => (button.textContent === "Copied" ? done() : setTimeout(look, 10));
          look();
        });"""
    )
    assert "[mechanism]" in _text(one, "#run-1-spec")
    assert one.errors() == []
