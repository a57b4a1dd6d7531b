"""Questions to real programs: a relay, clients that run as nodes, and the collector's command."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import call, printed_json
from relayed_people import people_of
from two_operators import create_operators, running_operators

from sottovoce.analytics.estimates import question_for
from sottovoce.core.adjacency import Unit
from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.privacy.accounting import privacy_spent

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.slow
VISITS = 300


@contextlib.contextmanager
def running_nodes(devices: Sequence[DeviceFolder]) -> Iterator[None]:
    """Run clients in the background, as their owners do."""
    command = [sys.executable, "-m", "sottovoce", "deploy", "node", "--background"]
    starting = [subprocess.Popen([*command, str(one.folder)]) for one in devices]
    try:
        assert [one.wait() for one in starting] == [0] * len(devices)
        yield
    finally:
        for one in devices:
            assert call("deploy", "stop", str(one.folder)).code == 0


def test_clients_answer_the_questions_of_a_collector_on_both_channels(tmp_path: Path) -> None:
    operators = create_operators(tmp_path)
    collector = str(operators.collector.folder)
    file = operators.collector.folder / "collector.toml"
    file.write_text(file.read_text().replace("confirm_seconds = 60", "confirm_seconds = 10"))
    generator = np.random.default_rng(1)
    ages = {f"phone-{number}": [20 + 10 * number] for number in range(5)}
    devices = people_of(operators, ages)
    visits = generator.uniform(20.0, 80.0, size=(len(devices), VISITS))
    for one, rows in zip(devices, visits, strict=True):
        text = "\n".join(f"{value:.3f}" for value in rows)
        (one.folder / "visits.csv").write_text(f"minutes\n{text}\n")
        with one.site_file.open("a") as site:
            site.write('\n[columns.visits]\ncsv = "visits.csv"\ncolumn = "minutes"\n')
    terms = ["--minimum-clients", "4", "--deadline", "12"]
    with running_operators(operators), running_nodes(devices):
        bounds = ["--lower", "0", "--upper", "100", "--epsilon", "2"]
        mean_of_visits = ["mean", "--about", "visits", *bounds, *terms]
        summed = printed_json("deploy", "ask", collector, *mean_of_visits)
        words = ["--lower", "0", "--upper", "100", "--bins", "2", "--epsilon", "3"]
        asked = ["histogram", "--about", "age", *words, *terms, "--channel", "shuffler"]
        shuffled = printed_json("deploy", "ask", collector, *asked)
        refused = call("deploy", "ask", collector, *mean_of_visits, "--channel", "shuffler")
    assert summed["people"] == len(devices) * VISITS
    assert summed["clients"] == {"admitted": 5, "answered": 5, "dropped": 0}
    low, high = summed["interval"]
    assert abs(summed["estimate"] - visits.mean()) < 2.0 * (high - low)
    assert shuffled["people"] == shuffled["clients"]["answered"] == 5
    assert sum(shuffled["estimate"]) == pytest.approx(1.0)
    # A shuffle takes one person of each client, so all clients have refused.
    assert refused.code == 2
    assert "there is no estimate" in refused.text
    mean = question_for("mean", lower=0, upper=100, epsilon=2.0)
    histogram = question_for("histogram", lower=0, upper=100, bins=2, epsilon=3.0, public_seed=1)
    for one in devices:
        with Ledger(one.folder / LEDGER_NAME) as ledger:
            assert ledger.verify() == []
            assert ledger.history_of_all(Unit.SAMPLE) == [
                (mean.event_among(VISITS + 3), 1),
                (histogram.event_among(4), 1),
            ]
    least = {"secure_sum": mean.event_among(4), "shuffler": histogram.event_among(4)}
    for found, (channel, event) in zip((summed, shuffled), least.items(), strict=True):
        assert found[channel]["central_epsilon"] == privacy_spent(event, 1e-6).epsilon
        folder = Path(found["folder"])
        assert json.loads((folder / "estimate.json").read_text())["people"] == found["people"]
        with Ledger(folder / LEDGER_NAME) as ledger:
            assert ledger.history_of_all(Unit.SAMPLE) == [(event, 5)]
