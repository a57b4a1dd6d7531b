"""The site builds without a warning, is whole, and asks nothing of anybody else's server."""

import contextlib
import functools
import http.server
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import browser
from pages import ROOT, blocks

import sottovoce

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
pytestmark = pytest.mark.xdist_group("docs-site")  # one build serves all


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr, built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        built = name.with_name("index.html") if page.name == "README.md" else name
        assert (site / built).is_file(), built
    assert (site / "results/seeded-mnist/index.html").is_file()
    assert (site / "examples/one_bit.toml").is_file()


def test_formulas_are_text(site: Path) -> None:
    shown = (site / "explanation/privacy.html").read_text()
    assert "exp(<code>&lt;b, z&gt;</code> - sum" in shown
    assert "<b, z>" not in shown


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link|source)\b[^>]*?(?:src|href)=\"?(https?:)?//")
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text()), page


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    written = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    entries = re.findall(r"^::: sottovoce\.([\w.]+)$", written, re.MULTILINE)
    names = {entry.rsplit(".", 1)[-1] for entry in entries}
    assert set(dir(sottovoce)) - {"__version__"} <= names
    assert len(entries) == len(set(entries))
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for entry in entries:
        assert f'id="sottovoce.{entry}"' in pages, entry


def test_every_mechanism_is_in_the_reference() -> None:
    from sottovoce.mechanisms.registry import registrations

    written = (ROOT / "docs/reference/mechanisms.md").read_text()
    for registration in registrations():
        kind = registration.factory
        assert isinstance(kind, type)
        if kind.__module__.startswith("sottovoce."):
            assert f"::: sottovoce.mechanisms.{kind.__qualname__}\n" in written


def test_every_command_is_in_the_reference(site: Path) -> None:
    shown = (site / "reference/command-line.html").read_text()
    for name in ("run", "plan", "ledger show", "audit run", "deploy node", "privacy calibrate"):
        assert f">sottovoce {name}<" in shown
    assert "<code>--shadows INTEGER</code>" in shown
    assert "shadow models to train; even. [64]" in shown


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    for page in (ROOT / "docs/decisions").glob("0*.md"):
        number, title = page.read_text().splitlines()[0].removeprefix("# ").split(". ", 1)
        assert f"\n{number}. [{title}]({page.name})" in listed


def test_the_tutorial_s_federation_is_the_one_that_is_run() -> None:
    """tests/flower/test_readme.py runs the commands of docs/how-to/deploy.md with processes."""
    run = _indented(ROOT / "docs/how-to/deploy.md", "## A rehearsal on one machine")
    assert _indented(ROOT / "docs/tutorials/federation.md", "## On one machine") == run
    (spec,) = (b for b in blocks(ROOT / "docs/tutorials/federation.md") if b.title)
    example = tomllib.loads((ROOT / "examples/federation.toml").read_text())
    del example["runtime"]["downlink"]
    assert tomllib.loads(spec.text) == example


def _indented(page: Path, heading: str) -> list[str]:
    """The first indented block below a heading."""
    lines = iter(page.read_text().split(f"\n{heading}", 1)[1].splitlines())
    found = []
    for line in lines:
        if line.startswith("    "):
            found.append(line.strip())
        elif found:
            break
    return found


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_browser_finds_nothing_wrong_and_asks_no_one_else(site: Path) -> None:
    with browser() as window, _served(site) as address:
        for page in (
            "index",
            "explanation/theorems",
            "reference/mechanisms",
            "results/seeded/index",
        ):
            window.open(f"{address}/{page}.html")
            assert window.run("return document.querySelector('h1').innerText.length > 3")
        window.run("document.querySelector('.md-search__input').focus()")
        assert window.errors() == []
        asked = window.requests()
        assert any(url.endswith("index.html") for url in asked)
        assert [url for url in asked if not url.startswith(address)] == []
