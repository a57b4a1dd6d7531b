"""Figures that guides print beside a command are what the command gives."""

import csv
import re
import shlex
from statistics import fmean

import pytest
from command_line import printed_json
from pages import ROOT

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms.release import ShuffledMessages, release_event
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.mechanisms.seeds import GENERATORS
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated

SERVER, SUMMED, LOCAL = (
    "Gaussian by a trusted server",
    "one bit behind a secure sum",
    "local one bit",
)
INTERVAL = ("accuracy_low", "accuracy_high")


def test_the_plan_that_is_shown_is_the_plan() -> None:
    page = (ROOT / "docs/how-to/rank-mechanisms.md").read_text()
    found = re.search(r"^    (sottovoce plan .*)$", page, re.MULTILINE)
    assert found
    shown = printed_json(*shlex.split(found[1])[1:])
    rows = {row["mechanism"]: row for row in shown["ranking"]}
    tables = [
        (line, sampling)
        for part, sampling in zip(
            page.split("    mechanism          parameters")[1:3], ("exact", "float"), strict=True
        )
        for line in part.split("\n\n")[0].splitlines()[1:]
    ]
    assert len(tables) == len(rows)
    for line, sampling in tables:
        kind, *_, mse, times, bits, size, epsilon = line.split()
        row = rows[kind]
        assert float(mse) == pytest.approx(row["mse"], rel=1e-3)
        assert float(times) == pytest.approx(row["relative_mse"], rel=1e-3)
        assert float(bits) == pytest.approx(row["bits_per_coordinate"], rel=1e-3)
        assert int(size) == row["bytes_per_update"]
        assert float(epsilon) == pytest.approx(row["epsilon"], abs=1e-4)
        assert sampling == row["sampling_grade"]


