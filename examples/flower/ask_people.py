"""Twenty clinics are asked for the mean age of their patients, one code of three bits each.

    python examples/flower/ask_people.py

A ClientApp that answers questions, a ServerApp that asks one, in Flower's simulation. What a clinic
allows stands in a file of its own, and its ledger lies beside it; here both are made up, in a
folder that is removed afterwards.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray

from sottovoce.analytics import Question, question_for
from sottovoce.deployment import Site, Values
from sottovoce.flower import ask_on_grid, make_question_handler
from sottovoce.ledger import seal

NUM_CLINICS, PATIENTS = 20, 100
SITE = """
name = "clinic-{number}"

[policy]
mechanisms = ["mvu"]
level = "sample"            # a patient
adjacency = "replace-one"   # whatever the patient's age is
epsilon_per_round = 2.0
epsilon_total = 4.0         # two such questions, then no more
delta = 1e-6
smallest_cohort = 10
"""


def columns_of(site: Site) -> dict[str, Values]:
    """What a clinic can be asked about, and where its values come from."""

    def ages(_: Question) -> Iterator[NDArray[np.float64]]:
        number = int(site.name.removeprefix("clinic-"))
        yield np.random.default_rng(number).normal(50.0, 15.0, size=PATIENTS)

    return {"age": ages}


client_app = ClientApp()
client_app.query()(make_question_handler(columns_of))

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    question = question_for("mean", lower=0.0, upper=120.0, epsilon=2.0)
    folder = Path(os.environ["SOTTOVOCE_EXAMPLE"]) / "answer"
    # Flower's simulation starts its processes first, which takes a while on a busy machine.
    print(ask_on_grid(grid, question, about="age", folder=folder, wait_seconds=120.0))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        for number in range(NUM_CLINICS):
            clinic = Path(name) / str(number)
            clinic.mkdir()
            (clinic / "site.toml").write_text(SITE.format(number=number))
            seal.create(clinic)  # its ledger: 'sottovoce ledger create'
        os.environ["SOTTOVOCE_EXAMPLE"] = name
        os.environ["SOTTOVOCE_SITE"] = str(Path(name) / "{partition-id}" / "site.toml")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=NUM_CLINICS,
            backend_config={"init_args": {"log_to_driver": False}},
        )
