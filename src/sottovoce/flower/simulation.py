"""Flower's simulation engine: every client is a virtual node in worker processes of one machine."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.policy import Terms
from sottovoce.deployment.site import Site
from sottovoce.flower.client import Compute, client_app
from sottovoce.ledger.records import Budget, PendingCharge
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.filters import History

T = TypeVar("T")

_RESOURCES: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"logging_level": logging.ERROR, "log_to_driver": False},
}


class UnlimitedPolicy:
    """The policy of simulated sites, which allows everything."""

    def check_terms(self, terms: Terms) -> None:
        """Accept all terms."""

    def reserve_for_first_event(self, event: PrivacyEvent, planned: int) -> None:
        """Set no budget aside."""

    def check_spending(
        self,
        history: History,
        pending: Sequence[PendingCharge],
        first: Budget | None = None,
        *,
        this_round: History = (),
        retries: bool = False,
    ) -> None:
        """Accept any amount."""


def simulate(names: Sequence[str], ledger: Path, compute: Compute, serve: Callable[[Grid], T]) -> T:
    """Call `serve` with a grid of one virtual node per name, and return what it returns.

    All sites share one `ledger` file; `compute` answers their orders. What `serve` raises is
    raised; DeploymentError if Flower's simulation fails without it.
    """

    def site_of(context: Context) -> Site:
        name = names[int(context.node_config["partition-id"])]
        return Site(name=name, policy=UnlimitedPolicy(), ledger=ledger)

    outcome: list[T | BaseException] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        try:
            outcome.append(serve(grid))
        except BaseException as error:
            outcome.append(error)
            raise

    logging.getLogger("flwr").setLevel(logging.ERROR)
    # The future default of Ray; setting it avoids a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        run_simulation(
            server_app=app,
            client_app=client_app(compute, site_of),
            num_supernodes=len(names),
            backend_config=_RESOURCES,
        )
    except Exception as error:
        if not outcome:
            raise DeploymentError(
                f"Flower's simulation failed: {error}; correct the cause, then resume the run"
            ) from error
    if not outcome:
        raise DeploymentError(
            "Flower's simulation ended before the run did; see Flower's log, then resume the run"
        )
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
