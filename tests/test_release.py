"""A release's papers agree with each other: version, changelog, citation, security policy."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sottovoce

ROOT = Path(__file__).parent.parent


def test_the_version_is_written_once_and_cited_as_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert (
        project["tool"]["setuptools"]["dynamic"]["version"]["attr"]
        == "sottovoce.version.__version__"
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", sottovoce.__version__)
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [sottovoce.__version__]
    papers = tomllib.loads((ROOT / "papers" / "pyproject.toml").read_text())
    assert papers["project"]["version"] == sottovoce.__version__
    shown = subprocess.run(
        [sys.executable, "-m", "sottovoce", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == f"sottovoce {sottovoce.__version__}"


def test_the_changelog_begins_with_what_is_unreleased_and_knows_no_later_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d\d-\d\d", h) for h in headings[1:]]
    assert all(released)
    versions = [tuple(map(int, match.groups())) for match in released if match]
    assert versions == sorted(versions, reverse=True)
    ours = tuple(int(part) for part in sottovoce.__version__.split("."))
    assert all(version <= ours for version in versions)
    # A version with a date in the citation is released, and has its part of the changelog.
    if "date-released" in (ROOT / "CITATION.cff").read_text():
        assert ours in versions


def test_the_citation_names_the_papers() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert citation["license"] == project["project"]["license"]
    assert {"message", "title", "authors"} <= set(citation)
    assert len(citation["references"]) == 3
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        assert all({"family-names", "given-names"} == set(one) for one in reference["authors"])


def test_the_security_policy_says_how_and_what() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for heading in ("## Reporting", "## What counts", "## Supported versions"):
        assert heading in text
    assert "private vulnerability reporting" in text
    assert not re.search(r"\w@\w", text)  # there is no address, so none is made up
