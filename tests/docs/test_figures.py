"""Figures that guides print beside a command are what the command gives."""

import re
import shlex

import pytest
from command_line import printed_json
from pages import ROOT

from sottovoce.adjacency import Adjacency
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import PureDp, Repeated, Shuffled


def test_the_plan_that_is_shown_is_the_plan() -> None:
    page = (ROOT / "docs/plan.md").read_text()
    found = re.search(r"^    (sottovoce plan .*)$", page, re.MULTILINE)
    assert found
    shown = printed_json(*shlex.split(found[1])[1:])
    rows = {row["mechanism"]: row for row in shown["ranking"]}
    table = page.split("    mechanism          parameters")[1].split("\n\n")[0].splitlines()[1:]
    assert len(table) == len(rows)
    for line in table:
        kind, *_, mse, times, bits, size, epsilon, sampling = line.split()
        row = rows[kind]
        assert float(mse) == pytest.approx(row["mse"], rel=1e-3)
        assert float(times) == pytest.approx(row["relative_mse"], rel=1e-3)
        assert float(bits) == pytest.approx(row["bits_per_coordinate"], rel=1e-3)
        assert int(size) == row["bytes_per_update"]
        assert float(epsilon) == pytest.approx(row["epsilon"], abs=1e-4)
        assert sampling == row["sampling_grade"]


def test_the_shuffled_epsilons_that_are_shown_are_those_of_the_accountant() -> None:
    page = (ROOT / "docs/seeded.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for clients, local, once, thrice in rows:
        event = Shuffled(
            event=PureDp(epsilon=float(local), adjacency=Adjacency.REPLACE_ONE),
            clients=int(clients.replace(",", "")),
        )
        for count, shown in ((1, once), (3, thrice)):
            spent = privacy_spent(Repeated(event=event, count=count), delta=1e-6)
            assert float(shown) == pytest.approx(spent.epsilon, abs=2e-3)
