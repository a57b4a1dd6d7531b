"""What a run says of how its models were put together."""

from typing import Any

from sottovoce.core.files import finite_or_none
from sottovoce.federated.algorithms.connected import JOINED_MODELS, ConnectedAverage
from sottovoce.federated.algorithms.fedavg import FedAvg
from sottovoce.federated.algorithms.scaffold import Scaffold
from sottovoce.federated.progress import Progress
from sottovoce.privacy.events import NonPrivate
from sottovoce.runs.parts import Assembly

_ROBUST = (
    "a median or trimmed mean of noisy messages is noisier than their mean, up to pi/2 times its "
    "variance with Gaussian noise, and biased for messages of a few letters; it is unweighted"
)
_PROXY = (
    "the proxy samples were taken from the training data and are declared public: the guarantee "
    "does not cover them, and a gain over accuracy_average that accuracy_fine_tuned has as well "
    "comes from them, not from curves"
)
_CONTROLS = (
    "the server's control variate adds up the noise of all rounds, for clients send changes of "
    "theirs: compare with the algorithm 'fedavg', which has one uplink to pay for"
)


def warnings(assembly: Assembly) -> list[str]:
    """What a person should know of an algorithm before believing its result."""
    algorithm, mechanism = assembly.algorithm, assembly.parts[0].mechanism
    noisy = not isinstance(mechanism.privacy(assembly.spec.privacy.adjacency), NonPrivate)
    if isinstance(algorithm, Scaffold) and noisy:
        return [_CONTROLS]
    if isinstance(algorithm, ConnectedAverage):
        return [_PROXY]
    if isinstance(algorithm, FedAvg) and algorithm.robust_mean is not None:
        return [_ROBUST]
    return []


def tested(assembly: Assembly, progress: Progress) -> dict[str, Any]:
    """The models that mode connectivity made of the last round, side by side; else nothing."""
    if not isinstance(assembly.algorithm, ConnectedAverage):
        return {}
    state = progress.algorithm_state
    accuracies = {name: assembly.task.evaluate(state[name]).accuracy for name in JOINED_MODELS}
    curve, straight = (finite_or_none(float(value)) for value in state["barriers"])
    return {
        **{f"accuracy_{name}": accuracy for name, accuracy in accuracies.items()},
        "barrier_curve": curve,
        "barrier_straight": straight,
    }
