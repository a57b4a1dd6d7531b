"""Every page that is written allows its own style and script, by their digests, and no more."""

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import pytest

import sottovoce.reporting
from sottovoce.core.charts.style import PAGE
from sottovoce.reporting.interactive import script, templates

PAGES = sorted(path.name for path in Path(sottovoce.reporting.__file__).parent.glob("*.html"))


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("name", [name for name in PAGES if name != "figure.html"])
def test_a_page_allows_its_own_style_and_script_by_their_digests(name: str) -> None:
    environment = templates()
    source, _, _ = environment.loader.get_source(environment, name)  # type: ignore[union-attr]
    head = source[: source.index("</head>")]
    has_script = "<script>{{ script | safe }}</script>" in source
    page = environment.from_string(head).render(
        style=PAGE, script=script(), title="", result={"title": ""}
    )
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    allowed = dict(part.split(" ", 1) for part in unescape(policy).split("; "))
    assert allowed.pop("default-src") == allowed.pop("base-uri") == "'none'"
    assert allowed.pop("form-action") == "'none'"
    assert allowed.pop("img-src") == "data:"
    assert allowed.pop("style-src") == digest(style)
    assert allowed.pop("script-src", None) == (digest(script()) if has_script else None)
    assert not allowed


@pytest.mark.parametrize("name", PAGES)
def test_no_markup_has_styles_or_handlers_that_a_policy_would_have_to_allow(name: str) -> None:
    source = (Path(sottovoce.reporting.__file__).parent / name).read_text()
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", source)
    for opening in re.findall(r"<script[^>]*>", source):
        assert opening in ("<script>", '<script type="application/json">')


def test_the_pages_of_the_package_are_all_known() -> None:
    package = Path(sottovoce.__file__).parent
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.html")}
    assert found == {f"reporting/{name}" for name in PAGES} | {"reporting/explorer/explore.html"}
