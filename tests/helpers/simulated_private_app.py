"""A private app in Flower's simulation engine, as a program: prints what came of it as JSON.

A program of its own, for its workers must be able to import what they are sent.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from fake_grid import an_app, moves_by, write_site
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from sottovoce.flower.strategy import PrivateStrategy

NUM_CLIENTS, NUM_ROUNDS, DIMENSION = 4, 2, 32
CONFIG = {"sottovoce.epsilon": 8.0, "sottovoce.delta": 1e-5, "sottovoce.clip-norm": 1.0}


def main(folder: Path) -> None:
    for number in range(NUM_CLIENTS):
        write_site(folder / str(number), f"site-{number}")
    os.environ["SOTTOVOCE_SITE"] = str(folder / "{partition-id}" / "site.toml")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    app = ServerApp()
    found: dict[str, object] = {}

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        context.run_config = {**CONFIG, "sottovoce.ledger": str(folder / "server.sqlite")}
        strategy = PrivateStrategy(FedAvg(min_available_nodes=NUM_CLIENTS), context)
        model = ArrayRecord({"weight": Array(np.zeros(DIMENSION, dtype=np.float32))})
        result = strategy.start(grid, model, num_rounds=NUM_ROUNDS)
        found["run"] = f"flower-{context.run_id}"
        found["rounds"] = [dict(one) for one in result.train_metrics_clientapp.values()]
        found["model"] = result.arrays["weight"].numpy().tolist()

    run_simulation(
        server_app=app,
        client_app=an_app(moves_by(0.1)),
        num_supernodes=NUM_CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}},
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
