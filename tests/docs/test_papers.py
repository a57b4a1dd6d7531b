"""The page about the papers has a row for every numbered item, and every row can be followed."""

import re
from collections.abc import Iterable

import pytest
from pages import ROOT

PAGE = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
VERDICTS = (
    "Holds", "Corrected", "False", "Reproduced", "Contradicted", "Reduced", "Not reproduced",
    "No claim",
)  # fmt: skip
# The items of each paper, read from the papers; definitions and assumptions claim nothing.
NUMBERED: dict[str, dict[str, Iterable[object]]] = {
    "MVU": {
        "Lemma": (5, 6, 7, 10),
        "Theorem": (8, 9),
        "Algorithm": (1,),
        "Figure": range(1, 7),
        "Table": range(1, 4),
    },
    "I-MVU": {
        "Lemma": (1, 2),
        "Theorem": (1,),
        "Algorithm of appendix": ("B",),
        "Figure": range(1, 5),
        "Table": range(1, 4),
    },
    "UDP-FL": {
        "Theorem": range(1, 10),
        "Lemma": range(1, 6),
        "Algorithm": range(1, 4),
        "Table": range(1, 10),
        "Figure": range(1, 7),
    },
}


def _table(heading: str) -> list[list[str]]:
    """Return the cells of the rows of a section's table, without its two head lines."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = [(paper, *row) for paper in NUMBERED for row in _table(paper)]
REFUTED = [row[0] for row in _table("Formulas that do not hold")]


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_item_has_one_row(paper: str) -> None:
    items = [f"{kind} {n}" for kind, numbers in NUMBERED[paper].items() for n in numbers]
    assert sorted(row[0] for row in _table(paper)) == sorted(items)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_row_has_a_claim_a_verdict_and_paths_that_exist(row: tuple[str, ...]) -> None:
    paper, item, claim, verdict, page, code, tests = row
    assert claim.endswith(".")
    assert verdict.startswith(VERDICTS), verdict
    links = re.findall(r"\]\(([^)#]+)", page)
    assert links
    for link in links:
        assert (ROOT / "docs" / link).is_file(), link
    nothing = verdict.startswith("No claim")
    assert nothing or (code != "-" and tests != "-")
    for path in re.findall(r"`([^`]+)`", code):
        assert (ROOT / path).is_file(), path
    for test in re.findall(r"`([^`]+)`", tests):
        file, name = test.split("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
    # A page that was measured with less says so, and then the row says it too.
    reduced = [link for link in links if "**Reduced:**" in (ROOT / "docs" / link).read_text()]
    assert not reduced or "reduced" in verdict.lower(), reduced
    if verdict.startswith(("Reproduced", "Contradicted")):
        assert len(reduced) < len(links)
    if verdict.startswith("False"):
        kind, number = item.lower().split(" ")
        named = re.compile(rf"{paper}, [^|]*{kind}s? (?:\d and )?{number}\b")
        assert any(named.match(refuted) for refuted in REFUTED), "show the formula with numbers"
        assert re.search(r"\d", verdict)


def test_every_refuted_formula_has_an_example_and_two_values() -> None:
    for item, formula, example, printed, true in _table("Formulas that do not hold"):
        assert item.startswith(tuple(f"{paper}, " for paper in NUMBERED))
        assert formula
        assert example
        assert printed != true