def test_the_shuffled_epsilons_that_are_shown_are_those_of_the_accountant() -> None:
    page = (ROOT / "docs/explanation/seeded-updates.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 3
    for clients, local, once, thrice in rows:
        for count, shown in ((1, once), (3, thrice)):
            spent = _in_secret_order(float(local), 10_000, int(clients.replace(",", "")), count)
            assert spent <= float(shown) <= spent + 1.5e-3


def test_the_headline_has_the_epsilons_and_accuracies_of_what_was_run() -> None:
    """The same messages as in the kept result, whose local epsilon is that of four epochs."""
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    table = page.split("| epsilon of these messages |")[1].split("\n\n")[0].splitlines()[2:]
    found = _by_mechanism("seeded-mnist")
    assert len(table) == 3
    for line in table:
        epsilon, asked, *cells = line.strip("| ").split(" | ")
        kept = found["seeds in a secret order", float(asked)]
        local = float(kept["local_epsilon"])
        names = ("seeds in a secret order", "", "local Gaussian", "trusted server")
        for name, cell in zip(names, cells, strict=True):
            numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
            columns = ("accuracy", "accuracy_low", "accuracy_high")
            for column, shown in zip(columns, numbers if name else (), strict=False):
                known = 100.0 * float(found[name, float(asked)][column])
                assert shown == pytest.approx(known, abs=0.0501)
        assert local <= float(cells[1]) <= local + 0.1
        spent = _in_secret_order(local / 4.0 + 1e-6, int(kept["dimension"]), 50_000, 4)
        assert spent <= float(epsilon) <= spent + 5e-3


def test_the_shuffle_and_the_secret_order_have_the_figures_that_were_measured() -> None:
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    table = page.split("| epsilon | one shuffle of all clients: ")[1].split("\n\n")[0]
    found = _by_mechanism("shuffled-mnist")
    names = ("one shuffle of all clients a round", "secret order")
    columns = ("accuracy", "accuracy_low", "accuracy_high")
    lines = table.splitlines()[2:]
    assert len(lines) == 3
    for line in lines:
        epsilon, *cells, local = line.strip("| ").split(" | ")
        for name, cell in zip(names, cells, strict=True):
            kept = found[name, float(epsilon)]
            for column, shown in zip(columns, re.findall(r"[\d.]+", cell), strict=True):
                assert float(shown) == pytest.approx(100.0 * float(kept[column]), abs=0.00501)
            measured = float(kept["local_epsilon"])
            assert measured <= float(local) <= measured + 0.01
            spent = _in_secret_order(measured / 4.0, int(kept["dimension"]), 50_000, 4)
            assert spent == pytest.approx(float(kept["epsilon_spent"]), abs=1e-4)


def _in_secret_order(local: float, dimension: int, clients: int, epochs: int) -> float:
    mechanism = SeededStep(
        input_domain=L2Ball(dimension=dimension, radius=1.0),
        epsilon=local,
        length="kept",
        generator=GENERATORS[-1],
        timing="constant",
    )
    event = release_event(
        mechanism,
        adjacency=Adjacency.REPLACE_ONE,
        visibility=ShuffledMessages(minimum_clients=clients),
    )
    return privacy_spent(Repeated(event=event, count=epochs), delta=1e-6).epsilon


@pytest.mark.parametrize(
    ("heading", "experiments"),
    [
        ("| epsilon | MNIST: Gaussian, float32 | one bit | sign |", ("imvu-mnist", "imvu-cifar10")),
        (
            "| epsilon | MNIST: Gaussian, float32 | one bit | its bytes |",
            ("imvu-mnist-public", "imvu-cifar10-public"),
        ),
    ],
)
def test_how_well_it_learns_is_what_the_kept_results_say(
    heading: str, experiments: tuple[str, str]
) -> None:
    table = (ROOT / "docs/explanation/accuracy.md").read_text().split(heading)[1].split("\n\n")[0]
    found = {name: _by_mechanism(name) for name in experiments}
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 5
    for epsilon, *cells in rows:
        for name, (gaussian, one_bit, third) in zip(
            experiments, (cells[:3], cells[3:]), strict=True
        ):
            for mechanism, shown in (("Gaussian (float32)", gaussian), ("one bit", one_bit)):
                kept = float(found[name][mechanism, float(epsilon)]["accuracy"])
                assert float(shown.strip("*")) == pytest.approx(100.0 * kept, abs=0.0501)
            if "public" in name:
                sent = found[name]["one bit", float(epsilon)]["payload_bytes_up_per_message"]
                assert float(third) == float(sent)
            else:
                kept = float(found[name]["sign", float(epsilon)]["accuracy"])
                assert float(third) == pytest.approx(100.0 * kept, abs=0.0501)


def test_one_bit_behind_a_secure_sum_is_as_far_from_the_server_as_the_kept_trials() -> None:
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    table = page.split("| users | epsilon | Gaussian by a trusted server |")[1].split("\n\n")[0]
    lines = table.splitlines()[2:]
    assert len(lines) == 6
    for line in lines:
        users, epsilon, *cells, local = line.strip("| ").split(" | ")
        (name,) = (one for one in ("FEMNIST", "MNIST", "CIFAR-10") if f"of {one}" in users)
        experiment = f"secure-sum-{name.lower().replace('-', '')}"
        found = _final_accuracies(experiment, float(epsilon))
        server, summed = (found[name] for name in (SERVER, SUMMED))
        pairs = [100.0 * (summed[seed] - server[seed]) for seed in server]
        mean, half = mean_and_half_width(pairs)
        shown = [100.0 * fmean(one.values()) for one in (server, summed)]
        numbers = [float(number) for cell in cells for number in re.findall(r"[-+]?[\d.]+", cell)]
        assert numbers == pytest.approx([*shown, mean, mean - half, mean + half], abs=0.00501)
        assert float(local) == pytest.approx(100.0 * fmean(found[LOCAL].values()), abs=0.0501)
        assert len(pairs) >= 20


def test_messages_of_local_dp_sgd_have_the_bytes_and_accuracies_of_the_kept_results() -> None:
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    with (ROOT / "results/dp-sgd-messages/data.csv").open(newline="") as file:
        kept = {
            (row["schedule"], row["mechanism"], row["epsilon"]): row for row in csv.DictReader(file)
        }
    for schedule in ("150 messages, 2 steps each", "5 messages, 60 steps each"):
        table = page.split(f"| {schedule} |")[1].split("\n\n")[0]
        lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
        assert len(lines) == 4
        for bits, sent, *cells in lines:
            name = bits.removesuffix(" a coordinate")
            rows = [kept[schedule, name, epsilon] for epsilon in ("1.0", "4.0")]
            assert {float(row["total_bytes_up_per_client"]) for row in rows} == {
                float(sent.replace(",", ""))
            }
            found = [100.0 * float(row["accuracy"]) for row in rows]
            assert [float(cell) for cell in cells] == pytest.approx(found, abs=0.00501)


def test_networks_and_training_without_privacy_are_as_accurate_as_in_the_kept_results() -> None:
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    for experiment, heading, axis in (
        ("dp-sgd-networks", "| data | network, noisy steps |", "mechanism"),
        ("plain-images", "| data, rounds |", "distribution"),
        ("plain-cifar10", "| data, rounds |", "distribution"),
    ):
        with (ROOT / "results" / experiment / "data.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = page.split(heading)[1].split("\n\n")[0].splitlines()[2:]
        shown = {line.strip("| ").split(" | ")[0].split(",")[0]: line for line in table}
        assert {row.get("data", "CIFAR-10") for row in rows} <= set(shown)
        for row in rows:
            cells = [f"{100.0 * float(row[c]):.1f}" for c in ("accuracy", *INTERVAL)]
            short = cells[0]
            long = f"{cells[0]} ({cells[1]} to {cells[2]})"
            assert (
                f"| {long if row[axis] != 'no noise' else short} |"
                in shown[row.get("data", "CIFAR-10")]
            )


def _final_accuracies(experiment: str, epsilon: float) -> dict[str, dict[str, float]]:
    """By mechanism, the test accuracy of each seed."""
    found: dict[str, dict[str, float]] = {}
    with (ROOT / "results" / experiment / "trials.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["stage"] == "final" and float(row["asked_epsilon"]) == epsilon:
                found.setdefault(row["mechanism"], {})[row["seed"]] = float(row["accuracy"])
    return found


def _by_mechanism(experiment: str) -> dict[tuple[str, float], dict[str, str]]:
    with (ROOT / "results" / experiment / "data.csv").open(newline="") as file:
        return {(row["mechanism"], float(row["epsilon"])): row for row in csv.DictReader(file)}
