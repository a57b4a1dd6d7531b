"""Run your own federated loop: ten clinics, each with its own ledger and budget."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import sottovoce as sv

ROUNDS, EPSILON, DELTA = 6, 8.0, 1e-5


def main() -> None:
    names, truth = [f"clinic-{n}" for n in range(10)], np.array([0.8, -0.5, 0.3, 0.0])
    budget = sv.Budget(epsilon=EPSILON, delta=DELTA)
    mechanism = sv.calibrate(
        "gauss_hermite", levels=4, epsilon=EPSILON, delta=DELTA, rounds=ROUNDS, dimension=4
    )
    server, model = sv.Server(mechanism, clients=names), np.zeros(4)
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )  # use a permanent folder for real ledgers
        clients = []
        for name in names:
            ledger = stack.enter_context(sv.Ledger(folder / f"{name}.sqlite", create=True))
            clients.append(sv.Client(name, mechanism, ledger=ledger, budget=budget))
        for number in range(1, ROUNDS + 1):
            server.open_round(number)
            for client in clients:
                update = truth - model  # what the client trained on its own data
                server.receive(client.name, client.send(update, round=number))
            model += 0.3 * server.mean()
        try:
            clients[0].send(model, round=ROUNDS + 1)
        except sv.BudgetExhaustedError as error:
            print(error)
    print("model", model.round(2), "true", truth)


if __name__ == "__main__":
    main()
