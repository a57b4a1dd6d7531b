"""The explorer in a real browser."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser

from sottovoce.reporting.explorer.server import Explorer
from sottovoce.runs.loading import load

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def _until(window: Browser, script: str, what: str) -> Any:
    """The first value of the script that is something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = window.run(f"return {script}")
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"waited in vain for {what}")


def _computed(window: Browser) -> None:
    """The answer is drawn: the page says that it computes from the moment that anything changes."""
    _until(window, "document.getElementById('status').textContent.startsWith('Computed')", "it")


def _figures(window: Browser) -> list[str]:
    found: list[str] = window.run(
        "return [...document.querySelectorAll('#cards .figure')].map((one) => one.textContent)"
    )
    return found


def _move(window: Browser, slider: str, value: float) -> None:
    window.run(
        "const range = document.getElementById(arguments[0]); range.value = arguments[1];"
        "range.dispatchEvent(new Event('input', { bubbles: true }));",
        slider,
        value,
    )


@pytest.fixture
def opened(server: Explorer, window: Browser) -> Browser:
    window.resize(1200, 900)
    window.open("about:blank")
    window.errors()
    window.requests()
    window.open(server.address)
    _computed(window)
    return window


def _preset(window: Browser, number: int) -> None:
    window.run("document.getElementById('presets').children[arguments[0]].click()", number)
    _computed(window)


def test_moving_a_slider_changes_every_figure(opened: Browser) -> None:
    _preset(opened, 1)
    before = _figures(opened)
    _move(opened, "epsilon-slider", 0.0)  # log10: epsilon 1
    assert opened.run("return document.getElementById('epsilon').valueAsNumber") == 1.0
    _computed(opened)
    after = _figures(opened)
    assert float(before[0]) <= 4.0
    assert 0.9 < float(after[0]) <= 1.0
    assert float(after[3]) > float(before[3])  # more noise
    assert opened.errors() == []


def test_charts_have_names_and_tables_and_nothing_is_asked_of_others(
    opened: Browser, server: Explorer
) -> None:
    _preset(opened, 1)
    charts = opened.run(
        "return [...document.querySelectorAll('figure svg[role=img]')]"
        ".map((one) => one.getAttribute('aria-label'))"
    )
    assert len(charts) == 5
    assert all(charts)
    nameless = opened.run(
        "return [...document.querySelectorAll('input, select, button, pre')]"
        ".filter((one) => !(one.labels && one.labels.length) && !one.ariaLabel"
        " && !one.textContent.trim()).map((one) => one.outerHTML)"
    )
    assert nameless == []
    tables = "return document.querySelectorAll('figure details tbody tr').length"
    assert opened.run(tables) > 100
    assert all(url.startswith(server.address) for url in opened.requests())
    assert opened.errors() == []


def test_the_spec_that_is_copied_loads(opened: Browser, tmp_path: Path) -> None:
    _preset(opened, 1)
    opened.run("document.querySelector('[aria-label^=\"Copy: A run\"]').click()")
    _until(opened, "/Copied|Selected/.test(document.getElementById('recipe').textContent)", "it")
    path = tmp_path / "copied.toml"
    path.write_text(opened.run("return document.getElementById('recipe-spec').textContent"))
    spec = load(path)
    assert spec.mechanism.kind == "gauss_hermite"
    assert spec.privacy.epsilon == 4.0


def test_what_cannot_be_is_said_in_the_librarys_words(opened: Browser) -> None:
    opened.run(
        "const box = document.getElementById('epsilon'); box.value = '0';"
        "box.dispatchEvent(new Event('input', { bubbles: true }));"
    )
    problem = "document.getElementById('problem')"
    _until(opened, f"!{problem}.hidden && {problem}.textContent", "the sentence")
    assert "epsilon must be a finite number above 0" in opened.run(f"return {problem}.textContent")
    _preset(opened, 1)
    assert opened.run(f"return {problem}.hidden")
    # A refusal is an answer, but the console of a browser lists it.
    assert all("422" in line for line in opened.errors())


def test_a_mechanism_for_intervals_brings_its_geometry(opened: Browser) -> None:
    _preset(opened, 1)
    opened.run(
        "const list = document.getElementById('mechanism'); list.value = 'generalized_rr';"
        "document.getElementById('dimension').value = 1;"
        "list.dispatchEvent(new Event('change', { bubbles: true }));"
    )
    assert opened.run("return document.getElementById('clip_geometry').value") == "linf"
    _computed(opened)
    assert "generalized_rr" in opened.run("return document.getElementById('status').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(opened: Browser, scheme: str) -> None:
    opened.prefer(scheme)
    opened.resize(390, 800)
    _preset(opened, 1)
    assert opened.run("return document.documentElement.scrollWidth") <= 390
    smallest = opened.run(
        "return Math.min(...[...document.querySelectorAll('figure svg text')]"
        ".map((one) => one.getBoundingClientRect().height))"
    )
    assert smallest >= 10


def test_an_address_with_a_question_opens_on_it(server: Explorer, opened: Browser) -> None:
    _preset(opened, 2)
    address = opened.run("return location.href")
    opened.open("about:blank")
    opened.open(address)
    _computed(opened)
    assert opened.run("return document.getElementById('mechanism').value") == "seeded_sign"
