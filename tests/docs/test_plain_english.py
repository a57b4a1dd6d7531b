"""Names, docstrings, messages and pages follow the writing rules of CONTRIBUTING.md."""

import ast
import doctest
import importlib
import re
from collections import defaultdict
from pathlib import Path

import docs_names
import plain_english
import pytest
from pages import ROOT

PACKAGE = ROOT / "src" / "sottovoce"
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_EXAMPLES = [path for path in MODULES if "    >>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("folder", ["src", "papers/src", "docs", "README.md", "CONTRIBUTING.md"])
def test_text_has_no_banned_words_and_docstrings_and_messages_are_complete(folder: str) -> None:
    found = [
        one
        for path in plain_english.files_of(ROOT / folder)
        for one in plain_english.findings(path)
    ]
    assert not found, "\n".join(map(str, found[:20]))


def test_the_rules_find_what_they_forbid(tmp_path: Path) -> None:
    path = plain_english.PACKAGE / "planted.py"
    text = (
        'class Climb:\n    """A class."""\n\n\ndef public(x):\n    return x\n\n\n'
        'def noun(x):\n    """The x of it, whoever asks."""\n'
        '    raise ParameterError("it is odd")\n'
    )
    found = {(one.rule, one.line) for one in plain_english.findings_in(path, text)}
    assert found == {("word", 1), ("word", 10), ("docstring", 5), ("verb", 9), ("remedy", 11)}


def test_a_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_examples_in_docstrings_give_what_they_show(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    module = importlib.import_module(name.removesuffix(".__init__"))
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed


def test_the_readme_fits_a_screen_s_width_and_three_pages() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 100


def test_pages_are_wrapped_at_100_columns() -> None:
    """Tables, links that stand alone, shown output and names of tests cannot be wrapped."""
    long = []
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for line in text.splitlines():
            fixed = line.startswith(("|", "    ", "![", "[")) or "tests/" in line
            if len(line) > 100 and not fixed:
                long.append((str(path.relative_to(ROOT)), line))
    assert not long, long[:5]


def test_the_page_of_names_is_what_the_docstrings_say() -> None:
    assert docs_names.PAGE.read_text(encoding="utf-8") == docs_names.page()
