"""The page about runs: whole, closed to injection, the same for the same folder, and small."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from reported_runs import make_run, make_unfinished

from sottovoce.privacy.accounting import builtin_accountants
from sottovoce.reporting import run_report
from sottovoce.reporting.report_data import report_of
from sottovoce.reporting.run_report import render, write_report

EVIL = "<script>alert('1')<!--"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("report") / "run")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    return report_of([folder])


class _Page(HTMLParser):
    """What elements a page has; text inside scripts is no element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


def test_the_page_stands_alone_and_is_well_formed(report: dict[str, Any]) -> None:
    text = render(report)
    page = _Page(text)
    assert page.open == []
    assert not re.search(r"\ssrc\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    links = [attributes["href"] or "" for tag, attributes in page.tags if "href" in attributes]
    assert all(link.startswith("#") for link in links)


def test_each_picture_has_a_name_a_table_and_a_legend(report: dict[str, Any]) -> None:
    page = _Page(render(report))
    figures = page.count("figure")
    assert figures == 5
    named = [a for tag, a in page.tags if tag == "svg" and a.get("role") == "img"]
    assert len(named) >= figures
    assert all(attributes["aria-label"] for attributes in named)
    assert page.count("details") == figures + 1  # and the spec
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_the_page_says_what_both_readers_look_for(report: dict[str, Any]) -> None:
    text = render(report)
    for words in (
        "What was released",
        "Who sees it",
        "What is protected",
        "zero-out",
        "delta 1e-05",
        "Simulation only",
        "Ledger verified",
        "sottovoce run spec.toml",
        "kind = &#34;gauss_hermite&#34;",
        "renyi",
        "zcdp",
        "budget",
        "client-0003",
    ):
        assert words in text, words


def test_the_same_folder_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        size = write_report(report_of([folder]), tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
        assert size == len(pages[-1])
    assert pages[0] == pages[1]


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    site = "</script><img src=x onerror=alert(2)>"
    names = [site, "b&b", '"c"', "d"]
    one = make_run(
        tmp_path / "one", name=EVIL, rounds=2, data={"dataset": "digits", "names": names}
    )
    two = make_run(tmp_path / "two", rounds=2)
    harmless = _Page(render(report_of([two])))
    text = render(report_of([one]))
    page = _Page(text)
    assert page.open == []
    assert page.count("script") == harmless.count("script")
    assert page.count("img") == 0
    assert site not in text
    assert EVIL not in text
    both = _Page(render(report_of([one, two])))
    assert both.open == []
    assert both.count("img") == 0


def test_an_unfinished_run_is_headed_as_such(folder: Path, tmp_path: Path) -> None:
    text = render(report_of([make_unfinished(tmp_path / "copy", folder, rounds=2)]))
    assert "unfinished: 2 of 6 rounds" in text
    begun = make_unfinished(tmp_path / "begun", folder, rounds=0)
    assert "unfinished: 0 of 6 rounds" in render(report_of([begun]))


def test_several_runs_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", name="other", rounds=3)
    report = report_of([folder, other])
    text = render(report)
    assert "2 runs side by side" in text
    assert "Accuracy against epsilon" in text
    assert "On the Pareto frontier" in text
    for name in report["comparison"]["frontier"]:
        assert name in text


def test_every_accountant_is_explained() -> None:
    assert {one.name for one in builtin_accountants()} <= set(run_report._bounds_explained())


def test_audits_and_attacks_are_shown(folder: Path, tmp_path: Path) -> None:
    copy = make_unfinished(tmp_path / "copy", folder, rounds=4)
    audit = {
        "method": "canaries",
        "delta": 1e-5,
        "confidence": 0.999,
        "certified": 4.0,
        "lower_bound": 4.5,
        "violated": True,
        "finding": "violated: epsilon is at least 4.5",
        "trials": "200 canaries",
        "profile": [
            {"epsilon": 0.0, "certified_delta": 0.5, "measured_delta": 0.6, "violated": True},
            {"epsilon": 2.0, "certified_delta": 0.1, "measured_delta": 0.0, "violated": False},
        ],
    }
    (copy / "audit.json").write_text(json.dumps(audit))
    score = {"mean": 0.5, "low": 0.4, "high": 0.6}
    attributes = {
        "attribute": "smoker",
        "accuracy": score,
        "f1": score,
        "baselines": {"majority": {"accuracy": score, "f1": score}},
        "beats": {"majority": False},
        "setting": "The attacker has the model.",
    }
    (copy / "attack-attributes.json").write_text(json.dumps(attributes))
    text = render(report_of([copy]))
    assert "Violated: epsilon is at least 4.5" in text
    assert "Certified delta by epsilon" in text
    assert "tell no more than guesses" in text
    assert "0.5 (0.4 to 0.6)" in text


def test_what_is_left_is_rounded_down_and_what_is_spent_up() -> None:
    row = {"client": "a", "group": 0, "rounds": 1, "delta": 1e-5, "ran_out": False}
    table = run_report._client_table([{**row, "budget": 1.0, "epsilon": 0.33335}], has_sites=False)
    assert table["rows"] == [["a", "1", "0.3334", "1", "0.6666", "1e-05", "no"]]


def _many(report: dict[str, Any], *, rounds: int, clients: int) -> dict[str, Any]:
    """The same report with so many rounds and clients."""
    (run,) = report["runs"]
    rows = [run["rows"][-1] | {"round": number + 1} for number in range(rounds)]
    people = [
        {
            "client": f"client-{number:06d}",
            "group": 0,
            "budget": 4.0,
            "delta": 1e-5,
            "epsilon": 3.0 + number / clients,
            "rounds": rounds,
            "ran_out": number % 3 == 0,
        }
        for number in range(clients)
    ]
    accounts = run["accounts"] | {"clients": people}
    return {**report, "runs": [run | {"rows": rows, "accounts": accounts}]}


def test_500_rounds_stay_under_3_megabytes(report: dict[str, Any]) -> None:
    assert len(render(_many(report, rounds=500, clients=1000)).encode()) < 3 * MEGABYTE


def test_thousands_of_clients_are_cut_and_the_page_says_so(report: dict[str, Any]) -> None:
    text = render(_many(report, rounds=6, clients=20_000))
    assert len(text.encode()) < 3 * MEGABYTE
    assert "5,000 clients of 20,000 that spent most" in " ".join(text.split())
    assert text.count('<th scope="row">client-') == 50
