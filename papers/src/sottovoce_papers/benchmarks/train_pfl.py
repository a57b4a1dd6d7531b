"""The same local training in pfl-research, where the package `pfl` is installed.

It trains one client after the other, clips updates, adds Gaussian noise to their sum, and packs no
messages, so it does less for each client than the rounds that it is compared with.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce_papers.benchmarks.measurement import version

Arrays = tuple[NDArray[Any], NDArray[Any]]


def why_missing() -> str | None:
    """Return why pfl cannot be measured; None if it can."""
    try:
        importlib.import_module("pfl.model.pytorch")
    except ImportError as error:
        return f"pfl cannot be imported: {error}"
    return None


def round_seconds(
    module: nn.Module, users: list[Arrays], *, batch_size: int, rate: float, seconds: float
) -> list[float]:
    """Return the seconds of pfl's rounds, in which all users train for one epoch.

    Args:
        module: The model.
        users: Features and labels of each user.
        batch_size: Records of a local step.
        rate: Step size of local steps.
        seconds: About how long to measure.

    Returns:
        The seconds of each round but the first.
    """
    algorithm: Any = importlib.import_module("pfl.algorithm")
    base: Any = importlib.import_module("pfl.algorithm.base")
    hyperparam: Any = importlib.import_module("pfl.hyperparam")
    model: Any = importlib.import_module("pfl.model.pytorch")
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    trained = model.PyTorchModel(
        _with_loss(module),
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=optimizer,
    )
    clock = _clock(seconds)
    algorithm.FederatedAveraging().run(
        base.NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**7,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        _backend(users),
        trained,
        hyperparam.NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=rate, local_batch_size=batch_size
        ),
        hyperparam.NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    taken: list[float] = clock.taken
    return taken[1:]


def description() -> str:
    """Return what is measured, with the version."""
    return f"pfl {version('pfl')}: one user after the other, central Gaussian noise, no messages"


def _backend(users: list[Arrays]) -> Any:
    data: Any = importlib.import_module("pfl.data")
    sampler: Any = importlib.import_module("pfl.data.sampling")
    torch_data: Any = importlib.import_module("pfl.data.pytorch")
    simulate: Any = importlib.import_module("pfl.aggregate.simulate")
    privacy: Any = importlib.import_module("pfl.privacy")
    ops: Any = importlib.import_module("pfl.internal.ops.pytorch_ops")
    device = ops.get_default_device()
    tensors = [(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in users]

    def make(user: int) -> Any:
        return torch_data.PyTorchTensorDataset(tensors[user], user_id=str(user))

    federated = data.FederatedDataset(
        make, sampler.get_user_sampler("minimize_reuse", list(range(len(users))))
    )
    noise = privacy.CentrallyAppliedPrivacyMechanism(
        privacy.GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=1.0)
    )
    return simulate.SimulatedBackend(
        training_data=federated, val_data=federated, postprocessors=[noise]
    )


def _with_loss(module: nn.Module) -> nn.Module:
    """Give a module the methods that pfl calls."""

    def loss(features: Tensor, labels: Tensor, eval: bool = False) -> Tensor:  # noqa: ARG001
        module.train()
        return cross_entropy(module(features), labels)

    def metrics(features: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:  # noqa: ARG001
        return {}

    made: Any = module
    made.loss, made.metrics = loss, metrics
    return module


def _clock(seconds: float) -> Any:
    """Return a callback of pfl that keeps the seconds of each round and stops after a while."""
    callback: Any = importlib.import_module("pfl.callback.base")
    metrics: Any = importlib.import_module("pfl.metrics")
    now: Callable[[], float] = time.perf_counter

    class Clock(callback.TrainingProcessCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.taken: list[float] = []
            self._begun = self._last = now()

        def after_central_iteration(self, *_: Any, **__: Any) -> Any:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            last, self._last = self._last, now()
            self.taken.append(self._last - last)
            done = len(self.taken) > 2 and self._last - self._begun > seconds
            return done, metrics.Metrics()

    return Clock()


def as_users(features: NDArray[Any], labels: NDArray[Any], size: int) -> list[Arrays]:
    """Return records as users with `size` records each."""
    count = len(labels) // size
    chosen = np.arange(count * size).reshape(count, size)
    return [(features[rows].astype(np.float32), labels[rows]) for rows in chosen]
