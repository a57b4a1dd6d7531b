"""Tutorials and how-tos: each is played from its first line to its last, in an empty folder."""

from pathlib import Path

import pytest
from pages import ROOT, blocks, holds, play

pytest.importorskip("torch")
PAGES = sorted([*(ROOT / "docs/tutorials").glob("*.md"), *(ROOT / "docs/how-to").glob("*.md")])
# Their shells start processes that load torch, one after another. tests/cli/test_plugins.py calls
# the first one's commands on its files; the second one's model is examples/own_model.py.
DEAR = ("write-a-plug-in", "own-model")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in DEAR)) for page in PAGES],
    ids=lambda page: f"{page.parent.name}-{page.stem}",
)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    play(page, folder)


def test_there_are_pages_to_play() -> None:
    assert len(PAGES) >= 6
    assert any(block.language == "sh" for page in PAGES for block in blocks(page))


def test_shown_lines_are_looked_for_in_their_order() -> None:
    holds("a  1\nb 2.34\nc", "a 1\n...\nb 2...\n", "here")
    with pytest.raises(AssertionError, match="here: a 1"):
        holds("b\na 1", "a 1\na 1", "here")
    with pytest.raises(AssertionError, match="here: b"):
        holds("a\nb", "b\nb", "here")


def test_a_page_that_lies_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.ROOT", tmp_path)
    page = tmp_path / "page.md"
    for text in (
        "```sh\nfalse\n```\n",
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
        "```toml\na = \n```\n",
        "```sql\nselect\n```\n",
        "```sh\ntrue\n",
    ):
        page.write_text(text)
        with pytest.raises((AssertionError, ValueError)):
            play(page, tmp_path)
