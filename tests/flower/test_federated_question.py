"""One question to a federation of real processes, with TLS and keys."""

import json
from pathlib import Path

import numpy as np
import pytest
from federations import REAL_PROCESSES, RunningFederation, rehearsal

from sottovoce.deployment.audit_file import verify_lines
from sottovoce.deployment.audit_log import LOG_NAME
from sottovoce.ledger.ledger import Ledger

pytest.importorskip("flwr")
pytestmark = REAL_PROCESSES

SITES = ("north", "south", "west")
OPTIONS = ["--lower", "0", "--upper", "120", "--epsilon", "2"]


def _people(running: RunningFederation) -> float:
    """Each site's people, and a policy for questions about their age; the mean of all ages."""
    ages = []
    for number, name in enumerate(SITES):
        site = running.site(name)
        values = np.random.default_rng(number).uniform(20, 80, size=500)
        ages.append(values)
        rows = "\n".join(f"{age:.3f}" for age in values)
        (site.folder / "people.csv").write_text(f"age\n{rows}\n")
        text = site.file.read_text()
        for old, new in (
            ('mechanisms = ["gauss_hermite", "discrete_gaussian"]', 'mechanisms = ["mvu"]'),
            ('adjacency = "zero-out"', 'adjacency = "replace-one"'),
            ("epsilon_total = 10.0", f"epsilon_total = {1.0 if name == 'west' else 3.0}"),
        ):
            assert old in text
            text = text.replace(old, new)
        site.file.write_text(text + '\n[columns.age]\ncsv = "people.csv"\ncolumn = "age"\n')
    return float(np.concatenate(ages[:2]).mean())


def _ask(running: RunningFederation, about: str, code: int = 0) -> str:
    options = ("--about", about, *OPTIONS, "--json")
    return running.deploy("ask", running.folder, "mean", *options, code=code)


def test_sites_answer_as_far_as_their_own_files_allow(tmp_path: Path) -> None:
    with rehearsal(tmp_path, sites=SITES) as running:
        truth = _people(running)
        found = json.loads(_ask(running, "age"))
        assert found["people"] == 1000
        low, high = found["interval"]
        assert low < found["estimate"] < high
        assert abs(found["estimate"] - truth) < 2.0 * (high - low)
        assert found["epsilon"] == 2.0
        assert "'epsilon_total' is 1" in found["sites"]["failed"]["west"]
        for name, charged in (("north", 1), ("south", 1), ("west", 0)):
            with Ledger(running.site(name).folder / "ledger.sqlite") as ledger:
                assert ledger.num_charges == charged
        for name, what in (("north", "charged"), ("west", "refused")):
            entries, problems = verify_lines(running.site(name).folder / LOG_NAME)
            assert problems == []
            assert entries[-1]["what"] == what
        said = _ask(running, "income", code=2)
        assert "answers no questions about 'income'" in said
        said = _ask(running, "age", code=2)  # the budget of 3 holds no second one
        assert "'epsilon_total' is 3" in said
