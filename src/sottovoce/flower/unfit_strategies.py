"""Strategies of Flower's that cannot run on private bits, each with the reason and a way out."""

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedXgbBagging,
    FedXgbCyclic,
    QFedAvg,
    Strategy,
)

from sottovoce.core.errors import ConfigError

_TWO_NOISES = (
    "updates would be clipped and noised twice; take the strategy inside it, and set "
    "'sottovoce.mechanism' and 'sottovoce.epsilon' in the run config"
)
_TREES = "trees are no vectors, so they have no difference to clip; no private form is offered"

_UNFIT: dict[type[Strategy], str] = {
    DifferentialPrivacyClientSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyClientSideFixedClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideAdaptiveClipping: _TWO_NOISES,
    DifferentialPrivacyServerSideFixedClipping: _TWO_NOISES,
    QFedAvg: "it weights clients by their losses, which do not leave them; use FedAvg",
    FedXgbBagging: _TREES,
    FedXgbCyclic: _TREES,
}


def check_fits(strategy: object) -> None:
    """Refuse, before anything starts, what would not do what it says."""
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise ConfigError(
            f"{name} is not a strategy from flwr.serverapp.strategy; Flower's legacy strategies "
            "and workflows, SecAgg+ among them, cannot be wrapped"
        )
    for unfit, reason in _UNFIT.items():
        if isinstance(strategy, unfit):
            raise ConfigError(f"PrivateStrategy cannot wrap {name}: {reason}")
    if type(strategy).start is not Strategy.start:
        raise ConfigError(
            f"PrivateStrategy cannot wrap {name}: it has a start() of its own, which would not be "
            "called; override configure_train and aggregate_train instead"
        )
