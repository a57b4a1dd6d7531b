"""A question to real programs of which only the sum of all tallies is revealed."""

import json
from pathlib import Path

import numpy as np
import pytest
from federations import REAL_PROCESSES, RunningFederation, rehearsal

from sottovoce.analytics.estimates import question_for
from sottovoce.core.adjacency import Unit
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES

PEOPLE = {"east": 700, "north": 500, "south": 400, "west": 300}
OPTIONS = ["--about", "age", "--lower", "0", "--upper", "120", "--epsilon", "2"]
POLICY = """[policy]
mechanisms = ["mvu"]
level = "sample"
adjacency = "replace-one"
epsilon_per_round = EPSILON
epsilon_total = 5.0
delta = 1e-6
smallest_cohort = 3
honest = 2
colluders = 1

[columns.age]
csv = "people.csv"
column = "age"

"""


def _prepare(running: RunningFederation, name: str, ages: np.ndarray, epsilon: float) -> None:
    site = running.site(name)
    rows = "\n".join(f"{age:.3f}" for age in ages)
    (site.folder / "people.csv").write_text(f"age\n{rows}\n")
    before, _, after = site.file.read_text().partition("[policy]")
    trust = after[after.index("[trust]") :]
    site.file.write_text(before + POLICY.replace("EPSILON", str(epsilon)) + trust)


def test_only_the_sum_over_sites_is_revealed_and_people_pay_for_the_crowd(tmp_path: Path) -> None:
    with rehearsal(tmp_path, sites=list(PEOPLE), start=False) as running:
        ages = {
            name: np.random.default_rng(number).uniform(20, 80, size=count)
            for number, (name, count) in enumerate(PEOPLE.items())
        }
        running.start_link()
        for name in PEOPLE:
            # The site in the west allows too little, so it drops out after the keys.
            _prepare(running, name, ages[name], 0.1 if name == "west" else 1.0)
            running.start_node(name)
        options = [*OPTIONS, "--channel", "secure_sum", "--json"]
        found = json.loads(running.deploy("ask", running.folder, "mean", *options))
        there = {name: count for name, count in PEOPLE.items() if name != "west"}
        assert found["sites"]["answered"] == there
        assert "'epsilon_per_round' is 0.1" in found["sites"]["failed"]["west"]
        truth = float(np.concatenate([ages[name] for name in there]).mean())
        low, high = found["interval"]
        assert abs(found["estimate"] - truth) < 2.0 * (high - low)
        summed = found["secure_sum"]
        assert summed["local_epsilon"] == 2.0
        assert summed["central_epsilon"] < 0.6
        assert summed["charged_people"] == 400 + 300  # the west has declared its people
        question = question_for("mean", lower=0, upper=120, epsilon=2.0)
        for name in PEOPLE:
            with Ledger(running.site(name).folder / LEDGER_NAME) as ledger:
                crowd = PEOPLE[name] + 300
                charged = [(question.event_among(crowd), 1)] if name in there else []
                assert ledger.history_of_all(Unit.SAMPLE) == charged
                assert ledger.verify() == []
